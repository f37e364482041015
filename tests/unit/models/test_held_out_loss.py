"""The held-out loss, against its definition in float64."""

from __future__ import annotations

import numpy as np
import pytest

from ratchet.models.search.held_out_loss import (
    TEMPERATURES,
    compute_list_losses,
    compute_losses,
    sum_exponentials,
)
from ratchet.models.search.ranks import Relevant, score_relevant

QUERIES, DOCUMENTS = 300, 40


def make_vectors(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(QUERIES + DOCUMENTS, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors[:QUERIES], vectors[QUERIES:]


def define_losses(scores_QN: np.ndarray, lists: list[list[int]]) -> np.ndarray:
    losses_TQ = []
    for temperature in TEMPERATURES:
        logits_QN = scores_QN / temperature
        log_p_QN = logits_QN - np.log(
            np.exp(logits_QN - logits_QN.max(1, keepdims=True)).sum(1, keepdims=True)
        )
        log_p_QN -= logits_QN.max(1, keepdims=True)
        losses_TQ.append(
            [-log_p_QN[q, rows].mean() if rows else np.nan for q, rows in enumerate(lists)]
        )
    table = np.array(losses_TQ)
    return table[np.nanmean(table, axis=1).argmin()]


def test_held_out_losses_over_parts() -> None:
    query_QD, document_ND = make_vectors()
    lists = [[q % DOCUMENTS, (q * 7 + 3) % DOCUMENTS] if q % 5 else [] for q in range(QUERIES)]
    lists = [list(dict.fromkeys(rows)) for rows in lists]
    relevant, exclude_Q = Relevant.from_lists(lists), np.full(QUERIES, -1)
    exclude_Q[::5] = 4
    parts = [
        sum_exponentials(query_QD, document_ND[rows], rows.start, exclude_Q, "cpu")
        for rows in (slice(0, 0), slice(0, 13), slice(13, DOCUMENTS))
    ]
    scores_R = score_relevant(query_QD, relevant, [(0, document_ND)])
    found = compute_losses(np.logaddexp.reduce(parts), scores_R, relevant)
    scores_QN = (query_QD @ document_ND.T).astype(np.float64)
    scores_QN[::5, 4] = -np.inf
    np.testing.assert_allclose(found, define_losses(scores_QN, lists), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
def test_a_factor_on_all_scores_is_no_gain(factor: float) -> None:
    random = np.random.default_rng(1)
    lists = [random.normal(size=10) + 2 * (np.arange(10) == 0) for _ in range(30)]
    places = [np.array([0])] * 30
    before, after = (
        compute_list_losses(lists, places),
        compute_list_losses([factor * one for one in lists], places),
    )
    np.testing.assert_allclose(before, after, rtol=1e-6)


def test_lists_without_a_positive_have_no_loss() -> None:
    lists = [np.array([1.0, 0.0]), np.array([1.0, 0.0]), np.zeros(0)]
    found = compute_list_losses(
        lists, [np.array([0]), np.zeros(0, np.int64), np.zeros(0, np.int64)]
    )
    assert np.isnan(found[1:]).all()
    assert found[0] == pytest.approx(0.0, abs=1e-3)
