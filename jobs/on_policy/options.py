"""What trainings of a decoder on its own answers have in common before they start."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from ratchet.errors import InputError
from ratchet.extras import require_extra
from ratchet.jobs.answers.chat_options import check_decoder_training, count_turns
from ratchet.jobs.training import config as training
from ratchet.jobs.training.schedule import check_steps
from ratchet.orchestrator.job_interface import Parents, PositiveFloat, PositiveInt, Tokens, Unit


@dataclass(frozen=True)
class OnPolicyConfig(training.OptimizerConfig):
    """The settings that trainings on a model's own answers have in common."""

    steps: Annotated[PositiveInt, Unit("training steps")] = 200
    """Number of training steps. Samples are drawn without replacement until all were drawn, then again."""
    checkpoints: tuple[PositiveInt, ...] = ()
    """Training steps after which the model is evaluated and saved. It is always evaluated after the last step."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature of the answers."""
    max_new_tokens: Tokens = 512
    """Maximum length of an answer, in training and at evaluations."""
    lora_r: PositiveInt = 16
    """LoRA rank of a new adapter."""
    lora_alpha: PositiveFloat = 32.0
    """LoRA alpha of a new adapter: its update is scaled by lora_alpha / lora_r."""
    valid_samples: Annotated[PositiveInt, Unit("samples")] = 256
    """Number of held-out samples that the model answers greedily at each evaluation, for the accuracy."""


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
    """Raise InputError for a missing extra, and as `check_decoder_training` does. options: the config in the form of
    `fill_options`."""
    require_extra(f"{job}: given", "grpo", "trl")
    check_decoder_training(job, config, options, inputs, parents)
    check_steps(config, config.steps)


def check_turns(job: str, train: Path, reason: str) -> None:
    """Raise InputError for conversations of several turns. reason: why one turn is expected."""
    turns = count_turns(train)
    if turns > 1:
        raise InputError(
            f"{job}.train: conversations of up to {turns} turns given ({train}); expected one turn, {reason}; give"
            " another task, such as squad-batch"
        )
