"""A training loop around a subclass of transformers' Trainer, such as TRL's, which does the training steps.

    TrainerLoop (TrainerCallback)    evaluations, checkpoints, history and progress, as in TrainingLoop
      └ Trainer, made by the task    batches, loss, optimizer

Checkpoints have the layout of TrainingLoop's and are also published atomically, but with the trainer's state (weights,
optimizer, training step) in place of DeepSpeed's. Only one worker trains.
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
from ratchet.models.engine import group_weights
from ratchet.models.loading import silence_transformers


class TrainerState:
    """The checkpoint state of the trainer, behind the methods of DeepSpeed's engine that TrainingLoop calls."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        """Folder that the trainer writes its checkpoints into. None: not set yet."""
        self.loaded: Path | None = None
        """The checkpoint to resume from. None: start from the beginning."""

    def save_checkpoint(self, folder: str, tag: str, **options: Any) -> None:
        assert self.folder is not None
        (made,) = self.folder.glob("checkpoint-*")
        made.rename(Path(folder) / tag)

    def load_checkpoint(self, folder: str, tag: str, **options: Any) -> None:
        self.loaded = Path(folder) / tag

    def destroy(self) -> None:
        """Do nothing: the trainer releases its state by itself."""


class TrainerLoop(TrainingLoop, TrainerCallback):
    """Runs the trainer, and is its callback. In each training step the trainer calls `on_log` before `on_save`."""

    task: TrainerTask
    seen = 0.0
    """Number of tokens that the trainer has processed before the current training step."""

    def _start_engine(self) -> TrainerState:
        # DeepSpeed may have set it in an earlier step. accelerate takes it as the sign of a multi-process launcher.
        os.environ.pop("LOCAL_RANK", None)
        return TrainerState()

    def _train(self) -> None:
        options = self.options
        history = self.history
        if history.epoch == options.epochs:
            return
        # On the same disk as the checkpoints, into which it is renamed. `Checkpoints.restore` removes leftovers.
        folder = self.engine.folder = self.checkpoints.folder / f"unfinished-trainer-{self.checkpoints.start_id}"
        decay = {"layer_decay": options.layer_decay, "weight_decay": options.weight_decay}
        optimizer = torch.optim.AdamW(group_weights(self.task.model, **decay), lr=options.learning_rate)
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
        """Record a training step, evaluate the model if that is due, and set `control.should_save`."""
        if "loss" not in (logs := others["logs"]):
            return  # the trainer's summary at the end of the training
        before = self.seen
        self.seen = state.num_input_tokens_seen
        loss = float(logs["loss"])
        rate = self._learning_rate(len(self.history.loss))
        self._check_finite(loss)
        self._record(self.seen - before, loss, rate, float(logs["grad_norm"]), **self.task.describe_step(logs))
        due = self._is_save_due(self._is_overdue(), self.preemption.is_due())
        control.should_save = self._end_step() or due

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._save()  # the trainer has written its part


class TrainerTask(FinetuneTask):
    """A training task whose training steps are done by a Trainer."""

    loop = TrainerLoop

    def make_trainer(self, folder: Path, optimizers: tuple[Any, Any], callback: TrainerCallback) -> Any:
        """Return a Trainer of the task's model that logs each training step and saves only when the callback asks for
        it. folder: its output folder. optimizers: (optimizer, learning rate scheduler)."""
        raise NotImplementedError

    def describe_step(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Return additional values of a training step, such as the mean reward, from the trainer's logs."""
        raise NotImplementedError
