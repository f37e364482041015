"""Choice of the documents against which held-out queries are ranked while a model is trained on a large corpus."""

import numpy as np
import pyarrow as pa

from ratchet.data.tables import DocumentRows
from ratchet.data.triplets import find_corpus_rows, pad_rows


def choose_pool(
    valid: pa.Table, corpus: pa.Table, ranked: pa.Table | None, size: int | None, seed: int
) -> np.ndarray | None:
    """Return the corpus rows of the pool, int64, ascending: all positives; for up to half of the places left, the
    top documents of the queries' rankings, one of each query in turn; and random documents.

    ranked: a ranking of the queries (RANKED), such as that of the model before training. None: random documents only.
    Returns None, for the whole corpus, if `size` is None or at least as large. All positives are in the pool."""
    if size is None or len(corpus) <= size:
        return None
    rows_of = DocumentRows(corpus["id"])
    chosen = np.unique(find_corpus_rows(valid, "positives", rows_of)[1])
    if ranked is not None:
        ends_Q, rows = find_corpus_rows(ranked, "documents", rows_of, "ranking")
        lists = np.split(rows, ends_Q[1:-1])
        in_turn = pad_rows(lists, -1).T.ravel()
        _, first = np.unique(in_turn, return_index=True)
        in_turn = in_turn[np.sort(first)]
        in_turn = in_turn[(in_turn >= 0) & ~np.isin(in_turn, chosen)]
        half = max(0, size - len(chosen)) // 2
        chosen = np.concatenate([chosen, in_turn[:half]])
    others = np.setdiff1d(np.arange(len(corpus)), chosen, assume_unique=True)
    left = max(0, size - len(chosen))
    drawn = np.random.default_rng(seed).choice(others, left, replace=False)
    return np.sort(np.concatenate([chosen, drawn]))
