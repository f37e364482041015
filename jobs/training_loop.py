"""A worker's part of a training: trainee -> engine -> last checkpoint -> steps, evaluations, checkpoints.

All workers do the same at the same step; what one alone decides (by its clock, say) it tells the others first.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from jobs.job import BadArtifact, BadInput, Context, Progress
from jobs.optimization import History, Options, better, rate
from jobs.preemption import Notice
from jobs.tracking import Tracker
from jobs.trail import Trail
from jobs.trainee import Place, Trainee, checkpoint_folder, gathered

CHECKPOINT_SECONDS = 300.0
"""Between checkpoints within an epoch, unless a number of steps was given: what a kill can lose."""


class Loop:
    def __init__(self, context: Context, options: Options, trainee: type, arguments: dict[str, Any]) -> None:
        import torch
        from ray import train as ray_train
        from ray.train.torch import get_device

        from models import engine

        engine.quiet()
        device = get_device()
        if device.type == "cpu":
            engine.keep_memory()
            torch.set_num_threads(max(1, int(context.resources.cpus or 1)))
        else:
            torch.cuda.set_device(device)
        about = ray_train.get_context()
        self.place = Place(about.get_world_rank(), about.get_world_size(), str(device))
        self.context, self.options, self.device = context, options, device
        torch.manual_seed(options.seed * 1000 + self.place.rank)
        self.trainee: Trainee = trainee(place=self.place, **arguments)
        self.engine = engine.start(
            self.trainee.model,
            learning_rate=options.learning_rate,
            weight_decay=options.weight_decay,
            gradient_clipping=options.gradient_clipping,
            zero_stage=options.zero_stage,
            device=device.type,
        )
        self.total = sum(self.trainee.steps[: options.epochs])
        rate(0, self.total, options)  # raises before anything is computed
        if options.checkpoints and options.checkpoints[-1] > self.total:
            raise BadInput(
                f"checkpoints: {options.checkpoints[-1]} given, of {self.total} steps in all; expected steps within"
                " them; leave it out, or train for more epochs"
            )
        self.history = History()
        self.scratch = Path(tempfile.mkdtemp(prefix="ratchet-train-"))
        # Names of checkpoints differ between lives of the workers: a folder half written by an earlier one stays apart.
        self.life = gathered(f"{context.attempt}-{os.urandom(3).hex()}")[0]
        self.saved_at = self.told_at = time.monotonic()
        self.tokens = 0.0
        self.notice = Notice()
        self.trail = Trail(context, context.work / "training.trail", "training", "steps")

    def run(self) -> None:
        try:
            self._restore()
            logs = self.context.logs if self.place.rank == 0 else None
            with Tracker(logs, self.context.step, len(self.history.loss) + 1, self.context.step_id) as self.tracker:
                self._train()
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _train(self) -> None:
        history = self.history
        if not history.start:
            self._tell("evaluating the start", 0.0)
            history.start = self.trainee.start()
            self.tracker.log(0, {f"valid/{name}": value for name, value in history.start.items()})
        self.trainee.model.train()
        self.saved_at = self.told_at = time.monotonic()
        while history.epoch < self.options.epochs:
            due = self._step()
            ended = history.step == self.trainee.steps[history.epoch]
            if ended:
                history.epoch, history.step = history.epoch + 1, 0
            evaluate = self._evaluation_due(ended)
            if evaluate:
                self._evaluate()
            if evaluate or due:
                self._save()
        if self.place.rank == 0:
            self.trail.end()

    def _evaluation_due(self, ended: bool) -> bool:
        every, done = self.options.eval_steps, len(self.history.loss)
        if self.options.checkpoints:
            return done in self.options.checkpoints or done == self.total
        return ended if every is None else done % every == 0 or done == self.total

    def _evaluate(self) -> None:
        """Measures the model as it is, and keeps it if it is the best so far."""
        from models.engine import whole_weights

        history = self.history
        self._tell(f"evaluating after step {len(history.loss)}", history.loss[-1])
        metrics = self.trainee.evaluate()
        since = history.loss[history.evaluated_at[-1] if history.evaluated_at else 0 :]
        history.evaluations.append({"loss": sum(since) / len(since), **metrics})
        history.evaluated_at.append(len(history.loss))
        self.tracker.log(len(history.loss), {f"valid/{name}": value for name, value in metrics.items()})
        best = None if history.best is None else history.evaluations[history.best]
        is_best = best is None or better(self.options.metric, metrics, best)
        if is_best:
            history.best = len(history.evaluations) - 1
        if is_best or self.options.checkpoints:
            with whole_weights(self.trainee.model):
                if self.place.rank == 0:
                    self._keep(is_best)

    def _keep(self, is_best: bool) -> None:
        """Writes the model as it is: as the best of this run, and as the checkpoint of its step, where such are kept.
        Those lie in the step's work folder, beside Ray's: a life that comes to the step again replaces its own."""
        made = self.scratch / "made"
        made.mkdir()
        self.trainee.save(made)
        if self.options.checkpoints:
            fresh = self.context.work / f"checkpoint-{self.life}"
            shutil.rmtree(fresh, ignore_errors=True)
            shutil.copytree(made, fresh)
            target = checkpoint_folder(self.context, len(self.history.loss))
            shutil.rmtree(target, ignore_errors=True)
            fresh.rename(target)
        if is_best:
            shutil.rmtree(self.scratch / "best", ignore_errors=True)
            made.rename(self.scratch / "best")
        else:
            shutil.rmtree(made)

    def _step(self) -> bool:
        """One optimizer step; whether a checkpoint is due."""
        history, options = self.history, self.options
        number = len(history.loss)
        own, tokens = 0.0, 0
        parts = self.trainee.parts(history.epoch, history.step)
        for left, part in zip(range(len(parts) - 1, -1, -1), parts, strict=True):
            share, count = part()
            self.engine.set_gradient_accumulation_boundary(left == 0)  # workers' gradients are added up once
            self.engine.backward(share)
            own, tokens = own + float(share.detach()), tokens + count
        rare = options.save_steps is None and time.monotonic() - self.saved_at > CHECKPOINT_SECONDS
        first = self.place.rank == 0
        own_numbers = [own / self.place.workers, tokens, first and rare, first and self.notice.due()]
        loss, tokens_of_all, due, ask = self._sum(own_numbers)
        if not math.isfinite(loss):
            raise BadArtifact(
                f"step {self.context.step}: the loss is {loss} at step {number + 1}; expected a number; "
                "lower learning_rate, or raise temperature"
            )
        now = rate(number, self.total, options)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = now
        before = self._norm() if options.zero_stage == 0 else None
        self.engine.step()
        norm = self.engine.get_global_grad_norm()
        norm = before if norm is None else norm
        history.loss.append(loss)
        history.learning_rate.append(now)
        history.gradient_norm.append(float(norm) if norm is not None else 0.0)
        numbers = {"loss": loss, "learning_rate": now, "gradient_norm": history.gradient_norm[-1]}
        self.tracker.log(number + 1, {f"train/{name}": value for name, value in numbers.items()})
        history.step += 1
        self.tokens += tokens_of_all
        if time.monotonic() - self.told_at > 0.5 or number + 1 == self.total:
            self._tell(f"epoch {history.epoch + 1} of {options.epochs}", loss)
        warned = ask > 0 and self.notice.given()
        return warned or (history.step % options.save_steps == 0 if options.save_steps else due > 0)

    def _norm(self) -> float:
        """Of the whole gradient, which each worker has where nothing is shared; DeepSpeed does not tell it then."""
        import torch

        gradients = [weight.grad for weight in self.trainee.model.parameters() if weight.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0

    def _tell(self, stage: str, loss: float) -> None:
        """Progress, from the first worker."""
        seconds = max(1e-9, time.monotonic() - self.told_at)
        speed, self.tokens, self.told_at = self.tokens / seconds, 0.0, time.monotonic()
        if self.place.rank == 0:
            self.trail.tell(len(self.history.loss))
            numbers = {"loss": loss, "tokens_per_s": speed} if speed else {"loss": loss} if loss else {}
            metric, done = self.options.metric, len(self.history.loss)
            found = tuple(evaluation[metric] for evaluation in self.history.evaluations)
            self.context.progress(Progress(done, self.total, "steps", stage, numbers, found))

    def _sum(self, numbers: list[float]) -> list[float]:
        """The sums over all workers."""
        import torch
        import torch.distributed as dist

        if self.place.workers == 1:
            return numbers
        tensor = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def _save(self) -> None:
        """A checkpoint of everything that decides what comes next; all workers at the same step."""
        import torch
        from ray import train as ray_train

        history, folder = self.history, self.scratch / "checkpoint"
        folder.mkdir()
        self.engine.save_checkpoint(str(folder), tag="engine", exclude_frozen_parameters=True, save_latest=False)
        torch.save(torch.get_rng_state(), folder / f"random-{self.place.rank}.pt")
        if self.place.rank == 0:
            (folder / "history.json").write_text(json.dumps(vars(history)))
            if (self.scratch / "best").exists():
                shutil.copytree(self.scratch / "best", folder / "best")
        ray_train.report(
            {"steps": len(history.loss)},
            checkpoint=ray_train.Checkpoint.from_directory(str(folder)),
            checkpoint_dir_name=f"step-{len(history.loss):08d}-{history.epoch}-{self.life}",
        )
        shutil.rmtree(folder)
        self.saved_at = self.told_at = time.monotonic()
        self.tokens = 0.0

    def _restore(self) -> None:
        """Takes up the last checkpoint of this run; else what a shorter run left, if its workers were as many."""
        from ray import train as ray_train

        checkpoint, earlier = ray_train.get_checkpoint(), self.context.earlier
        if checkpoint is None and earlier is not None and len(list(earlier.glob("random-*"))) == self.place.workers:
            checkpoint = ray_train.Checkpoint.from_directory(str(earlier))
        if checkpoint is not None:
            with checkpoint.as_directory() as kept:
                self._take_up(Path(kept))
        if self.place.rank == 0:
            self.trail.begin(len(self.history.loss))

    def _take_up(self, kept: Path) -> None:
        import torch

        self.engine.load_checkpoint(str(kept), tag="engine", load_module_strict=False)
        self.history = History(**json.loads((kept / "history.json").read_text()))
        if (state := kept / f"random-{self.place.rank}.pt").exists():  # else there were fewer workers
            torch.set_rng_state(torch.load(state))
        if self.place.rank == 0 and (kept / "best").exists():
            shutil.copytree(kept / "best", self.scratch / "best")
        self.history.resumed.append(len(self.history.loss))
