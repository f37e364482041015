"""The learning rate schedule, and the state of a training run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ratchet.errors import InputError
from ratchet.jobs.training.config import FinetuneConfig, OptimizerConfig
from ratchet.orchestrator.job_interface.directions import find_direction


@dataclass
class TrainHistory:
    """The history of a training run, from which it resumes. Every checkpoint contains it."""

    epoch: int = 0
    step: int = 0
    """Number of training steps done in the current epoch."""
    start: dict[str, float] = field(default_factory=dict)
    """Metrics before training."""
    start_sums: dict[str, list[float]] = field(default_factory=dict)
    """`Evaluation.sums` before training."""
    evaluations: list[dict[str, float]] = field(default_factory=list)
    """The metrics of each evaluation, and `loss`, the mean over the training steps since the previous evaluation."""
    evaluated_at: list[int] = field(default_factory=list)
    """Number of training steps done at each evaluation."""
    sums: list[dict[str, list[float]]] = field(default_factory=list)
    """`Evaluation.sums` of each evaluation."""
    best: int | None = None
    """Index of the best evaluation in `evaluations`. None: there is none yet."""
    loss: list[float] = field(default_factory=list)
    learning_rate: list[float] = field(default_factory=list)
    gradient_norm: list[float] = field(default_factory=list)
    others: dict[str, list[float]] = field(default_factory=dict)
    """Name -> additional values, such as the mean reward, one per training step."""
    weights: list[int] = field(default_factory=list)
    """Number of trained weights, and number of all weights, as PEFT's `print_trainable_parameters` counts them."""
    workers: int = 1
    """Number of workers that wrote the checkpoint."""
    shard_stage: int = 0
    """ZeRO stage that wrote the checkpoint."""
    counts: dict[str, int] = field(default_factory=dict)
    """`FinetuneTask.counts`."""
    tables: dict[str, list[dict[str, float | int | str]]] = field(default_factory=dict)
    """`FinetuneTask.tables`."""
    resumed: list[int] = field(default_factory=list)
    """Number of training steps done at each resume from a checkpoint."""


def is_better(metric: str, values: Mapping[str, float], than: Mapping[str, float]) -> bool:
    """Return whether the evaluation `values` is better than `than`. The name of the metric tells if lower is better.

    Ties, which are common with few held-out rows, are decided by `eval_loss` if it was measured. Without held-out
    rows there is no metric, and `values` counts as better."""
    if metric not in values:
        return True
    if values[metric] == than[metric] and "eval_loss" in values and "eval_loss" in than:
        metric = "eval_loss"
    if find_direction(metric) < 0:
        return values[metric] < than[metric]
    return values[metric] > than[metric]


def is_finished(history: TrainHistory, config: FinetuneConfig) -> bool:
    """Return whether all epochs are done, or `patience` ended the training at the last evaluation."""
    if history.epoch == config.epochs:
        return True
    if config.patience is None or history.best is None:
        return False
    return len(history.evaluations) - 1 - history.best >= config.patience


def check_steps(config: OptimizerConfig, steps: int) -> None:
    """Raise InputError for `warmup_steps` that are not less than the total `steps`, and for a checkpoint after the last
    step."""
    if config.warmup_steps is not None and config.warmup_steps >= steps:
        raise InputError(
            f"warmup_steps: {config.warmup_steps} given, of {steps} steps in all; expected fewer; lower it, or set"
            " warmup_ratio instead"
        )
    checkpoints = getattr(config, "checkpoints", ())
    if checkpoints and checkpoints[-1] > steps:
        raise InputError(
            f"checkpoints: {checkpoints[-1]} given, of {steps} training steps in all; expected training steps within"
            " them; leave it out, or train for more steps or epochs"
        )


def learning_rate_at(step: int, steps: int, config: FinetuneConfig) -> float:
    """Return the learning rate of training step 0 <= step < steps: linear warm-up, then decay to 0 or constant.

    Raises InputError as `check_steps`."""
    check_steps(config, steps)
    if config.warmup_steps is None:
        warmup = math.ceil(config.warmup_ratio * steps)
    else:
        warmup = config.warmup_steps
    if step < warmup:
        return config.learning_rate * ((step + 1) / warmup)
    if config.lr_scheduler_type == "constant":
        return config.learning_rate
    done = (step - warmup) / max(1, steps - warmup)
    if config.lr_scheduler_type == "cosine":
        decay = 0.5 * (1 + math.cos(math.pi * done))
    else:
        decay = 1 - done
    return config.learning_rate * decay
