"""A training run whose training steps a library's trainer does: a subclass of transformers' Trainer, such as TRL's.

    TrainerLoop, its callback        evaluations, checkpoints, history, progress: those of TrainingLoop
      └ Trainer, made by the task    batches, loss, optimizer

The trainer writes its own checkpoint (weights, optimizer, training step) where TrainingLoop has DeepSpeed's, into the
same folders, which are complete or not there. One worker trains.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, TrainerCallback

from ratchet.jobs.training.finetuning import FinetuneTask
from ratchet.jobs.training.loop import TrainingLoop, seed_generators
from ratchet.jobs.training.schedule import learning_rate_at
from ratchet.models.loading import silence_transformers


class TrainerState:
    """The state of the trainer, with the methods of DeepSpeed's engine that write, read and release it."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        """Where the trainer writes. None: not made yet."""
        self.loaded: Path | None = None
        """The checkpoint from which it resumes. None: it starts."""

    def save_checkpoint(self, folder: str, tag: str, **options: Any) -> None:
        assert self.folder is not None
        (made,) = self.folder.glob("checkpoint-*")
        made.rename(Path(folder) / tag)

    def load_checkpoint(self, folder: str, tag: str, **options: Any) -> None:
        self.loaded = Path(folder) / tag

    def destroy(self) -> None:
        """The trainer ends with its loop."""


class TrainerLoop(TrainingLoop, TrainerCallback):
    """Calls the trainer, which calls it back. The trainer logs a training step before it saves."""

    task: TrainerTask
    seen = 0.0
    """Tokens that the trainer has seen when a training step begins."""

    def _start_engine(self) -> TrainerState:
        # Left by DeepSpeed in an earlier step. With it accelerate believes that a launcher started several processes.
        os.environ.pop("LOCAL_RANK", None)
        return TrainerState()

    def _train(self) -> None:
        options, history = self.options, self.history
        if history.epoch == options.epochs:
            return
        # Beside the checkpoints, on the same disk, and removed at the next start as they are.
        folder = self.engine.folder = self.checkpoints.folder / f"unfinished-trainer-{self.checkpoints.start_id}"
        trained = [weight for weight in self.task.model.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=options.learning_rate, weight_decay=options.weight_decay)
        schedule = LambdaLR(optimizer, lambda step: self._learning_rate(step) / options.learning_rate)
        trainer = self.task.make_trainer(folder, (optimizer, schedule), self)
        trainer.remove_callback(PrinterCallback)
        with silence_transformers():
            trainer.train(resume_from_checkpoint=self.engine.loaded and str(self.engine.loaded))
        shutil.rmtree(folder, ignore_errors=True)

    def _learning_rate(self, step: int) -> float:
        return learning_rate_at(min(step, self.total - 1), self.total, self.options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.seen = state.num_input_tokens_seen

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        seed_generators(self.options.seed, state.global_step, 0)

    def on_log(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Record a training step, and evaluate the model where that is due. Tell whether a checkpoint is due."""
        if "loss" not in (logs := others["logs"]):
            return  # the summary at the end
        before, self.seen = self.seen, state.num_input_tokens_seen
        loss, rate = float(logs["loss"]), self._learning_rate(len(self.history.loss))
        self._check_finite(loss)
        self._record(self.seen - before, loss, rate, float(logs["grad_norm"]), **self.task.describe_step(logs))
        due = self._is_save_due(self._is_overdue(), self.preemption.is_due())
        control.should_save = self._end_step() or due

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._save()  # the trainer has written its part


class TrainerTask(FinetuneTask):
    """A task with a trainer."""

    loop = TrainerLoop

    def make_trainer(self, folder: Path, optimizers: tuple[Any, Any], callback: TrainerCallback) -> Any:
        """Return a Trainer of the task's model that logs each training step and does not save by itself. It writes into
        the folder, and has the optimizer, the learning rate scheduler and the callback."""
        raise NotImplementedError

    def describe_step(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Return the further numbers of a training step, such as its mean reward, from what the trainer logged."""
        raise NotImplementedError
