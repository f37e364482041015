"""Scheduling is a pure function: checked by simulation over random graphs, and on small cases by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.orchestrator.execution.schedule import (
    Demand,
    Status,
    combine,
    finished,
    to_skip,
    to_start,
)


def test_steps_that_fit_start_together_and_the_rest_wait() -> None:
    status = dict.fromkeys("abc", Status.READY)
    demand = {name: Demand(1) for name in "abc"}
    assert to_start(status, demand, Demand(2)) == ["a", "b"]
    status["a"] = Status.RUNNING
    assert to_start(status, demand, Demand(2)) == ["b"]


def test_a_large_step_is_not_overtaken_for_ever_by_small_ones() -> None:
    status = {"run": Status.RUNNING, "large": Status.READY, "small": Status.READY}
    demand = {"run": Demand(1), "large": Demand(2), "small": Demand(1)}
    assert to_start(status, demand, Demand(2)) == []


def test_steps_without_gpus_pass_one_that_waits_for_gpus() -> None:
    status = dict.fromkeys(("train", "embed", "fuse", "rerank"), Status.READY)
    status["train"] = Status.RUNNING
    demand = {"train": Demand(56, 8), "embed": Demand(28, 4)}
    demand |= {"fuse": Demand(1), "rerank": Demand(7, 1)}
    assert to_start(status, demand, Demand(64, 8)) == ["fuse"]
    status["train"] = Status.DONE
    assert to_start(status, demand, Demand(64, 8)) == ["embed", "fuse", "rerank"]


def test_steps_without_gpus_do_not_take_the_cpus_that_another_lacks() -> None:
    status = {"run": Status.RUNNING, "large": Status.READY, "small": Status.READY}
    demand = {"run": Demand(10), "large": Demand(60, 8), "small": Demand(1)}
    assert to_start(status, demand, Demand(64, 8)) == []


def test_ready_steps_that_load_the_same_are_done_by_the_largest() -> None:
    status = dict.fromkeys(("test", "corpus", "train", "score", "later"), Status.READY)
    status["later"] = Status.PENDING
    loads = dict.fromkeys(("test", "corpus", "train", "later"), "embedder") | {"score": "reranker"}
    demand = {name: Demand(1, 1) for name in status} | {"corpus": Demand(8, 8)}
    assert combine(status, loads, demand) == {"corpus": ["test", "train"]}
    status["corpus"] = Status.RUNNING
    assert combine(status, loads, demand) == {"test": ["train"]}
    del loads["train"]
    assert combine(status, loads, demand) == {}


def test_a_step_larger_than_the_cluster_starts_alone() -> None:
    assert to_start({"a": Status.READY}, {"a": Demand(8, 8)}, Demand(2)) == ["a"]


def test_gpus_count_apart_from_cpus() -> None:
    status = dict.fromkeys("ab", Status.READY)
    demand = {"a": Demand(1, 1), "b": Demand(1, 1)}
    assert to_start(status, demand, Demand(16, 1)) == ["a"]


def test_dependents_of_a_failure_are_skipped() -> None:
    status = {
        "bad": Status.FAILED,
        "child": Status.PENDING,
        "grandchild": Status.PENDING,
        "other": Status.READY,
    }
    parents = {"bad": [], "child": ["bad"], "grandchild": ["child"], "other": []}
    assert to_skip(status, parents) == {"child": "bad", "grandchild": "child"}


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, set[str]], dict[str, Demand], set[str], int]:
    size = draw(st.integers(1, 12))
    names = [f"s{i}" for i in range(size)]
    parents = {
        name: set(draw(st.lists(st.sampled_from(names[:i]), max_size=3))) if i else set()
        for i, name in enumerate(names)
    }
    demand = {name: Demand(draw(st.integers(0, 5))) for name in names}
    failing = set(draw(st.lists(st.sampled_from(names), max_size=2)))
    return parents, demand, failing, draw(st.integers(1, 4))


@pytest.mark.slow
@given(graphs())
def test_every_schedule_ends(graph) -> None:  # type: ignore[no-untyped-def]
    parents, demand, failing, cpus = graph
    order = list(parents)
    status = dict.fromkeys(order, Status.PENDING)
    for _ in range(4 * len(order) + 4):
        for name in order:
            if status[name] is Status.PENDING and all(
                status[p] is Status.DONE for p in parents[name]
            ):
                status[name] = Status.READY
        for name in to_skip(status, parents):
            status[name] = Status.SKIPPED
        for name in to_start(status, demand, Demand(cpus)):
            status[name] = Status.RUNNING
        running = [name for name in order if status[name] is Status.RUNNING]
        assert (
            sum(demand[name].cpus for name in running) <= cpus
            or len(running) == 1
            or all(demand[name].cpus == 0 for name in running[1:])
        )
        if running:
            status[running[0]] = Status.FAILED if running[0] in failing else Status.DONE
        if finished(status):
            break
    assert finished(status)
    for name in order:
        lost = any(status[p] in (Status.FAILED, Status.SKIPPED) for p in parents[name])
        assert (status[name] is Status.SKIPPED) == lost
