"""Documents with equal scores: the metrics are those of trec_eval, in any order of the corpus."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import pytrec_eval
from scipy.sparse import csr_matrix

from ratchet.data.tables import order_ties
from ratchet.models.search.nearest_queries import rank_by_votes
from ratchet.models.search.rank_metrics import compute_rank_metrics
from ratchet.models.search.ranks import Relevant, rank_by_scores, rank_relevant

NAMES = ["map", "recip_rank", "ndcg_cut_10"]
OWN = ["map", "mrr", "ndcg@10"]


@pytest.mark.parametrize("system", ["dense", "scores", "votes"])
@pytest.mark.parametrize("seed", range(6))
def test_ties_are_broken_as_by_trec_eval(system: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    ids = [f"d{n}" for n in random.permutation(40)]
    vectors_ND = random.integers(-1, 2, (40, 3)).astype(np.float32)
    query_QD = random.integers(-1, 2, (15, 3)).astype(np.float32)
    scores_QN = np.maximum(query_QD @ vectors_ND.T, 0) if system != "dense" else query_QD @ vectors_ND.T
    lists = [random.permutation(40)[: random.integers(1, 4)].tolist() for _ in range(15)]
    relevant, tie_N = Relevant.from_lists(lists), order_ties(pa.array(ids))
    nobody_Q = np.full(15, -1)
    if system == "dense":
        ranks_R = rank_relevant(query_QD, relevant, lambda: [(0, vectors_ND)], tie_N=tie_N)
    elif system == "scores":
        ranks_R = rank_by_scores(scores_QN, relevant, None, tie_N)
    else:
        ranks_R = rank_by_votes(csr_matrix(scores_QN), relevant, nobody_Q, 5, tie_N)[0]
    found = compute_rank_metrics(ranks_R, relevant, [10]).per_query
    judge = pytrec_eval.RelevanceEvaluator(
        {f"q{q}": {ids[row]: 1 for row in rows} for q, rows in enumerate(lists)}, set(NAMES)
    )
    runs = {f"q{q}": dict(zip(ids, scores.tolist(), strict=True)) for q, scores in enumerate(scores_QN)}
    expected = judge.evaluate(runs)
    for name, own in zip(NAMES, OWN, strict=True):
        np.testing.assert_allclose(found[own], [expected[f"q{q}"][name] for q in range(15)], atol=1e-6)
