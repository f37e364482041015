"""Notes of results, such as that finetuning kept its base, and return values that are not results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import Context, Job, Resources, Result
from ratchet.orchestrator.job_interface.worker import run_job
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.reporting.run_summary import (
    build_summary_table,
    list_notes,
    list_unreported_metrics,
)
from ratchet.orchestrator.reporting.sweep_data import SweepReport, Trial, format_label
from ratchet.orchestrator.step import Row, Summary, step
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.manifest import Manifest

NOTE = "kept the base: no epoch was better"


@dataclass(frozen=True)
class Config:
    size: int = 1


@dataclass(frozen=True)
class Inputs:
    pass


def run(context: Context, config: Config, inputs: Inputs) -> Any:
    return (
        None
        if config.size == 0
        else {"total": 1}
        if config.size == 1
        else Result({"total": config.size})
    )


JOB = Job("toy", version=1, config=Config, inputs=Inputs, run=run)


def plan_with_result(folder: Path, result: dict[str, Any], metric: str) -> tuple[Plan, Summary]:
    tuned = step("tuned", JOB)
    summary = Summary([Row("iteration 0", {"loss": tuned.metric(metric)}, [tuned])])
    plan = Plan([tuned], Store.open(str(folder / "store")))
    (folder / "out").mkdir()
    plan.steps["tuned"].manifest = Manifest.build(folder / "out", result)
    return plan, summary


def test_a_row_says_that_its_finetune_kept_the_base(tmp_path: Path) -> None:
    plan, summary = plan_with_result(tmp_path, {"metrics": {"loss": 0.5}, "note": NOTE}, "loss")
    assert build_summary_table(plan, summary) == {"iteration 0": {"loss": 0.5, "time": None}}
    assert list_notes(plan, summary) == {"iteration 0": NOTE}


def test_a_row_without_notes_is_as_the_recipe_calls_it(tmp_path: Path) -> None:
    plan, summary = plan_with_result(tmp_path, {"metrics": {"loss": 0.5}, "note": ""}, "loss")
    assert list_notes(plan, summary) == {}
    assert list_unreported_metrics(plan, summary) == []


def test_unreported_metric_is_named(tmp_path: Path) -> None:
    plan, summary = plan_with_result(tmp_path, {"metrics": {"loss": 0.5, "kept": "base"}}, "lost")
    assert list_unreported_metrics(plan, summary) == [
        "row 'iteration 0', column 'loss': step tuned reports no number 'lost'; expected one of loss; did you mean"
        " 'loss'?"
    ]


def test_the_winner_of_a_sweep_says_that_it_kept_the_base() -> None:
    trial = Trial({}, "finished", 0.5, note=NOTE)
    texts: dict[str, Any] = dict.fromkeys(
        ("recipe", "sweep_id", "metric", "command", "conclusion", "winner_command"), ""
    )
    counts: dict[str, Any] = dict.fromkeys(("started", "seconds"), 0)
    report = SweepReport(maximize=True, space={}, fixed=(), trials=[trial], **texts, **counts)
    assert format_label(report, 1) == f"trial 1 (winner) (defaults) ({NOTE})"


@pytest.mark.parametrize(("size", "given"), [(0, "None"), (1, r"\{'total': 1\}")])
def test_a_job_that_returns_no_result_is_refused(size: int, given: str, tmp_path: Path) -> None:
    context = Context(
        "a", "0" * 64, 1, tmp_path, tmp_path, Resources(workers=1, cpus=1.0, gpus=0.0)
    )
    with pytest.raises(
        InputError,
        match=rf"step a: job toy returned {given}; expected a Result; end `run` with return",
    ):
        run_job(JOB, context, Config(size), Inputs(), ())


def test_a_result_is_returned(tmp_path: Path) -> None:
    context = Context(
        "a", "0" * 64, 1, tmp_path, tmp_path, Resources(workers=1, cpus=1.0, gpus=0.0)
    )
    assert run_job(JOB, context, Config(3), Inputs(), ()) == Result({"total": 3})
