"""Curves of a training run while it runs. TensorBoard always gets them:

    tensorboard --logdir .ratchet/steps

MLflow and Weights & Biases get them if they are installed and configured by their own environment variables
(MLFLOW_TRACKING_URI; WANDB_API_KEY or WANDB_MODE). A run that resumes after a kill continues its curves. The result of
the step contains the curves too, but not these logs.

Each service is called from a thread of its own, so an outage neither ends nor delays a training: values wait in memory
until the service answers again, and are given up if it does not at the end of the training.
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

QUEUED = 10_000
"""Calls that wait for a service. Later ones are given up."""

CLOSE_SECONDS = 20.0
"""Time that a service has at the end of a training."""

LONGEST_WAIT = 60.0
"""Seconds between two tries, at most. They double from 1 second on."""


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
        self.client, self.run_id = mlflow_runs.find_run("ratchet.step", run_id, name)
        self.client.update_run(self.run_id, status="RUNNING")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(mlflow_runs.make_name(name), value, now, step) for name, value in values.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def close(self, failed: bool) -> None:
        self.client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")


class WandB:
    """A run of the project WANDB_PROJECT (default `ratchet`). Its id is that of the step."""

    def __init__(self, folder: Path, name: str, run_id: str) -> None:
        import wandb  # an optional dependency

        project = os.environ.get("WANDB_PROJECT", "ratchet")
        folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(console="off", silent=True, init_timeout=CLOSE_SECONDS)
        self.run: Any = wandb.init(
            project=project, id=run_id[:32], name=name, resume="allow", dir=str(folder), settings=settings
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


Sink = TensorBoard | MLflow | WandB
"""A service that takes scalars."""


class BackgroundSink:
    """Opens and calls a sink in a thread. Nothing that the sink raises, and no call that hangs, reaches the caller."""

    def __init__(self, name: str, open_sink: Callable[[], Sink], log_file: Path) -> None:
        """log_file: gets a line for each failure."""
        self.name, self.open_sink, self.log_file = name, open_sink, log_file
        self.failing = False
        self.calls: queue.Queue[Callable[[Sink], None] | None] = queue.Queue(QUEUED)
        self.closing = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"tracking {name}", daemon=True)
        self.thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._put(lambda sink: sink.log(step, values))

    def close(self, failed: bool) -> None:
        """Wait until the sink has everything, at most CLOSE_SECONDS. One that is failing is tried once more."""
        self.closing.set()
        self._put(lambda sink: sink.close(failed))
        self._put(None)
        self.thread.join(CLOSE_SECONDS)
        if self.thread.is_alive() or self.failing:
            self._note(f"not written when the training ended: {self.calls.qsize()} values")

    def _put(self, call: Callable[[Sink], None] | None) -> None:
        try:
            self.calls.put_nowait(call)
        except queue.Full:
            self._note(f"{QUEUED} values are waiting; one more is given up")

    def _run(self) -> None:
        sink, wait = None, 1.0
        while (call := self.calls.get()) is not None:
            while True:
                try:
                    sink = sink or self.open_sink()
                    call(sink)
                    break
                except Exception as error:
                    self._note(f"{type(error).__name__}: {error}")
                    if self.closing.is_set():
                        return
                    self.closing.wait(wait)
                    wait = min(LONGEST_WAIT, 2 * wait)
            self.failing, wait = False, 1.0

    def _note(self, what: str) -> None:
        self.failing = True
        # A full disk is no reason to end the training.
        with suppress(OSError), self.log_file.open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self.name}: {' '.join(what.split())}\n")


class Tracker(AbstractContextManager["Tracker"]):
    """Writes scalars below `folder` (None: nowhere) and to the configured services.

    run_id: identifies the run when it resumes. first_step: the next training step; what an earlier attempt wrote for
    this step and later ones is hidden. Failures of services are written to `tracking.log` in the folder."""

    def __init__(self, folder: Path | None, name: str, first_step: int, run_id: str) -> None:
        self.sinks: list[BackgroundSink] = []
        if folder is None:
            return
        log = folder / "tracking.log"
        self.sinks.append(BackgroundSink("TensorBoard", lambda: TensorBoard(folder, name, first_step), log))
        if os.environ.get("MLFLOW_TRACKING_URI") and importlib.util.find_spec("mlflow"):
            self.sinks.append(BackgroundSink("MLflow", lambda: MLflow(name, run_id), log))
        if (os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE")) and importlib.util.find_spec("wandb"):
            self.sinks.append(BackgroundSink("W&B", lambda: WandB(folder, name, run_id), log))

    @property
    def failing(self) -> list[str]:
        """The names of the services whose last call failed."""
        return [sink.name for sink in self.sinks if sink.failing]

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log scalars. Names with a slash are shown in groups. Returns at once."""
        for sink in self.sinks:
            sink.log(step, dict(values))

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for sink in self.sinks:
            sink.close(failed=kind is not None)
