"""Finished runs as inputs of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from store_contents import made

from ratchet.errors import DamagedError, InputError
from ratchet.orchestrator.finished_run import find_run, use_store
from ratchet.orchestrator.job_interface import Context, Job, Result
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.step import step
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.backend import Backend


@dataclass(frozen=True)
class Config:
    size: int = 1


@dataclass(frozen=True)
class Inputs:
    texts: Path


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    return Result({})


JOB = Job("read", version=1, config=Config, inputs=Inputs, run=run)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def make_run(store: Store, **texts: str) -> RunLog:
    """Begin a run with a step for each keyword, whose result is a file with the text."""
    run_log = RunLog.begin(store, "toy", {})
    commits = {name: made(store, f"{run_log.run_id}-{name}", text) for name, text in texts.items()}
    steps = [
        {"name": name, "step_id": one.step_id, "object": one.manifest}
        for name, one in commits.items()
    ]
    steps.append({"name": "failed", "step_id": "0" * 64, "object": None})
    run_log.write("plan.json", {"recipe": "toy", "steps": steps})
    return run_log


@pytest.mark.slow
def test_results_of_a_run_are_inputs(store: Store) -> None:
    first, second = make_run(store, data="some text"), make_run(store, data="some text")
    with use_store(store):
        plans = [
            Plan(
                [taken := find_run(log.run_id).step("data"), step("read", JOB, texts=taken)], store
            )
            for log in (first, second)
        ]
    for log, plan in zip((first, second), plans, strict=True):
        assert plan.steps[f"{log.run_id}/data"].state == "done"
        assert plan.missing() == ["read"]
        assert (plan.inputs("read", verified=True).texts / "a.txt").read_text() == "some text"
    assert plans[0].steps["read"].step_id == plans[1].steps["read"].step_id


class Remote(Backend):
    """A backend whose local folder holds copies only."""

    downloads = True


def test_plan_downloads_nothing(store: Store) -> None:
    log = make_run(store, data="some text")
    with use_store(store):
        taken = find_run(log.run_id).step("data")
    (file,) = store.root.glob("objects/*/a.txt")
    file.parent.chmod(0o755)
    file.unlink()
    with pytest.raises(DamagedError, match=r"a\.txt: missing"):
        Plan([taken], store)
    store.backend = Remote(store.root)
    assert Plan([taken], store).missing() == []


def test_prefix_of_an_id_finds_the_newest_run(store: Store) -> None:
    run_log = make_run(store, data="text")
    with use_store(store):
        assert find_run(run_log.run_id[:13]).run_id == run_log.run_id


@pytest.mark.parametrize(
    ("wanted", "said"), [("nosuch", "expected the id of a run"), ("", "newest are")]
)
def test_an_unknown_run_is_refused_with_the_newest_ones(
    store: Store, wanted: str, said: str
) -> None:
    run_log = make_run(store, data="text")
    with use_store(store), pytest.raises(InputError, match=said) as error:
        find_run(wanted)
    assert run_log.run_id in str(error.value)


def test_steps_that_the_run_did_not_finish_are_refused(store: Store) -> None:
    run_log = make_run(store, data="text")
    with use_store(store):
        found = find_run(run_log.run_id)
    for name in ("failed", "dat"):
        with pytest.raises(InputError, match="expected one of data"):
            found.step(name)


def test_a_result_that_was_removed_is_refused_with_the_fix(store: Store) -> None:
    run_log = make_run(store, data="text")
    plan = run_log.steps()
    plan[0]["step_id"] = "1" * 64
    run_log.write("plan.json", {"recipe": "toy", "steps": plan})
    with use_store(store), pytest.raises(InputError, match="give the command of that run again"):
        find_run(run_log.run_id).step("data")


def test_without_a_store_the_error_says_so() -> None:
    with pytest.raises(InputError, match="no store given"):
        find_run("20260101")
