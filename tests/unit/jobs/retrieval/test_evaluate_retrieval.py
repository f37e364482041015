"""Metrics of queries with seen and with unseen labels, against trec_eval on each group alone."""

from __future__ import annotations

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
