"""Tables of ranked documents, their reordering, and statistics: how many are relevant, how long texts are."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ratchet.data.tables import RANKED, complete


def tabulate_ranks(
    queries: pa.Table,
    ids: pa.Array | pa.ChunkedArray,
    indptr: np.ndarray,
    own_Q: np.ndarray,
    ranks_R: np.ndarray,
    scores_QK: np.ndarray,
    rows_QK: np.ndarray,
) -> pa.Table:
    """Return RANKED of queries: the ids and scores of their top documents, and the ranks of their positives.

    ids: of the corpus. indptr: bounds of each query's positives in ranks_R, [Q + 1]. own_Q: corpus row of each query
    itself, which is left out; -1 for none. ranks_R, scores_QK, rows_QK: see
    `ratchet.models.search.ranks.rank_and_search`."""
    documents = []
    scores = []
    for q, own in enumerate(own_Q):
        kept = rows_QK[q] != own
        documents.append(ids.take(pa.array(rows_QK[q][kept])).to_pylist())
        scores.append(scores_QK[q][kept])
    ranks = pa.ListArray.from_arrays(indptr.astype(np.int32), ranks_R)
    return complete({"documents": documents, "scores": scores, "ranks": ranks}, queries, RANKED)


def reorder(
    documents: Sequence[str],
    scores: Sequence[float] | np.ndarray,
    positives: Sequence[str],
    ranks: Sequence[int],
) -> tuple[np.ndarray, list[int]]:
    """Return (the order of `documents` by `scores`, the ranks of `positives` after reordering). Ranks count from 1.

    documents: the top of a whole ranking. ranks: the ranks of the positives in the whole ranking; a positive below the
    top keeps its rank. Documents with equal scores are ordered by id, descending, as trec_eval orders them."""
    rounded = np.asarray(scores, np.float32).tolist()
    pairs = list(zip(rounded, documents, strict=True))
    order = sorted(range(len(pairs)), key=pairs.__getitem__, reverse=True)
    rank_of = dict(zip(positives, ranks, strict=True))
    for new, old in enumerate(order, 1):
        if documents[old] in rank_of:
            rank_of[documents[old]] = new
    return np.array(order, np.int64), list(rank_of.values())


def summarize_counts(counts: Sequence[int] | np.ndarray) -> dict[str, float]:
    """Summarize the relevant documents of each query: mean, std (of the population), P75 and P95 (interpolated), max,
    and `none`, the number of queries without one."""
    count_Q = np.asarray(counts if len(counts) else [0])
    return {
        "mean": round(float(count_Q.mean()), 4),
        "std": round(float(count_Q.std()), 4),
        "P75": round(float(np.percentile(count_Q, 75)), 4),
        "P95": round(float(np.percentile(count_Q, 95)), 4),
        "max": int(count_Q.max()),
        "none": len(counts) - int(np.count_nonzero(counts)),
    }


def summarize_tokens(name: str, lengths: Sequence[int]) -> dict[str, float | int | str]:
    """Summarize the tokens of texts: mean, P95 (interpolated) and max."""
    tokens_N = np.array(lengths, np.int32)
    if not len(tokens_N):
        tokens_N = np.zeros(1, np.int32)
    return {
        "tokens of": name,
        "mean": round(float(tokens_N.mean()), 1),
        "P95": round(float(np.quantile(tokens_N, 0.95)), 1),
        "max": float(tokens_N.max()),
    }
