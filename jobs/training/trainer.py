"""The trainer of one worker: task -> engine -> last checkpoint -> training steps, evaluations, checkpoints.

All workers do the same at the same training step. The first worker decides what depends on a clock.
"""

import math
import os
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from peft import PeftModel

from ratchet.errors import ArtifactError
from ratchet.jobs.training.checkpoints import Checkpoints
from ratchet.jobs.training.config import FinetuneConfig
from ratchet.jobs.training.schedule import TrainHistory, is_better, is_finished, learning_rate_at
from ratchet.jobs.training.task import FinetuneTask
from ratchet.jobs.training.tracking import Tracker
from ratchet.jobs.training.worker import WorkerInfo
from ratchet.models import engine
from ratchet.models.free_cores import FreeCores
from ratchet.orchestrator.job_interface import Context, Progress

FIRST_CHECKPOINT_SECONDS = 300.0
"""Time until the first checkpoint if save_steps is None."""
LEAST_CHECKPOINT_SECONDS = 60.0
MOST_SAVING = 0.05
"""Largest fraction of the time that checkpoints may take: a model that takes long to save is saved less often."""
KEEPS_THREADS = "RATCHET_FIXED_THREADS" in os.environ
"""Whether a training on CPUs keeps its number of threads, of which its last digits depend."""
POLL_SECONDS = 5.0
"""Time between polls for notices, which wait for all workers. Clouds give a notice at least 30 s before."""


def seed_generators(*numbers: int) -> None:
    """Seed the global generators of torch (on all devices), numpy and Python from these numbers.

    Dropout draws from them. The random numbers of a training step are a function of (seed, training step, worker), so a
    resumed run draws the same, and checkpoints need no generator states."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


class Trainer:
    """One worker of a training run."""

    def __init__(
        self,
        context: Context,
        config: FinetuneConfig,
        make_task: Callable[[WorkerInfo, FinetuneConfig], FinetuneTask],
        worker: WorkerInfo,
        find_notice: Callable[[], Any] = lambda: None,
        report_metrics: Callable[[dict[str, Any]], Any] = lambda metrics: None,
    ) -> None:
        """find_notice: returns the notice that machines of the run will be taken away, or None. report_metrics: shows
        the metrics of an evaluation on Ray's dashboard. Both are collective."""
        engine.silence_libraries()
        self.context = context
        self.config = config
        self.worker = worker
        self.device = torch.device(worker.device)
        self.cores: FreeCores | None = None
        if self.device.type == "cpu":
            self.cores = FreeCores(context.resources.threads)
        else:
            torch.cuda.set_device(self.device)
        seed_generators(config.seed)
        self.task = make_task(worker, config)
        if self.device.type == "cpu":
            engine.configure_malloc(self.task.model)
        self.engine = self._start_engine()
        self.total_steps = sum(self.task.steps[: config.epochs])
        learning_rate_at(0, self.total_steps, config)  # raises before anything is computed
        self.checkpoints = Checkpoints(context, config, worker, self.task, self.engine)
        self.history = TrainHistory()
        self.tokens = 0.0
        """Number of tokens of all workers since the last report."""
        self.find_notice = find_notice
        self.report_metrics = report_metrics
        self.notice: Any = None
        self.saved_at = self.reported_at = self.polled_at = time.monotonic()
        self.checkpoint_seconds = FIRST_CHECKPOINT_SECONDS
        """Time between checkpoints, and so the most work that is lost when the run is killed."""

    def _start_engine(self) -> Any:
        """Return the DeepSpeed engine, or an object with its methods to save, load and release the optimizer state."""
        config = self.config
        return engine.start_engine(
            self.task.model,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
            zero_stage=config.shard_stage,
            device=self.device.type,
            offload=config.offload,
        )

    def run(self) -> None:
        """Train from the last checkpoint, or from the start, to the end."""
        try:
            self.history = self.checkpoints.restore()
            logs = None
            if self.worker.rank == 0:
                logs = self.context.logs
            first_step = len(self.history.loss) + 1
            self.tracker = Tracker(logs, self.context.step, first_step)
            self._evaluate_start()
            self._train()
        finally:
            self.engine.destroy()  # DeepSpeed keeps references to it and to the model

    def _evaluate_start(self) -> None:
        """Evaluate the model that training must improve on, unless the checkpoint has this evaluation."""
        history = self.history
        if not history.weights:
            history.weights = list(PeftModel.get_nb_trainable_parameters(self.task.model))
            history.counts = self.task.counts
            history.tables = self.task.tables
        if not history.start:
            self._report("evaluating the start")
            found = self.task.evaluate_start()
            history.start = found.metrics
            history.start_sums = found.sums
            self._log(0, "valid", found.metrics)
        self.task.model.train()
        self.saved_at = self.reported_at = time.monotonic()

    def _train(self) -> None:
        while not is_finished(self.history, self.config):
            save_is_due = self._train_step()
            was_evaluated = self._end_step()
            if was_evaluated or save_is_due:
                self._save()

    def _train_step(self) -> bool:
        """Do one training step: the gradient of the batch, microbatch by microbatch, then the update. Return whether a
        checkpoint is due."""
        config = self.config
        done = len(self.history.loss)
        if self.cores is not None and not KEEPS_THREADS:
            self.cores.look()
        seed_generators(config.seed, done, self.worker.rank)
        batch = self.task.batch(self.history.epoch, self.history.step)
        loss_sum = torch.zeros((), device=self.device)
        for number, microbatch in enumerate(batch.microbatches, start=1):
            engine.start_part(self.engine)
            loss = self.task.loss(microbatch)
            is_last = number == len(batch.microbatches)
            self.engine.set_gradient_accumulation_boundary(
                is_last
            )  # gradients are all-reduced once
            self.engine.backward(loss)
            loss_sum = loss_sum + loss.detach()

        is_first_worker = self.worker.rank == 0
        save_is_due = float(is_first_worker and self._is_save_due(done + 1))
        poll_is_due = float(is_first_worker and time.monotonic() - self.polled_at > POLL_SECONDS)
        share = float(loss_sum) / self.worker.world_size
        mean_loss, num_tokens, save_is_due, poll_is_due = self._all_reduce(
            [share, batch.num_tokens, save_is_due, poll_is_due]
        )
        self._check_finite(mean_loss)

        learning_rate = learning_rate_at(done, self.total_steps, config)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate
        gradient_norm = self._compute_gradient_norm()
        self.engine.step()
        engine_norm = self.engine.get_global_grad_norm()
        if engine_norm is not None:
            gradient_norm = float(engine_norm)

        self._record(num_tokens, mean_loss, learning_rate, gradient_norm)
        has_notice = poll_is_due > 0 and self._find_new_notice()
        return has_notice or save_is_due > 0

    def _find_new_notice(self) -> bool:
        """Return whether there is another notice than at the last poll. Collective."""
        self.polled_at = time.monotonic()
        known = self.notice
        self.notice = self.find_notice()
        return self.notice is not None and self.notice != known

    def _compute_gradient_norm(self) -> float:
        """Return the norm before clipping with ZeRO stage 0, where DeepSpeed returns none, but every worker has the
        whole gradient; else 0."""
        if self.config.shard_stage:
            return 0.0
        weights = self.task.model.parameters()
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients))

    def _end_step(self) -> bool:
        """Count a training step, and evaluate the model if that is due. Return whether it was evaluated."""
        history = self.history
        history.step += 1
        epoch_ended = history.step == self.task.steps[history.epoch]
        if epoch_ended:
            history.epoch += 1
            history.step = 0
        is_due = self._is_evaluation_due(epoch_ended)
        if is_due:
            self._evaluate()
        return is_due

    def _is_evaluation_due(self, epoch_ended: bool) -> bool:
        done = len(self.history.loss)
        is_last = done == self.total_steps
        if self.config.kept_steps:
            return is_last or done in self.config.kept_steps
        if self.config.eval_steps is not None:
            return is_last or done % self.config.eval_steps == 0
        return epoch_ended

    def _evaluate(self) -> None:
        """Evaluate the model in its current state, and save it if it is the best so far."""
        history = self.history
        done = len(history.loss)
        self._report(f"evaluating after training step {done}")
        found = self.task.evaluate()
        previous = 0
        if history.evaluated_at:
            previous = history.evaluated_at[-1]
        losses = history.loss[previous:]
        history.evaluations.append({"loss": sum(losses) / len(losses), **found.metrics})
        history.evaluated_at.append(done)
        history.sums.append(found.sums)
        self._log(done, "valid", found.metrics)
        self.report_metrics({"training_step": done, **history.evaluations[-1]})
        is_best = self._is_best(found.metrics)
        if is_best:
            history.best = len(history.evaluations) - 1
        if is_best or self.config.keeps_all:
            self._save_model(is_best, done)

    def _is_best(self, metrics: Mapping[str, float]) -> bool:
        """Return whether the model of an evaluation with these metrics is to be returned so far."""
        history = self.history
        if history.best is None or self.config.keep == "last":
            return True
        return is_better(self.config.metric, metrics, history.evaluations[history.best])

    def _save_model(self, is_best: bool, done: int) -> None:
        saved = []
        for weight in self.task.model.parameters():
            if weight.requires_grad or self.config.method == "full":
                saved.append(weight)
        with engine.gather_on_first_worker(saved):
            if self.worker.rank == 0:
                self.checkpoints.save_model(is_best, done if self.config.keeps_all else None)

    def _check_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise ArtifactError(
                f"step {self.context.step}: the loss is {loss} at training step {len(self.history.loss) + 1}; expected"
                " a finite number; lower learning_rate, or raise temperature"
            )

    def _record(
        self,
        num_tokens: float,
        loss: float,
        learning_rate: float,
        gradient_norm: float,
        **others: float,
    ) -> None:
        """Append the values of a training step to the history, and report them. others: `TrainHistory.others`."""
        history = self.history
        history.loss.append(loss)
        history.learning_rate.append(learning_rate)
        history.gradient_norm.append(gradient_norm)
        for name, value in others.items():
            history.others.setdefault(name, []).append(value)
        done = len(history.loss)
        numbers = {
            "loss": loss,
            "learning_rate": learning_rate,
            "gradient_norm": gradient_norm,
            **others,
        }
        self._log(done, "train", numbers)
        self.tokens += num_tokens
        if time.monotonic() - self.reported_at > 0.5 or done == self.total_steps:
            self._report(f"epoch {history.epoch + 1} of {self.config.epochs}")

    def _is_save_due(self, done: int) -> bool:
        """Return whether a checkpoint is due after `done` training steps, by this worker's clock."""
        if self.config.save_steps is not None:
            return done % self.config.save_steps == 0
        return time.monotonic() - self.saved_at > self.checkpoint_seconds

    def _log(self, done: int, group: str, values: Mapping[str, float]) -> None:
        self.tracker.log(done, {f"{group}/{name}": value for name, value in values.items()})

    def _report(self, stage: str) -> None:
        """Report the progress, with the speed since the last report."""
        now = time.monotonic()
        speed = self.tokens / max(1e-9, now - self.reported_at)
        self.tokens = 0.0
        self.reported_at = now
        if self.worker.rank != 0:
            return
        history = self.history
        numbers = {name: values[-1] for name, values in history.others.items()}
        if history.loss:
            numbers["loss"] = history.loss[-1]
        if speed:
            numbers["tokens_per_s"] = speed
        metric = self.config.metric
        evaluations = [one[metric] for one in history.evaluations if metric in one]
        done = len(history.loss)
        self.context.progress(
            Progress(done, self.total_steps, "steps", stage, numbers, tuple(evaluations))
        )

    def _all_reduce(self, numbers: list[float]) -> list[float]:
        """Return the sums over workers. Collective."""
        if self.worker.world_size == 1:
            return numbers
        tensor = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def _save(self) -> None:
        began = time.monotonic()
        self.checkpoints.save(self.history)
        self.saved_at = self.reported_at = time.monotonic()
        took = self.saved_at - began
        self.checkpoint_seconds = max(LEAST_CHECKPOINT_SECONDS, took / MOST_SAVING)
        self.tokens = 0.0
