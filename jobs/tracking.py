"""A training run's curves, while it runs: for TensorBoard always,

    tensorboard --logdir .ratchet/steps

and for MLflow and Weights & Biases where they are installed and their own variables say where to (MLFLOW_TRACKING_URI;
WANDB_API_KEY or WANDB_MODE). A run that goes on after a kill goes on there too. The report has the curves as well, at
the end; they are no part of the result.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol


class Sink(Protocol):
    """Where numbers go."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self, failed: bool) -> None: ...


class TensorBoard:
    def __init__(self, folder: Path, name: str, first: int) -> None:
        from tensorboardX import SummaryWriter

        # Names of event files hold the second alone: two lives within one would write into the same.
        own = f".{os.getpid()}-{first}"
        self.writer = SummaryWriter(
            str(folder / name.replace("/", "-")), purge_step=first, flush_secs=10, filename_suffix=own
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self, failed: bool) -> None:
        self.writer.close()


class MLflow:
    """A run of the experiment MLFLOW_EXPERIMENT_NAME (else `ratchet`), found again by its tag."""

    def __init__(self, name: str, run_id: str) -> None:
        from mlflow import MlflowClient

        self.client: Any = MlflowClient()
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "ratchet")
        kept = self.client.get_experiment_by_name(title)
        experiment = kept.experiment_id if kept else self.client.create_experiment(title)
        found = self.client.search_runs([experiment], f"tags.`ratchet.step` = '{run_id}'", max_results=1)
        run = found[0] if found else self.client.create_run(experiment, tags={"ratchet.step": run_id}, run_name=name)
        self.run_id = run.info.run_id
        self.client.update_run(self.run_id, status="RUNNING")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def close(self, failed: bool) -> None:
        self.client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")


class WandB:
    """A run of the project WANDB_PROJECT (else `ratchet`), its id the step's."""

    def __init__(self, folder: Path, name: str, run_id: str) -> None:
        import wandb

        project = os.environ.get("WANDB_PROJECT", "ratchet")
        folder.mkdir(parents=True, exist_ok=True)
        quiet = wandb.Settings(console="off", silent=True)
        self.run: Any = wandb.init(
            project=project, id=run_id[:32], name=name, resume="allow", dir=str(folder), settings=quiet
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


class Tracker:
    """Writes scalars below `folder` (None: nowhere), and to the services that are set up. run_id: what finds the run
    again. first: the step that comes next; what an earlier life of the run wrote for that step and later is hidden."""

    def __init__(self, folder: Path | None, name: str, first: int, run_id: str) -> None:
        self.sinks: list[Sink] = []
        if folder is None:
            return
        self.sinks.append(TensorBoard(folder, name, first))
        if os.environ.get("MLFLOW_TRACKING_URI") and importlib.util.find_spec("mlflow"):
            self.sinks.append(MLflow(name, run_id))
        if (os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE")) and importlib.util.find_spec("wandb"):
            self.sinks.append(WandB(folder, name, run_id))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Names with a slash are shown in groups."""
        for sink in self.sinks:
            sink.log(step, values)

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for sink in self.sinks:
            sink.close(failed=kind is not None)
