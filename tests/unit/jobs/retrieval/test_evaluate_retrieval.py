"""Metrics of queries with seen and with unseen labels, against trec_eval on each group alone; ranks by the first
dimensions of the vectors, against a full sort."""

from __future__ import annotations

import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.jobs.retrieval.evaluate_retrieval import Config, list_metrics
from ratchet.jobs.retrieval.ranking import compute_by_seen
from ratchet.models.search.rank_metrics import compute_rank_metrics
from ratchet.models.search.ranks import Relevant
from ratchet.models.search.truncated_search import rank_truncated

DOCUMENTS = 30


@settings(max_examples=25)
@given(data=st.data(), queries=st.integers(1, 12))
def test_each_group_has_the_metrics_of_its_queries_alone(data: Any, queries: int) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 999)))
    seen_Q = np.array(data.draw(st.lists(st.booleans(), min_size=queries, max_size=queries)))
    rankings = [random.permutation(DOCUMENTS).tolist() for _ in range(queries)]
    positives = [
        random.choice(DOCUMENTS, random.integers(0, 4), replace=False).tolist()
        for _ in range(queries)
    ]
    ranks = [rankings[q].index(row) + 1 for q, rows in enumerate(positives) for row in rows]
    metrics = compute_rank_metrics(
        np.array(ranks, np.int64), Relevant.from_lists(positives), (5, 25)
    )
    group_Q = random.integers(0, 4, queries)
    found = compute_by_seen(metrics, seen_Q, group_Q)

    names = {
        "map": "map",
        "mrr": "recip_rank",
        "map@25": "map_cut_25",
        "r@25": "recall_25",
        "ndcg@5": "ndcg_cut_5",
    }
    measures = {"map", "recip_rank", "map_cut.25", "recall.25", "ndcg_cut.5"}
    for group, wanted in (("seen", True), ("unseen", False)):
        own = [q for q in range(queries) if seen_Q[q] == wanted and positives[q]]
        keys = {name for name in found if name.startswith(f"{group}/")}
        if not own:
            assert not keys
            continue
        assert found[f"{group}/queries"] == len(own)
        run = {
            f"q{q}": {f"d{row}": -float(rank) for rank, row in enumerate(rankings[q])} for q in own
        }
        qrels = {f"q{q}": {f"d{row}": 1 for row in positives[q]} for q in own}
        theirs = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(run).values()
        assert (f"{group}/map@25/interval" in keys) == (len(set(group_Q[own])) > 1)
        for ours, their in names.items():
            assert found[f"{group}/{ours}"] == pytest.approx(
                np.mean([one[their] for one in theirs]), abs=1e-6
            )
    assert all(np.isfinite(float(value)) for value in found.values())
    assert {name.removesuffix("/interval") for name in found} <= set(
        list_metrics(Config(k=(5, 25)))
    )


@settings(max_examples=25)
@given(
    seed=st.integers(0, 999), dim=st.integers(1, 7), depth=st.integers(1, 40), unit=st.booleans()
)
def test_ranks_by_the_first_dimensions_are_those_of_sorting(
    seed: int, dim: int, depth: int, unit: bool
) -> None:
    """The corpus has duplicates, and some queries are documents, which are not ranked."""
    random = np.random.default_rng(seed)
    corpus_ND, query_QD = random.standard_normal((DOCUMENTS, 8)), random.standard_normal((6, 8))
    corpus_ND[-4:] = corpus_ND[:4]
    if unit:
        corpus_ND, query_QD = (
            x / np.linalg.norm(x, axis=1, keepdims=True) for x in (corpus_ND, query_QD)
        )
    corpus_ND, query_QD = corpus_ND.astype(np.float32), query_QD.astype(np.float32)
    own_Q = random.choice(DOCUMENTS, 6, replace=False) * random.integers(0, 2, 6) - 1
    lists = [
        [row for row in random.choice(DOCUMENTS, 3, replace=False).tolist() if row != own]
        for own in own_Q
    ]
    relevant = Relevant.from_lists([sorted(rows) for rows in lists])
    blocks = [(0, corpus_ND[:11]), (11, corpus_ND[11:])]
    few_R, again_R = rank_truncated(query_QD, relevant, lambda: blocks, dim, depth, own_Q, "cpu")
    few_Nd, few_Qd = corpus_ND[:, :dim].astype(float), query_QD[:, :dim].astype(float)
    if unit:
        few_Nd, few_Qd = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (few_Nd, few_Qd))
    at = 0
    for q, rows in enumerate(sorted(one) for one in lists):
        score_N, whole_N = few_Nd @ few_Qd[q], corpus_ND.astype(float) @ query_QD[q].astype(float)
        order = sorted(
            set(range(DOCUMENTS)) - {own_Q[q]}, key=lambda row: (-round(score_N[row], 6), row)
        )
        again = (
            sorted(order[:depth], key=lambda row: (-round(whole_N[row], 6), row)) + order[depth:]
        )
        for row in rows:
            assert few_R[at] == order.index(row) + 1
            assert again_R[at] == again.index(row) + 1
            at += 1


def test_truncated_search_memory() -> None:
    random = np.random.default_rng(0)
    query_QD = random.standard_normal((300, 8)).astype(np.float32)
    block_ND, relevant = (
        random.standard_normal((40, 8)).astype(np.float32),
        Relevant.from_lists([[3]] * 300),
    )
    peaks = []
    for count in (4, 40):
        tracemalloc.start()
        read = partial(map, lambda number: (number * 40, block_ND), range(count))
        rank_truncated(query_QD, relevant, read, 4, 30, np.full(300, -1), "cpu")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
