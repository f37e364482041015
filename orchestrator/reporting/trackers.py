"""Log a run that has ended to MLflow and Weights & Biases: settings, the final table, the report, and the steps.

A service is used if its library is installed and its environment variables are set, as for training curves
(`ratchet.jobs.training.tracking`). On Weights & Biases, the steps are rows of a table. An outage is reported,
and delays the command by at most `SECONDS` each.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ratchet.orchestrator.job_interface.mlflow_runs import find_run, make_name
from ratchet.orchestrator.reporting import report_json
from ratchet.orchestrator.reporting.run_data import WORDS, RunReport

SECONDS = 60.0
LONGEST_VALUE = 500
"""Maximum number of characters of a parameter's value on MLflow."""


def send_report(data: RunReport, folder: Path) -> Iterator[str]:
    """Send a run to the configured services, and yield messages about failures. folder: the run's, with its reports."""
    services: dict[str, Callable[[RunReport, Path], None]] = {}
    if os.environ.get("MLFLOW_TRACKING_URI") and importlib.util.find_spec("mlflow"):
        services["MLflow"] = _write_mlflow
    if (
        os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE")
    ) and importlib.util.find_spec("wandb"):
        services["W&B"] = _write_wandb
    for name, write in services.items():
        failures = [f"not done in {SECONDS:.0f} s"]

        def attempt(
            write: Callable[[RunReport, Path], None] = write, failures: list[str] = failures
        ) -> None:
            try:
                write(data, folder)
                failures.clear()
            except Exception as error:  # a failing service must not fail the run
                failures[:] = [f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"]

        thread = threading.Thread(target=attempt, daemon=True)
        thread.start()
        thread.join(SECONDS)
        yield from (f"{name} does not have this run: {failure}" for failure in list(failures))


def list_numbers(data: RunReport) -> dict[str, float]:
    """Return the numbers of the final table by `row/column`."""
    found: dict[str, float] = {}
    for label, row in data.rows.items():
        for name, value in row.items():
            if value is not None:
                found[f"{label}/{name}"] = float(value)
    return found


def _write_mlflow(data: RunReport, folder: Path) -> None:
    client, run_id = find_run("ratchet.run", data.run_id, f"{data.title} {data.run_id}")
    _log(client, run_id, data.parameters, list_numbers(data))
    for name in ("report.html", "report.md", report_json.NAME):
        client.log_artifact(run_id, str(folder / name))
    client.set_terminated(run_id, "FINISHED" if data.status == "finished" else "FAILED")


def _log(
    client: Any, run_id: str, settings: Mapping[str, Any], numbers: Mapping[str, float]
) -> None:
    from mlflow.entities import Metric, Param

    params = []
    for name, value in settings.items():
        params.append(Param(make_name(name), str(value)[:LONGEST_VALUE]))
    metrics = []
    for name, value in numbers.items():
        metrics.append(Metric(make_name(name), float(value), 0, 0))
    client.log_batch(run_id, metrics=metrics, params=params)


def _write_wandb(data: RunReport, folder: Path) -> None:
    import wandb

    settings = wandb.Settings(console="off", silent=True, init_timeout=SECONDS / 3)
    project = os.environ.get("WANDB_PROJECT", "ratchet")
    config = {**data.parameters, "steps": {step.name: dict(step.config) for step in data.steps}}
    about: dict[str, Any] = {
        "id": data.run_id,
        "name": f"{data.title} {data.run_id}",
        "dir": str(folder),
    }
    run: Any = wandb.init(
        project=project,
        job_type=data.title,
        config=config,
        resume="allow",
        settings=settings,
        **about,
    )
    steps = []
    for step in data.steps:
        inputs = ", ".join(f"{name}: {source}" for name, source, _ in step.inputs)
        steps.append(
            [step.name, step.job, WORDS[step.status], step.seconds, step.step_id[:32], inputs]
        )
    table = wandb.Table(
        ["step", "job", "status", "seconds", "run with the curves", "inputs"], steps
    )
    run.log({"steps": table, "report": wandb.Html(str(folder / "report.html"), inject=False)})
    run.summary.update(list_numbers(data))
    run.finish(exit_code=int(data.status != "finished"))
