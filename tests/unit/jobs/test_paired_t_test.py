"""The test that decides whether a reranker may teach."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student_t

from ratchet.jobs.retrieval.implementation.finetune_reranker import paired_t_test


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=40), st.integers(0, 9))
def test_a_lead_is_tested_query_by_query(pairs: list[tuple[float, float]], seed: int) -> None:
    """By the formula; and close to what flipping the signs of the differences gives, where that is smooth."""
    before, after = (np.array(side) for side in zip(*pairs, strict=True))
    lead = after - before
    found = paired_t_test(before.tolist(), after.tolist())
    if lead.std(ddof=1) < 1e-3:
        assert 0 <= found <= 1
        return
    t = lead.mean() / (lead.std(ddof=1) / np.sqrt(len(lead)))
    assert found == pytest.approx(float(student_t.sf(t, len(lead) - 1)), abs=1e-6)


def test_a_test_by_random_signs_says_the_same() -> None:
    random = np.random.default_rng(3)
    before = random.random(200)
    after = np.clip(before + random.normal(0.02, 0.25, 200), 0, 1)
    lead = after - before
    flips = random.choice([-1, 1], (20_000, 200))
    by_chance = float(((flips * lead).mean(1) >= lead.mean()).mean())
    assert paired_t_test(before.tolist(), after.tolist()) == pytest.approx(by_chance, abs=0.02)
    assert paired_t_test([0.5] * 9, [0.5] * 9) == 1.0
    assert paired_t_test([0.0, 0.0, 0.0], [5e-324, 0.0, 0.0]) == 1.0
