"""What trainings of a decoder on its own answers have in common before they start."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ratchet.errors import InputError
from ratchet.extras import require_extra
from ratchet.jobs.answers.chat_options import count_turns
from ratchet.jobs.training import config as training
from ratchet.jobs.training.schedule import check_steps
from ratchet.orchestrator.job_interface import Parents

Options = TypeVar("Options", bound=training.FinetuneConfig)


def fill_options(config: Any, kind: type[Options], rates: Mapping[str, float]) -> Options:
    """Return the settings in the form that finetuning jobs share. The last training step is always a checkpoint.

    rates: method -> learning rate if the setting is None."""
    checkpoints = tuple(sorted({*config.checkpoints, config.steps}))
    rate = config.learning_rate or rates[config.method]
    return kind(**vars(replace(config, checkpoints=checkpoints, learning_rate=rate)))


def check_training(
    job: str, config: Any, options: training.FinetuneConfig, inputs: Any, parents: Parents
) -> None:
    """Raise InputError for a missing extra, for settings that exclude each other, and for an adapter as `current_best`
    with method=full. options: the config in the form of `fill_options`."""
    require_extra(f"{job}: given", "grpo", "trl")
    increasing = list(config.checkpoints) == sorted(set(config.checkpoints))
    training.require(job, config, [("checkpoints", increasing, "increasing training steps")])
    check_steps(config, config.steps)
    training.check_no_adapter(job, config.method, inputs, parents)
    training.check_config(job, options, inputs, parents)


def check_turns(job: str, train: Path, reason: str) -> None:
    """Raise InputError for conversations of several turns. reason: why one turn is expected."""
    turns = count_turns(train)
    if turns > 1:
        raise InputError(
            f"{job}.train: conversations of up to {turns} turns given ({train}); expected one turn, {reason}; give"
            " another task, such as squad-batch"
        )
