"""The direction of metrics."""

from __future__ import annotations

import pytest

from ratchet.orchestrator.job_interface.directions import find_direction


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("MAP@25", 1),
        ("map@25", 1),
        ("R@25", 1),
        ("P@5", 1),
        ("recall@10", 1),
        ("MRR", 1),
        ("NDCG@10", 1),
        ("EM", 1),
        ("F1", 1),
        ("accuracy", 1),
        ("pass@8", 1),
        ("tokens_per_s", 1),
        ("loss", -1),
        ("valid_loss", -1),
        ("mean rank", -1),
        ("latency_ms", -1),
        ("queries", 0),
        ("documents", 0),
        ("rows", 0),
        ("epoch", 0),
        ("learning_rate", 0),
        ("maps", 0),
        ("step", 0),
    ],
)
def test_better_is_known_by_name(metric: str, expected: int) -> None:
    assert find_direction(metric) == expected
