"""The training loop of one worker: task -> engine -> last checkpoint -> training steps, evaluations, checkpoints.

All workers do the same at the same training step. The first worker broadcasts decisions that depend on its clock.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from peft import PeftModel

from ratchet.errors import ArtifactError
from ratchet.jobs.training.checkpoints import Checkpoints
from ratchet.jobs.training.config import FinetuneConfig
from ratchet.jobs.training.finetuning import FinetuneTask
from ratchet.jobs.training.schedule import TrainHistory, is_better, learning_rate_at
from ratchet.jobs.training.task import WorkerInfo
from ratchet.jobs.training.tracking import Tracker
from ratchet.models import engine
from ratchet.orchestrator.job_interface import Context, Progress

CHECKPOINT_SECONDS = 300.0
"""Time between checkpoints if save_steps is None, and so the most work that is lost when the run is killed."""
POLL_SECONDS = 5.0
"""Time between polls. A poll waits for all workers. A notice comes at least 30 s before the machine is taken away."""


def seed_generators(*numbers: int) -> None:
    """Seed the global generators of torch (on all devices), numpy and Python from these numbers.

    Dropout draws from them. The random numbers of a training step are a function of (seed, training step, worker), so a
    resumed run draws the same, and checkpoints need no generator states."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


class PreemptionWatcher:
    """Polls for preemption notices of spot machines, so that a checkpoint can be written in time. Every worker has one.
    find_notice: returns the notice, or a false value."""

    def __init__(self, find_notice: Callable[[], Any]) -> None:
        self.find_notice = find_notice
        self.polled_at = time.monotonic()
        self.known = False

    def is_due(self) -> bool:
        """Return whether a poll is due by this worker's clock. The first worker decides for all."""
        return time.monotonic() - self.polled_at > POLL_SECONDS

    def poll(self) -> bool:
        """Return whether a new notice came. All workers must call it at the same training step."""
        self.polled_at = time.monotonic()
        known = self.known
        self.known = bool(self.find_notice())
        return self.known and not known


class TrainingLoop:
    """worker: this worker of the training run. find_notice: see `PreemptionWatcher`."""

    def __init__(
        self,
        context: Context,
        options: FinetuneConfig,
        task_class: type,
        arguments: dict[str, Any],
        worker: WorkerInfo,
        find_notice: Callable[[], Any],
    ) -> None:
        engine.silence_libraries()
        device = torch.device(worker.device)
        if device.type == "cpu":
            torch.set_num_threads(max(1, int(context.resources.cpus or 1)))
        else:
            torch.cuda.set_device(device)
        self.worker = worker
        self.context = context
        self.options = options
        self.device = device
        seed_generators(options.seed)
        self.task: FinetuneTask = task_class(worker=self.worker, **arguments)
        if device.type == "cpu":
            engine.configure_malloc(self.task.model)
        self.engine = self._start_engine()
        self.total = sum(self.task.steps[: options.epochs])
        learning_rate_at(0, self.total, options)  # raises before anything is computed
        self.history = TrainHistory()
        self.checkpoints = Checkpoints(context, options, self.worker, self.task, self.engine)
        self.saved_at = self.reported_at = time.monotonic()
        self.tokens = 0.0
        self.preemption = PreemptionWatcher(find_notice)

    def _start_engine(self) -> Any:
        """Return the DeepSpeed engine, or an object with its methods to save, load and release the optimizer state."""
        return engine.start_engine(
            self.task.model,
            learning_rate=self.options.learning_rate,
            layer_decay=self.options.layer_decay,
            weight_decay=self.options.weight_decay,
            max_grad_norm=self.options.max_grad_norm,
            zero_stage=self.options.zero_stage,
            device=self.device.type,
            offload=self.options.offload,
        )

    def run(self) -> None:
        try:
            self.history = self.checkpoints.restore()
            if self.worker.rank == 0:
                logs = self.context.logs
            else:
                logs = None
            with Tracker(logs, self.context.step, len(self.history.loss) + 1, self.context.step_id) as self.tracker:
                self._evaluate_start()
                self._train()
        finally:
            self.engine.destroy()  # DeepSpeed keeps references to it and to the model

    def _evaluate_start(self) -> None:
        """Evaluate the model that training must improve on, unless the checkpoint has this evaluation."""
        history = self.history
        history.weights = history.weights or list(PeftModel.get_nb_trainable_parameters(self.task.model))
        if not history.start:
            self._report("evaluating the start", 0.0)
            found = self.task.evaluate_start()
            history.start = found.metrics
            history.start_sums = found.sums
            self.tracker.log(0, {f"valid/{name}": value for name, value in history.start.items()})
        self.task.model.train()
        self.saved_at = self.reported_at = time.monotonic()

    def _train(self) -> None:
        while self.history.epoch < self.options.epochs:
            save = self._step()
            if self._end_step() or save:
                self._save()

    def _end_step(self) -> bool:
        """Count a training step, and evaluate the model if that is due. Return whether it was evaluated."""
        history = self.history
        history.step += 1
        epoch_ended = history.step == self.task.steps[history.epoch]
        if epoch_ended:
            history.epoch = history.epoch + 1
            history.step = 0
        if evaluate := self._is_evaluation_due(epoch_ended):
            self._evaluate()
        return evaluate

    def _is_evaluation_due(self, epoch_ended: bool) -> bool:
        every = self.options.eval_steps
        done = len(self.history.loss)
        if self.options.kept_steps:
            return done in self.options.kept_steps or done == self.total
        if every is None:
            return epoch_ended
        return done % every == 0 or done == self.total

    def _evaluate(self) -> None:
        """Evaluate the model in its current state, and save it if it is the best so far."""
        history = self.history
        done = len(self.history.loss)
        self._report(f"evaluating after training step {done}", history.loss[-1])
        found = self.task.evaluate()
        metrics = found.metrics
        since = history.loss[history.evaluated_at[-1] if history.evaluated_at else 0 :]
        history.evaluations.append({"loss": sum(since) / len(since), **metrics})
        history.evaluated_at.append(done)
        history.sums.append(found.sums)
        self.tracker.log(done, {f"valid/{name}": value for name, value in metrics.items()})
        if history.best is None:
            best = None
        else:
            best = history.evaluations[history.best]
        is_best = best is None or is_better(self.options.metric, metrics, best)
        if self.options.epoch is not None:
            is_best = history.epoch == self.options.epoch
        if is_best:
            history.best = len(history.evaluations) - 1
        if is_best or self.options.keeps_all:
            saved = []
            for one in self.task.model.parameters():
                if one.requires_grad or self.options.method == "full":
                    saved.append(one)
            with engine.gather_on_first_worker(saved):
                if self.worker.rank == 0:
                    self.checkpoints.save_model(is_best, done if self.options.keeps_all else None)

    def _step(self) -> bool:
        """Do one training step. Return whether a checkpoint is due."""
        history = self.history
        options = self.options
        number = len(history.loss)
        seed_generators(options.seed, number, self.worker.rank)
        own = torch.zeros((), device=self.device)
        tokens = 0
        parts = self.task.parts(history.epoch, history.step)
        for left, part in zip(range(len(parts) - 1, -1, -1), parts, strict=True):
            engine.start_part(self.engine)
            share, count = part()
            self.engine.set_gradient_accumulation_boundary(left == 0)  # gradients are all-reduced once
            self.engine.backward(share)
            own = own + share.detach()
            tokens = tokens + count
        # The first worker's clock decides for all.
        due = []
        for one in (self._is_overdue(), self.preemption.is_due()):
            due.append(self.worker.rank == 0 and one)
        loss, all_tokens, overdue, poll = self._all_reduce([float(own) / self.worker.world_size, tokens, *due])
        self._check_finite(loss)
        learning_rate = learning_rate_at(number, self.total, options)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate * group.get("lr_scale", 1.0)
        # With ZeRO stage 0 DeepSpeed returns no norm, but every worker has the whole gradient.
        gradients = []
        for weight in self.task.model.parameters():
            if weight.grad is not None:
                gradients.append(weight.grad)
        if gradients and not options.zero_stage:
            own_norm = float(torch.nn.utils.get_total_norm(gradients))
        else:
            own_norm = 0.0
        self.engine.step()
        norm = self.engine.get_global_grad_norm()
        self._record(all_tokens, loss, learning_rate, own_norm if norm is None else float(norm))
        return self._is_save_due(overdue > 0, poll > 0)

    def _check_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise ArtifactError(
                f"step {self.context.step}: the loss is {loss} at training step {len(self.history.loss) + 1}; expected"
                " a finite number; lower learning_rate, or raise temperature"
            )

    def _record(self, tokens: float, loss: float, learning_rate: float, norm: float, **others: float) -> None:
        """Append the values of a training step to the history, and report them. others: `TrainHistory.others`."""
        history = self.history
        history.loss.append(loss)
        history.learning_rate.append(learning_rate)
        history.gradient_norm.append(norm)
        for name, value in others.items():
            history.others.setdefault(name, []).append(value)
        done = len(history.loss)
        numbers = {"loss": loss, "learning_rate": learning_rate, "gradient_norm": norm, **others}
        self.tracker.log(done, {f"train/{name}": value for name, value in numbers.items()})
        self.tokens += tokens
        if time.monotonic() - self.reported_at > 0.5 or done == self.total:
            self._report(f"epoch {history.epoch + 1} of {self.options.epochs}", loss)

    def _is_overdue(self) -> bool:
        """Return whether a checkpoint is due by this worker's clock."""
        return self.options.save_steps is None and time.monotonic() - self.saved_at > CHECKPOINT_SECONDS

    def _is_save_due(self, overdue: bool, poll: bool) -> bool:
        """Return whether a checkpoint is due after a recorded training step. overdue, poll: whether a checkpoint, or a
        poll for preemption notices, is due by the clock of the first worker."""
        preempted = poll and self.preemption.poll()
        every = self.options.save_steps
        return preempted or (len(self.history.loss) % every == 0 if every else overdue)

    def _report(self, stage: str, loss: float) -> None:
        seconds = max(1e-9, time.monotonic() - self.reported_at)
        speed = self.tokens / seconds
        self.tokens = 0.0
        self.reported_at = time.monotonic()
        if self.worker.rank == 0:
            if speed:
                numbers = {"loss": loss, "tokens_per_s": speed}
            else:
                if loss:
                    numbers = {"loss": loss}
                else:
                    numbers = {}
            numbers |= {name: values[-1] for name, values in self.history.others.items()}
            metric = self.options.metric
            done = len(self.history.loss)
            evaluations = tuple(one[metric] for one in self.history.evaluations if metric in one)
            if failing := self.tracker.failing:
                stage += f" ({', '.join(failing)} failed: see tracking.log)"
            self.context.progress(Progress(done, self.total, "steps", stage, numbers, evaluations))

    def _all_reduce(self, numbers: list[float]) -> list[float]:
        if self.worker.world_size == 1:
            return numbers
        tensor = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def _save(self) -> None:
        self.checkpoints.save(self.history)
        self.saved_at = self.reported_at = time.monotonic()
        self.tokens = 0.0
