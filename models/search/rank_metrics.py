"""Metrics of rankings, from the ranks of the relevant documents alone, as trec_eval defines them.

Shapes: Q queries, R (query, relevant document) pairs of all queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ratchet.models.search.ranks import Relevant


@dataclass(frozen=True)
class RankMetrics:
    """Ranking metrics per query and their means."""

    values: dict[str, float]
    """`mrr`, `map`, and per k `map@k`, `p@k`, `r@k`, `ndcg@k`, `hit@k`: means over queries, each in [0, 1]."""
    per_query: dict[str, np.ndarray]
    """The same metrics by name, per query, float64 [Q]; NaN for a query without a relevant document."""
    queries: int
    """All queries, those without a relevant document among them."""
    empty: int
    """Queries without a relevant document, which are left out of the means."""
    ranks: dict[str, float]
    """Rank of each query's first relevant document, over queries that have one: mean, p10, p50, p90, p99, max."""

    def list_by_cutoff(self, kinds: Sequence[str], ks: Sequence[int]) -> list[dict[str, float]]:
        """Return the rows of a table of means: column `k`, and a column per kind in upper case, such as `P` for `p`."""
        found = []
        for k in ks:
            found.append(
                {"k": k} | {kind.upper(): round(self.values[f"{kind}@{k}"], 6) for kind in kinds}
            )
        return found


def compute_rank_metrics(ranks_R: np.ndarray, relevant: Relevant, ks: Sequence[int]) -> RankMetrics:
    """Compute metrics from the ranks of all relevant documents, which count from 1, as defined by trec_eval.

    p@k divides by k even if the corpus is smaller; ndcg@k has gain grade / log2(rank + 1) (linear, not 2**grade - 1)
    and the ideal order of all grades cut at k. map@k sums precision at the relevant documents within k and divides by
    the number of all relevant ones (trec_eval's map_cut_k); with one it is the reciprocal rank, 0 beyond k,
    as in the MAP@25 of Kaggle. Queries without relevant documents are left out of the means, as in trec_eval.
    """
    queries = len(relevant.indptr) - 1
    query_R = relevant.query_R
    count_Q = np.diff(relevant.indptr)
    order = np.lexsort((ranks_R, query_R))
    rank = ranks_R[order].astype(np.float64)
    place = (
        np.arange(len(rank)) - relevant.indptr[query_R] + 1.0
    )  # position among the query's relevant documents
    precision = place / rank
    grades_R = np.ones(len(rank)) if relevant.grades is None else relevant.grades
    grade = grades_R[order]
    ideal = grades_R[np.lexsort((-grades_R, query_R))]
    divisor_Q = np.maximum(count_Q, 1)

    def total(value_R: np.ndarray) -> np.ndarray:
        return np.bincount(query_R, value_R, minlength=queries)

    per_query = {"mrr": total((place == 1) / rank), "map": total(precision) / divisor_Q}
    for k in ks:
        within = rank <= k
        found_Q = total(rank <= k)
        dcg_Q = total(np.where(within, grade / np.log2(rank + 1), 0.0))
        best_Q = total(np.where(place <= k, ideal / np.log2(place + 1), 0.0))
        per_query[f"map@{k}"] = total(precision * within) / divisor_Q
        per_query[f"p@{k}"] = found_Q / k
        per_query[f"r@{k}"] = found_Q / divisor_Q
        per_query[f"ndcg@{k}"] = dcg_Q / np.where(best_Q > 0, best_Q, 1.0)
        per_query[f"hit@{k}"] = np.minimum(found_Q, 1.0)
    none_Q = count_Q == 0
    per_query = {name: np.where(none_Q, np.nan, value_Q) for name, value_Q in per_query.items()}
    return RankMetrics(
        values={
            name: float(value[~none_Q].mean()) if not none_Q.all() else 0.0
            for name, value in per_query.items()
        },
        per_query=per_query,
        queries=queries,
        empty=int(none_Q.sum()),
        ranks=_spread(rank[place == 1]),
    )


def _spread(values: np.ndarray) -> dict[str, float]:
    if not len(values):
        values = np.zeros(1)
    percentiles = {}
    for percent in (10, 50, 90, 99):
        percentiles[f"p{percent}"] = float(np.percentile(values, percent))
    return {"mean": float(values.mean()), **percentiles, "max": float(values.max())}
