"""Curves of a training run while it runs. TensorBoard always gets them:

    tensorboard --logdir .ratchet/steps

MLflow and Weights & Biases get them if they are installed and configured by their own environment variables
(MLFLOW_TRACKING_URI; WANDB_API_KEY or WANDB_MODE). A run that resumes after a kill continues its curves. The result of
the step contains the curves too, but not these logs.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from tensorboardX import SummaryWriter


class Sink(Protocol):
    """A service that takes scalars."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self, failed: bool) -> None: ...


class TensorBoard:
    def __init__(self, folder: Path, name: str, first_step: int) -> None:
        # Names of event files contain only the second: two attempts within one second would share a file.
        suffix = f".{os.getpid()}-{first_step}"
        self.writer = SummaryWriter(
            str(folder / name.replace("/", "-")), purge_step=first_step, flush_secs=10, filename_suffix=suffix
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self, failed: bool) -> None:
        self.writer.close()


class MLflow:
    """A run of the experiment MLFLOW_EXPERIMENT_NAME (default `ratchet`). A tag identifies the run."""

    def __init__(self, name: str, run_id: str) -> None:
        from mlflow import MlflowClient  # an optional dependency
        from mlflow.entities import Metric

        self.metric_class: Any = Metric
        self.client: Any = MlflowClient()
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "ratchet")
        experiment = self.client.get_experiment_by_name(title)
        experiment_id = experiment.experiment_id if experiment else self.client.create_experiment(title)
        runs = self.client.search_runs([experiment_id], f"tags.`ratchet.step` = '{run_id}'", max_results=1)
        tags = {"ratchet.step": run_id}
        run = runs[0] if runs else self.client.create_run(experiment_id, tags=tags, run_name=name)
        self.run_id = run.info.run_id
        self.client.update_run(self.run_id, status="RUNNING")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self.metric_class(name, value, now, step) for name, value in values.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def close(self, failed: bool) -> None:
        self.client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")


class WandB:
    """A run of the project WANDB_PROJECT (default `ratchet`). Its id is that of the step."""

    def __init__(self, folder: Path, name: str, run_id: str) -> None:
        import wandb  # an optional dependency

        project = os.environ.get("WANDB_PROJECT", "ratchet")
        folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(console="off", silent=True)
        self.run: Any = wandb.init(
            project=project, id=run_id[:32], name=name, resume="allow", dir=str(folder), settings=settings
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


class Tracker:
    """Writes scalars below `folder` (None: nowhere) and to the configured services.

    run_id: identifies the run when it resumes. first_step: the next training step; what an earlier attempt wrote for
    this step and later ones is hidden.
    """

    def __init__(self, folder: Path | None, name: str, first_step: int, run_id: str) -> None:
        self.sinks: list[Sink] = []
        if folder is None:
            return
        self.sinks.append(TensorBoard(folder, name, first_step))
        if os.environ.get("MLFLOW_TRACKING_URI") and importlib.util.find_spec("mlflow"):
            self.sinks.append(MLflow(name, run_id))
        if (os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE")) and importlib.util.find_spec("wandb"):
            self.sinks.append(WandB(folder, name, run_id))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log scalars. Names with a slash are shown in groups."""
        for sink in self.sinks:
            sink.log(step, values)

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for sink in self.sinks:
            sink.close(failed=kind is not None)
