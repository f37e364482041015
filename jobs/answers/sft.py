"""sft: supervised finetuning (LoRA or all weights) on a task's answers. The loss covers answers only.

The model is evaluated on held-out samples during training: by the loss, and by the accuracy of its answers. The best
model is kept, and the models after the training steps in `checkpoints`.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from ratchet.errors import InputError
from ratchet.jobs import needs, planned_rows
from ratchet.jobs.answers.chat_options import check_chat, check_decoder_training
from ratchet.jobs.answers.lengths import SAMPLE
from ratchet.jobs.model_checks import check_length
from ratchet.jobs.training import config as training
from ratchet.jobs.training.schedule import check_steps
from ratchet.orchestrator.job_interface import (
    Context,
    Fraction,
    Job,
    Needs,
    NonNegativeInt,
    Parents,
    PositiveFloat,
    PositiveInt,
    Result,
    Tokens,
    Unit,
)

LABELS = 1024
"""Number of labels whose logits are in memory at once, equal to `ratchet.models.losses.causal_lm_loss.CHUNK`."""
LEARNING_RATES = {"lora": 2e-4, "full": 2e-5}
"""Method -> learning rate if the setting is None. All weights together need smaller steps than an adapter."""


@dataclass(frozen=True)
class Config(training.FinetuneConfig):
    batch_size: Annotated[PositiveInt, Unit("samples")] = 16
    """Maximum number of samples per training step, over all workers. Batches of an epoch are of similar size."""
    learning_rate: PositiveFloat | None = None  # type: ignore[assignment]
    """Peak learning rate, reached after the warm-up. None: 2e-4 with LoRA, and 2e-5 for all weights."""
    lora_r: PositiveInt = 16
    """LoRA rank."""
    lora_alpha: PositiveFloat = 32.0
    """LoRA alpha: the adapter's update is scaled by lora_alpha / lora_r."""
    max_length: Annotated[int, Ge(4), Unit("tokens")] | None = None
    """Maximum length of a sample of `train` and `valid`. Longer samples are not truncated, but left out and counted
    (metrics `too_long` and `valid/too_long`). None: 2048, or as many as the model has positions."""
    checkpoints: tuple[PositiveInt, ...] = ()
    """Training steps after which the model is evaluated and saved, besides the best model. Empty: see `eval_steps`."""
    ce_weight: Fraction = 1.0
    """Weight of the cross-entropy (CE) on the targets against the KL divergence from the teacher's distributions. The
    loss is ce_weight * CE + (1 - ce_weight) * KL. Values below 1 need the input `teacher`."""
    teacher_temperature: PositiveFloat = 1.0
    """Temperature of the KL divergence: divides the logits of teacher and student."""
    valid_samples: Annotated[NonNegativeInt, Unit("samples")] | None = None
    """Number of held-out samples that the model answers at each evaluation, for the accuracy. The loss is always
    computed on all held-out samples. 0: only the loss. None: 64. With zero_stage=3, where each token of an answer
    gathers all weights from the workers, it has to be given."""
    max_new_tokens: Tokens = 512
    """Maximum length of an answer at evaluations."""
    metric: Literal["accuracy", "eval_loss"] | None = None  # type: ignore[assignment]
    """Metric on `valid` that selects the best model. None: accuracy, or eval_loss if `valid_samples` is 0."""


@dataclass(frozen=True)
class Inputs:
    base: Path
    """A Hugging Face folder of a causal language model."""
    train: Path
    """Samples written by `prepare_tasks`."""
    valid: Path
    """Held-out samples of the same task."""
    teacher: Path | None = None
    """A teacher's distributions over the tokens of `train`, written by `teacher_logprobs`."""
    current_best: Path | None = None
    """The current best adapter, which training has to improve on; with method=lora only. None: improve on the base."""
    verifier_file: Path | None = None
    """The Python file with the verifier, if `prepare_tasks` got one."""


def fill_defaults(config: Config) -> Config:
    """Return the settings with the values of those that are None and depend on others."""
    rate = config.learning_rate or LEARNING_RATES[config.method]
    answered = 64 if config.valid_samples is None else config.valid_samples
    metric = config.metric or ("accuracy" if answered else "eval_loss")
    return replace(config, learning_rate=rate, valid_samples=answered, metric=metric)


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Check inputs and settings at plan time. Raises InputError for an adapter as `current_best` with method=full, and
    for checkpoints or a warm-up after the last training step, assuming that no sample is too long."""
    expected = "a number with zero_stage=3, where answers are slow; set it to 0, and eval_loss selects the model"
    can_answer = config.shard_stage < 3 or config.valid_samples is not None
    training.require("sft", config, [("valid_samples", can_answer, expected)])
    config = fill_defaults(config)
    rules = [
        (
            "method",
            config.method == "lora" or config.start_from == "base",
            "lora to start from an adapter",
        ),
        (
            "checkpoints",
            not config.checkpoints or config.eval_steps is None,
            "none together with eval_steps",
        ),
        (
            "metric",
            config.metric == "eval_loss" or config.valid_samples != 0,
            "eval_loss where valid_samples is 0",
        ),
    ]
    training.require("sft", config, rules)
    check_decoder_training("sft", config, config, inputs, parents)
    if inputs.base is not None:
        from ratchet.models.decoder import decoder

        decoder.check_head(inputs.base)
        check_length("sft.max_length", inputs.base, SAMPLE.resolve(config, inputs.base))
    check_chat(inputs, parents, trains=True)
    samples = planned_rows.count(parents, "train", "train")
    if samples is not None:
        check_steps(config, -(-samples // config.batch_size) * config.epochs)
    return Result(note=SAMPLE.describe(config, inputs.base))


def list_metrics(config: Config) -> list[str]:
    return [
        *training.list_training_metrics(fill_defaults(config)),
        "samples",
        "too_long",
        "valid/too_long",
        "longest",
    ]


@needs.of_model
def estimate_needs(step: needs.ModelStep) -> Needs | None:
    length = SAMPLE.resolve(step.config, step.folder)
    tokens = step.graph_tokens(step.config.batch_size, length)
    labels = min(tokens, LABELS)
    return step.estimate_training("causal", length=length, tokens=tokens, labels=labels)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.jobs.answers.sft_training import SftTask
    from ratchet.jobs.training.finetuning import run_finetuning

    if config.ce_weight < 1 and inputs.teacher is None:
        raise InputError(
            f"sft.ce_weight: {config.ce_weight} given, without a teacher; expected 1; give the output of"
            " teacher_logprobs as teacher, or raise ce_weight"
        )
    return run_finetuning(context, fill_defaults(config), SftTask, inputs)[0]


JOB = Job(
    "sft",
    Config,
    Inputs,
    run,
    check=check,
    needs=estimate_needs,
    divide=training.divide_batches,
    outputs=training.OUTPUTS,
    metrics=list_metrics,
)
