"""Intervals and tests over groups of rows: against textbook formulas, all sign flips, and simulated experiments."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ratchet.data import significance
from ratchet.data.significance import (
    compute_half_width,
    compute_p_value,
    describe_groups,
    loses,
    number_groups,
    sum_by_group,
)


def simulate(
    random: np.random.Generator, questions: int, epochs: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reciprocal ranks of 1 to 3 queries per question under models that are equally good: of the one before, and of
    several epochs that are alike. Return (before [Q], after [E, Q], the question of each query [Q])."""
    group_Q = np.repeat(np.arange(questions), random.integers(1, 4, questions))
    hard_Q = random.normal(0, 1, questions)[group_Q] + random.normal(0, 1, len(group_Q))

    def draw(*parts: np.ndarray) -> np.ndarray:
        rank_Q = np.maximum(1, np.exp(np.clip(1.2 * hard_Q + sum(parts) + 1.5, 0, 6)).astype(int))
        return np.where(rank_Q <= 25, 1 / rank_Q, 0.0)

    def noise(size: float) -> np.ndarray:
        return random.normal(0, 0.8 * size, questions)[group_Q] + random.normal(
            0, 0.6 * size, len(group_Q)
        )

    shared_Q = noise(0.5)
    before_Q = draw(noise(0.5), noise(0.3))
    return before_Q, np.array([draw(shared_Q, noise(0.3)) for _ in range(epochs)]), group_Q


@pytest.mark.slow
def test_false_positives_over_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a point of the nominal 5 %. A t-test over queries, which ignores both, passes far more often."""
    monkeypatch.setattr(significance, "FLIPS", 399)
    random, passed, by_t_test = np.random.default_rng(0), 0, 0
    experiments = 3000
    for number in range(experiments):
        before_Q, after_EQ, group_Q = simulate(random, 80, 4)
        sums = [sum_by_group(one, group_Q) for one in (before_Q, *after_EQ)]
        passed += compute_p_value(sums[0], np.array(sums[1:]), number) <= 0.05
        best_Q = after_EQ[after_EQ.mean(1).argmax()]
        by_t_test += stats.ttest_rel(best_Q, before_Q, alternative="greater").pvalue <= 0.05
    assert passed / experiments == pytest.approx(0.05, abs=0.01)
    assert by_t_test / experiments > 0.1


@pytest.mark.slow
@given(st.integers(0, 999), st.integers(1, 9), st.integers(1, 3))
def test_p_value_counts_sign_flips(seed: int, groups: int, epochs: int) -> None:
    random = np.random.default_rng(seed)
    before_C = random.integers(0, 4, groups) / 4
    after_EC = random.integers(0, 4, (epochs, groups)) / 4
    difference_EC = after_EC - before_C
    best = difference_EC.sum(1).max()
    flips = [
        (np.array(signs) * difference_EC).sum(1).max()
        for signs in itertools.product((-1, 1), repeat=groups)
    ]
    exact = np.mean([one >= best - 1e-9 for one in flips])
    assert compute_p_value(before_C, after_EC) == pytest.approx(exact, abs=0.025)


def test_what_does_not_differ_is_not_significant() -> None:
    assert compute_p_value(np.full(9, 0.5), np.full((2, 9), 0.5)) == 1.0
    assert compute_p_value(np.zeros(40), np.ones(40)) == pytest.approx(1 / 10_000)


@pytest.mark.slow
@given(st.lists(st.floats(0, 1), min_size=2, max_size=30))
def test_interval_of_independent_rows(values: list[float]) -> None:
    value_Q = np.array(values)
    expected = stats.t.ppf(0.975, len(value_Q) - 1) * stats.sem(value_Q)
    assert compute_half_width(value_Q, np.arange(len(value_Q))) == pytest.approx(expected, abs=1e-9)


@given(st.integers(0, 999), st.integers(2, 12), st.integers(1, 4))
def test_the_interval_of_equal_groups_is_that_of_their_means(
    seed: int, groups: int, size: int
) -> None:
    value_CS = np.random.default_rng(seed).random((groups, size))
    expected = stats.t.ppf(0.975, groups - 1) * stats.sem(value_CS.mean(1))
    group_Q = np.repeat(np.arange(groups), size)
    assert compute_half_width(value_CS.ravel(), group_Q) == pytest.approx(expected, abs=1e-9)
    with_unknown = np.append(value_CS.ravel(), np.nan), np.append(group_Q, groups)
    assert compute_half_width(*with_unknown) == pytest.approx(expected, abs=1e-9)


def test_a_single_group_has_no_interval() -> None:
    assert np.isnan(compute_half_width(np.array([0.1, 0.9]), np.array([3, 3])))


@pytest.mark.slow
def test_an_interval_holds_the_mean_as_often_as_it_says() -> None:
    random, experiments = np.random.default_rng(1), 1500
    means, widths = [], []
    for _ in range(experiments):
        before_Q, _, group_Q = simulate(random, 60, 1)
        means.append(before_Q.mean())
        widths.append(compute_half_width(before_Q, group_Q))
    within = np.abs(np.array(means) - np.mean(means)) <= np.array(widths)
    assert within.mean() == pytest.approx(0.95, abs=0.02)


def test_a_fall_by_more_than_its_error_is_a_loss() -> None:
    before_C = np.array([1.0, 0.5, 0.25, 0.5])
    assert loses(before_C, before_C - 0.1)
    assert not loses(before_C, before_C + np.array([0.1, -0.2, 0.1, -0.1]))
    assert not loses(before_C, before_C)
    assert not loses(before_C, before_C + 0.1)


def test_groups_are_numbered_by_name() -> None:
    table = pa.table({"id": ["4", "2", "3", "1"], "paper": ["b", "a", "b", "c"]})
    assert number_groups(table, "paper").tolist() == [1, 0, 1, 2]
    assert number_groups(table).tolist() == [3, 1, 2, 0], "each row is a group"
    assert sum_by_group(np.array([1.0, np.nan, 2.0, 4.0]), np.array([1, 0, 1, 2])).tolist() == [
        0.0,
        3.0,
        4.0,
    ]


@given(
    st.lists(
        st.text(st.characters(min_codepoint=1, codec="utf-8"), max_size=3) | st.sampled_from("abé𝒙")
    )
)
def test_the_numbers_of_groups_are_numpys(names: list[str]) -> None:
    column = pa.chunked_array([names[:2], names[2:]], pa.string())
    expected = np.unique(np.array(names, str), return_inverse=True)[1]
    assert np.array_equal(number_groups(pa.table({"id": column})), expected)


def test_a_long_query_does_not_widen_the_names_of_all_groups() -> None:
    names = [f"q{i}" for i in range(2_000)] + ["x" * 20_000]
    tracemalloc.start()
    number_groups(pa.table({"id": names}))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


@pytest.mark.parametrize("groups", [6, 20, 81])
def test_groups_show_what_the_widest_interval_says(groups: int) -> None:
    """For an even number, exactly; a metric of other values has a narrower interval."""
    value_Q = np.arange(groups) % 2.0
    width = compute_half_width(value_Q, np.arange(groups))
    said = describe_groups(groups)
    if width > 0.5:
        assert said == f"{groups} groups of queries, too few to show a metric"
    else:
        assert float(said.split("± ")[1].split()[0]) == pytest.approx(width, abs=0.006)
    assert describe_groups(4).endswith("too few to show a metric")
