"""Checkpoints of a training run: the state to resume from, the best model so far, and the models of chosen steps."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from ray import train as ray_train

from ratchet.jobs.training.schedule import TrainHistory
from ratchet.jobs.training.task import TrainTask, WorkerInfo, gather_objects
from ratchet.orchestrator.job_interface import Context


def checkpoint_folder(context: Context, step: int) -> Path:
    """The folder of the model after a training step in `OptimizationConfig.checkpoints`, while the job runs."""
    return context.work / f"checkpoint-step-{step}"


class Checkpoints:
    """Writes and restores the checkpoints of one worker."""

    def __init__(self, context: Context, worker: WorkerInfo, task: TrainTask, engine: Any) -> None:
        self.context, self.worker, self.task, self.engine = context, worker, task, engine
        self.scratch = Path(tempfile.mkdtemp(prefix="ratchet-train-"))
        # Part of the names of checkpoints: restarted workers never write into a folder that was left half written.
        self.start_id = gather_objects(f"{context.attempt}-{os.urandom(3).hex()}")[0]

    def close(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)

    def save_model(self, is_best: bool, step: int | None) -> None:
        """Write the model as it is: as the best one, and as the checkpoint of a training step. Called on one worker.

        Models of training steps are in the step's work folder. A restarted worker replaces what it wrote before.
        """
        made = self.scratch / "made"
        made.mkdir()
        self.task.save(made)
        if step is not None:
            fresh = self.context.work / f"checkpoint-{self.start_id}"
            shutil.rmtree(fresh, ignore_errors=True)
            shutil.copytree(made, fresh)
            target = checkpoint_folder(self.context, step)
            shutil.rmtree(target, ignore_errors=True)
            fresh.rename(target)
        if is_best:
            shutil.rmtree(self.scratch / "best", ignore_errors=True)
            made.rename(self.scratch / "best")
        else:
            shutil.rmtree(made)

    def save(self, history: TrainHistory) -> None:
        """Report a checkpoint of everything that training depends on. All workers call it at the same training step."""
        folder = self.scratch / "checkpoint"
        folder.mkdir()
        self.engine.save_checkpoint(str(folder), tag="engine", exclude_frozen_parameters=True, save_latest=False)
        torch.save(torch.get_rng_state(), folder / f"random-{self.worker.rank}.pt")
        if self.worker.rank == 0:
            (folder / "history.json").write_text(json.dumps(vars(history)))
            if (self.scratch / "best").exists():
                shutil.copytree(self.scratch / "best", folder / "best")
        ray_train.report(
            {"steps": len(history.loss)},
            checkpoint=ray_train.Checkpoint.from_directory(str(folder)),
            checkpoint_dir_name=f"step-{len(history.loss):08d}-{history.epoch}-{self.start_id}",
        )
        shutil.rmtree(folder)

    def restore(self) -> TrainHistory:
        """Resume from the last checkpoint of this run, else from that of a shorter run with as many workers."""
        checkpoint, earlier = ray_train.get_checkpoint(), self.context.warm_start_from
        if checkpoint is None and earlier is not None and len(list(earlier.glob("random-*"))) == self.worker.world_size:
            checkpoint = ray_train.Checkpoint.from_directory(str(earlier))
        if checkpoint is None:
            return TrainHistory()
        with checkpoint.as_directory() as folder:
            return self._load(Path(folder))

    def _load(self, folder: Path) -> TrainHistory:
        self.engine.load_checkpoint(str(folder), tag="engine", load_module_strict=False)
        history = TrainHistory(**json.loads((folder / "history.json").read_text()))
        if (state := folder / f"random-{self.worker.rank}.pt").exists():  # else there were fewer workers
            torch.set_rng_state(torch.load(state))
        if self.worker.rank == 0 and (folder / "best").exists():
            shutil.copytree(folder / "best", self.scratch / "best")
        history.resumed.append(len(history.loss))
        return history
