"""Live tracking of the curves of a training run. They are always written for TensorBoard:

    tensorboard --logdir .ratchet/steps

They are also sent to MLflow and Weights & Biases, if these are installed and configured by their own environment
variables (MLFLOW_TRACKING_URI; WANDB_API_KEY or WANDB_MODE). A resumed run continues its curves. The result of the step
contains the curves too, but not these logs.

Each service is called from its own thread, so an outage neither ends nor delays the training. What a service refuses
is missing in its curves.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tensorboardX import SummaryWriter

from ratchet.orchestrator.job_interface import mlflow_runs

CLOSE_SECONDS = 20.0
"""Time that a service gets at the end of a training to take the waiting values."""


class TensorBoard:
    def __init__(self, folder: Path, name: str, first_step: int) -> None:
        # Names of event files contain only the second: two attempts within one second would share a file.
        suffix = f".{os.getpid()}-{first_step}"
        self.writer = SummaryWriter(
            str(folder / name.replace("/", "-")),
            purge_step=first_step,
            flush_secs=10,
            filename_suffix=suffix,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self, failed: bool) -> None:
        self.writer.close()


class MLflow:
    """An MLflow run in the experiment MLFLOW_EXPERIMENT_NAME (default `ratchet`), found again by a tag."""

    def __init__(self, name: str, run_id: str) -> None:
        self.client, self.run_id = mlflow_runs.find_run("ratchet.step", run_id, name)
        self.client.update_run(self.run_id, status="RUNNING")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        for name, value in values.items():
            self.client.log_metric(self.run_id, mlflow_runs.make_name(name), value, now, step)

    def close(self, failed: bool) -> None:
        self.client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")


class WandB:
    """A W&B run in the project WANDB_PROJECT (default `ratchet`). Its id is the first 32 characters of `run_id`."""

    def __init__(self, folder: Path, name: str, run_id: str) -> None:
        import wandb  # an optional dependency

        project = os.environ.get("WANDB_PROJECT", "ratchet")
        folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(console="off", silent=True, init_timeout=CLOSE_SECONDS)
        self.run: Any = wandb.init(
            project=project,
            id=run_id[:32],
            name=name,
            resume="allow",
            dir=str(folder),
            settings=settings,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


Sink = TensorBoard | MLflow | WandB
"""A service that takes scalars."""


class BackgroundSink:
    """Opens and calls a sink in a thread. Errors and hanging calls of the sink do not affect the caller."""

    def __init__(self, name: str, open_sink: Callable[[], Sink], log_file: Path) -> None:
        """log_file: file to which a line is appended when the sink begins to fail."""
        self.name = name
        self.open_sink = open_sink
        self.log_file = log_file
        self.failing = False
        self.calls: queue.SimpleQueue[Callable[[Sink], None] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name=f"tracking {name}", daemon=True)
        self.thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.calls.put(lambda sink: sink.log(step, values))

    def close(self, failed: bool) -> None:
        """Wait at most CLOSE_SECONDS until the sink has the values."""
        self.calls.put(lambda sink: sink.close(failed))
        self.calls.put(None)
        self.thread.join(CLOSE_SECONDS)
        if self.thread.is_alive():
            self._note("did not take all values before the training ended")

    def _run(self) -> None:
        sink = None
        for call in iter(self.calls.get, None):
            try:
                sink = sink or self.open_sink()
                call(sink)
                self.failing = False
            except Exception as error:
                if not self.failing:
                    self._note(f"{type(error).__name__}: {error}")

    def _note(self, what: str) -> None:
        self.failing = True
        # A full disk is no reason to end the training.
        with suppress(OSError), self.log_file.open("a") as file:
            file.write(f"{self.name}: {' '.join(what.split())}\n")


class Tracker(AbstractContextManager["Tracker"]):
    """Writes scalars below `folder` and to the configured services. folder: None: nothing is written.

    run_id: identifies the run when it resumes. first_step: the next training step; TensorBoard hides the values that an
    earlier attempt wrote for it and later steps. Failures of services are written to `tracking.log` in the folder."""

    def __init__(self, folder: Path | None, name: str, first_step: int, run_id: str) -> None:
        self.sinks: list[BackgroundSink] = []
        if folder is None:
            return
        log = folder / "tracking.log"
        self.sinks.append(
            BackgroundSink("TensorBoard", lambda: TensorBoard(folder, name, first_step), log)
        )
        if os.environ.get("MLFLOW_TRACKING_URI") and importlib.util.find_spec("mlflow"):
            self.sinks.append(BackgroundSink("MLflow", lambda: MLflow(name, run_id), log))
        if (
            os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE")
        ) and importlib.util.find_spec("wandb"):
            self.sinks.append(BackgroundSink("W&B", lambda: WandB(folder, name, run_id), log))

    @property
    def failing(self) -> list[str]:
        """The names of the services whose last call failed."""
        return [sink.name for sink in self.sinks if sink.failing]

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log scalars; return at once. Services group names by the part before a slash."""
        for sink in self.sinks:
            sink.log(step, dict(values))

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sink in self.sinks:
            sink.close(failed=kind is not None)
