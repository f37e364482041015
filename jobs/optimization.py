"""How a finetune optimizes: its options, the learning rate of each step, and where it stands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from jobs.job import BadInput

Schedule = Literal["cosine", "linear", "constant"]


@dataclass(frozen=True)
class Options:
    """How to optimize. Every value changes the result."""

    epochs: int
    learning_rate: float
    """At its highest."""
    schedule: Schedule
    warmup_ratio: float
    """Share of all steps over which the rate rises from 0."""
    weight_decay: float
    gradient_clipping: float
    """Largest norm of the gradient; 0: not clipped."""
    zero_stage: int
    """What workers share: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 all weights too."""
    seed: int
    metric: str
    """Of `Trainee.evaluate`; see `better`."""
    save_steps: int | None = None
    """Steps between checkpoints within an epoch; None: about every CHECKPOINT_SECONDS."""
    eval_steps: int | None = None
    """Steps between evaluations; None: after each epoch."""
    warmup_steps: int | None = None
    """Steps over which the rate rises, instead of a share of all."""
    checkpoints: tuple[int, ...] = ()
    """Evaluate after these steps, and keep the model of each; empty: as eval_steps says, and keep the best alone."""


@dataclass
class History:
    """Where training stands; kept in every checkpoint."""

    epoch: int = 0
    step: int = 0
    """Steps done of that epoch."""
    start: dict[str, float] = field(default_factory=dict)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    """`loss` (mean over the steps since the one before) and the metrics."""
    evaluated_at: list[int] = field(default_factory=list)
    """Steps done in all, for each of them."""
    best: int | None = None
    """Index into `evaluations`."""
    loss: list[float] = field(default_factory=list)
    learning_rate: list[float] = field(default_factory=list)
    gradient_norm: list[float] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    """Steps done in all when workers took up a checkpoint."""


def better(metric: str, found: Mapping[str, float], than: Mapping[str, float]) -> bool:
    """Losses are better the smaller they are, all else the larger; where it is the same, the held-out loss decides, if
    it was measured: few rows are often answered equally well."""
    if found[metric] == than[metric] and "eval_loss" in found:
        metric = "eval_loss"
    return found[metric] < than[metric] if metric.endswith("loss") else found[metric] > than[metric]


def rate(step: int, steps: int, options: Options) -> float:
    """The learning rate of step 0 <= step < steps: rises linearly over the warm-up, then falls to 0 (or stays). Raises
    BadInput for a warm-up that the run does not outlast."""
    warmup = math.ceil(options.warmup_ratio * steps) if options.warmup_steps is None else options.warmup_steps
    if warmup >= steps and options.warmup_steps is not None:
        raise BadInput(
            f"warmup_steps: {warmup} given, of {steps} steps in all; expected fewer; lower it, or leave it out for a"
            " share of the steps"
        )
    if step < warmup:
        return options.learning_rate * ((step + 1) / warmup)
    if options.schedule == "constant":
        return options.learning_rate
    done = (step - warmup) / max(1, steps - warmup)
    return options.learning_rate * (0.5 * (1 + math.cos(math.pi * done)) if options.schedule == "cosine" else 1 - done)
