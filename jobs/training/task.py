"""What a kind of training has to say: its batches, its loss, its evaluation, and how its model is saved.

    task.batch(epoch, step)    this worker's part of a training step, as microbatches
    task.loss(microbatch)      a forward pass; the trainer calls backward on it
    task.evaluate()            metrics on held-out rows
    task.save(folder)          the trained adapter or model

The rows of a training step depend only on (seed, epoch, step), and a task scales its loss so that its mean over workers
is the loss of the whole batch. The number of workers therefore changes the result by rounding at most.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ratchet.errors import InputError
from ratchet.jobs.training.config import find_start
from ratchet.jobs.training.evaluation import Evaluation
from ratchet.jobs.training.worker import WorkerInfo, gather_objects
from ratchet.models.adapters import lora
from ratchet.models.batching import find_overhead, group_by_length
from ratchet.models.engine import load_partitioned
from ratchet.models.loading import (
    add_other_adapter,
    eval_mode,
    other_adapter,
    save_weights,
    train_in_float32,
)
from ratchet.models.pass_size import size_passes
from ratchet.orchestrator.job_interface import Resources


@dataclass(frozen=True)
class Batch:
    """One worker's part of a training step."""

    microbatches: Sequence[Any]
    """The arguments of `loss`, one after the other: parts that fit in memory. All workers have equally many."""
    num_tokens: int


class FinetuneTask:
    """Base class of the kinds of training. Each worker constructs one. A subclass loads the model, and defines `steps`,
    `batch`, `loss` and `evaluate`."""

    job: ClassVar[str]
    """The name of the job, for errors."""
    model: Any
    """A torch module. Parameters that require a gradient are trained, in float32 or in bfloat16 with float32 master
    weights."""
    steps: Sequence[int]
    """Number of training steps of each epoch."""

    def __init__(self, worker: WorkerInfo, config: Any, inputs: Any, resources: Resources) -> None:
        """config: a FinetuneConfig. inputs: has `base` and `current_best`, as the inputs of every finetuning job."""
        self.worker = worker
        self.config = config
        self.inputs = inputs
        self.resources = resources
        self.device = "cpu" if worker.device == "cpu" else "cuda"
        self.multiple, self.pass_tokens = size_passes(
            self.device, resources.batch_tokens, training=True
        )
        self.counts: dict[str, int] = {}
        """Metrics of the result that are known before training, such as numbers of samples."""
        self.tables: dict[str, list[dict[str, float | int | str]]] = {}
        """Tables of the result that are known before training."""
        self._ahead: dict[tuple[int, int], Future[Any]] = {}
        self._thread = ThreadPoolExecutor(1)

    def prepare(self, epoch: int, step: int) -> Any:
        """Return what `batch` needs of a training step and a CPU can prepare, such as token ids. Not collective."""
        raise NotImplementedError

    def take_prepared(self, epoch: int, step: int) -> Any:
        """Return what `prepare` returns, and start to prepare the next training step in a thread."""
        ahead = self._ahead.pop((epoch, step), None)
        if ahead is None:
            prepared = self.prepare(epoch, step)
        else:
            prepared = ahead.result()
        if step + 1 < self.steps[epoch]:
            self._ahead[epoch, step + 1] = self._thread.submit(self.prepare, epoch, step + 1)
        return prepared

    def finish_preparing(self) -> None:
        """Wait for the thread. Call it before an evaluation tokenizes: a tokenizer keeps the truncation of the last
        call, also if it came from another thread."""
        wait(self._ahead.values())

    def batch(self, epoch: int, step: int) -> Batch:
        """Return this worker's part of a training step. Collective."""
        raise NotImplementedError

    def loss(self, microbatch: Any) -> Tensor:
        """Return this worker's share of the loss: the loss of the batch is the sum over microbatches, averaged over
        workers. Collective."""
        raise NotImplementedError

    def evaluate(self) -> Evaluation:
        """Evaluate the model in its current state. Collective; all workers return the same evaluation."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write the trained adapter or model. Called on one worker."""
        if self.config.method == "full":
            save_weights(self.model, find_start(self.config, self.inputs)[0], folder)
        else:
            lora.save(self.model, folder)

    def evaluate_start(self) -> Evaluation:
        """Evaluate the model that training must improve on. Called on all workers before training, not on a resume."""
        current_best = self.inputs.current_best
        if current_best is None or self.config.start_from == "current_best":
            return self.evaluate()  # it is the model that training starts from
        if self.config.method == "full":
            return self.evaluate_current_best()
        with other_adapter(self.model, current_best), eval_mode(self.model):
            return self.evaluate_current_best()

    def evaluate_current_best(self) -> Evaluation:
        """Evaluate the current best where training starts from the base. If it is an adapter, the model has it now."""
        return self.evaluate()

    def load(
        self,
        load_model: Callable[..., Any],
        base: Path,
        *,
        zero_stage: int | None = None,
        **options: Any,
    ) -> Any:
        """Load a model to train. zero_stage: None: `config.shard_stage`. options: further arguments of `load_model`."""
        config = self.config
        options = {
            "dtype": config.dtype,
            "device": self.device,
            "quantization": config.quantization,
        } | options
        if zero_stage is None:
            zero_stage = config.shard_stage
        with load_partitioned(
            options["dtype"], self.device, zero_stage=zero_stage, offload=config.offload
        ):
            return load_model(base, training=True, **options)

    def make_trainable(self, model: Any, **options: Any) -> Any:
        """Return the model to train: itself with method=full, else with an adapter, which is the current best one if
        training starts from it, or a new one.

        options: `modules_to_save` and `task` of `ratchet.models.adapters.lora.attach`."""
        config = self.config
        if config.method == "lora":
            model = self._add_adapter(model, **options)
        if config.gradient_checkpointing:
            model.gradient_checkpointing_enable(
                gradient_checkpointing_kwargs={"use_reentrant": False}
            )
        return model

    def _add_adapter(self, model: Any, **options: Any) -> Any:
        config = self.config
        current_best = self.inputs.current_best
        continues = current_best is not None and config.start_from == "current_best"
        if continues:
            with_adapter = lora.load(
                model, current_best, trainable=True, lora_dropout=config.lora_dropout
            )
        else:
            with_adapter = lora.attach(
                model,
                lora_r=config.lora_r,
                lora_alpha=config.lora_alpha,
                lora_dropout=config.lora_dropout,
                target_modules=config.target_modules,
                seed=config.seed,
                **options,
            )
        train_in_float32(with_adapter)
        if config.shard_stage == 3 and current_best is not None and not continues:
            add_other_adapter(with_adapter, current_best)
        return with_adapter

    def count_steps(self, smallest: int, steps: int) -> list[int]:
        """Return the number of training steps of each epoch. smallest: the fewest rows of a step. Raises InputError if
        a worker would get no row in a step."""
        if smallest < self.worker.world_size:
            raise InputError(
                f"{self.job}.workers: {self.worker.world_size} given, for training steps of {smallest} rows; expected"
                " at most one worker per row; lower workers, or raise batch_size"
            )
        return [steps] * self.config.epochs

    def group_rows(self, lengths: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Group rows of similar length into forward passes. Return the row indices of each pass."""
        overhead = find_overhead(self.device, self.model.config.get_text_config().hidden_size)
        return group_by_length(lengths, self.pass_tokens, self.multiple, overhead)

    def equalize(self, passes: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return forward passes, with empty ones for a worker that has fewer than another. Collective."""
        missing = max(gather_objects(len(passes))) - len(passes)
        return [*passes, *[np.zeros(0, np.int64)] * missing]

    def split_rows(self, rows: int) -> np.ndarray:
        """Return the indices of the rows that this worker evaluates, a consecutive range of `rows`."""
        return np.array_split(np.arange(rows), self.worker.world_size)[self.worker.rank]
