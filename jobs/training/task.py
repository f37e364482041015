"""The interface between the training loop and a job: what is trained, and on which worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch.distributed as dist
from torch import Tensor

from ratchet.jobs.training.config import find_start
from ratchet.jobs.training.evaluation import Evaluation
from ratchet.models.adapters import lora
from ratchet.models.dropout import DropoutMasks
from ratchet.models.engine import load_partitioned
from ratchet.models.loading import add_other_adapter, eval_mode, other_adapter, save_weights, train_in_float32
from ratchet.models.pass_size import size_passes
from ratchet.orchestrator.job_interface import Resources


@dataclass(frozen=True)
class WorkerInfo:
    """One worker of a training run."""

    rank: int
    world_size: int
    device: str


class FinetuneTask:
    """A model of which an adapter or all weights are trained, with its batches, loss and evaluation. Each worker makes
    one, from `worker=` and the arguments of `train`. A subclass loads the model, and adds steps, parts and evaluate."""

    job: ClassVar[str]
    """The name of the job, for errors."""
    model: Any
    """A torch module. Parameters that require a gradient are trained, in float32 or in bfloat16 with float32 master
    weights."""
    steps: Sequence[int]
    """Training steps of each epoch."""

    def __init__(self, worker: WorkerInfo, config: Any, inputs: Any, resources: Resources) -> None:
        """config: a FinetuneConfig. inputs: with `base` and `current_best`, as every finetuning job has."""
        self.worker, self.config, self.inputs, self.resources = worker, config, inputs, resources
        self.device = "cpu" if worker.device == "cpu" else "cuda"
        self.multiple, self.pass_tokens = size_passes(self.device, resources.batch_tokens, training=True)
        self.dropout = DropoutMasks(config.seed)

    def load(self, load_model: Callable[..., Any], base: Path, *, zero_stage: int | None = None, **options: Any) -> Any:
        """Load a model to train. zero_stage: None: that of the config. options: those of `load_model`."""
        config = self.config
        options = {"dtype": config.dtype, "device": self.device, "quantization": config.quantization} | options
        stage = config.zero_stage if zero_stage is None else zero_stage
        with load_partitioned(options["dtype"], self.device, zero_stage=stage, offload=config.offload):
            return load_model(base, training=True, **options)

    def make_trainable(self, model: Any, **options: Any) -> Any:
        """Return the model with the weights that are trained: all, or those of an adapter. That is a new one, or the
        current best where training starts from it.

        options: `modules_to_save` and `task` of `ratchet.models.adapters.lora.attach`."""
        config, current_best = self.config, self.inputs.current_best
        if config.method == "full":
            if config.gradient_checkpointing:
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            return model
        names, resumes = config.target_modules, config.start_from == "current_best"
        if current_best is not None and resumes:
            with_adapter = lora.load(model, current_best, trainable=True)
        else:
            with_adapter = lora.attach(
                model,
                lora_r=config.lora_r,
                lora_alpha=config.lora_alpha,
                lora_dropout=config.lora_dropout,
                target_modules=names if names == "all-linear" else [name.strip() for name in names.split(",")],
                seed=config.seed,
                **options,
            )
        train_in_float32(with_adapter)
        self.dropout.install(with_adapter)
        if config.gradient_checkpointing:
            recomputing = {"use_reentrant": False, "context_fn": self.dropout.checkpoint_contexts}
            with_adapter.gradient_checkpointing_enable(gradient_checkpointing_kwargs=recomputing)
        if config.zero_stage == 3 and current_best is not None and not resumes:
            add_other_adapter(with_adapter, current_best)
        return with_adapter

    def parts(self, epoch: int, step: int) -> Sequence[Callable[[], tuple[Tensor, int]]]:
        """Split a training step into parts that fit in memory. Each returns this worker's share of the loss and the
        number of tokens. The sum over parts, averaged over workers, is the loss of the batch. All workers return the
        same number of parts."""
        raise NotImplementedError

    def evaluate(self) -> Evaluation:
        """Evaluate the model as it is. All workers take part and return the same."""
        raise NotImplementedError

    def evaluate_current_best(self) -> Evaluation:
        """Evaluate the current best, from which training does not start. If it is an adapter, the model has it."""
        return self.evaluate()

    def evaluate_start(self) -> Evaluation:
        """Evaluate the current best model. Called on every worker before training, not after a resume."""
        current_best = self.inputs.current_best
        if current_best is None or self.config.start_from == "current_best":
            return self.evaluate()  # training starts from the model to improve on
        if self.config.method == "full":
            return self.evaluate_current_best()
        with other_adapter(self.model, current_best), eval_mode(self.model):
            return self.evaluate_current_best()

    def save(self, folder: Path) -> None:
        """Write what training made. Called on one worker."""
        if self.config.method == "full":
            save_weights(self.model, find_start(self.config, self.inputs)[0], folder)
        else:
            lora.save(self.model, folder)

    def split_rows(self, rows: int) -> np.ndarray:
        """Return the rows that this worker evaluates. They are consecutive."""
        return np.array_split(np.arange(rows), self.worker.world_size)[self.worker.rank]


def gather_objects(value: Any) -> list[Any]:
    """Return every worker's value, by rank. All workers must call it."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
