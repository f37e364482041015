"""distill: train a student on a teacher's distributions over the student's own answers (on-policy distillation).

With probability `lmbda` a training step takes answers that the student samples to its questions, else the targets of
the samples. The loss is the generalized Jensen-Shannon divergence between teacher and student at each token of an
answer (Agarwal et al. 2024, "On-Policy Distillation of Language Models"; TRL's GKDTrainer). The student learns how to
go on after its own mistakes, which targets do not contain. Each worker loads the teacher beside the student, in
evaluation mode and without gradients.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from ratchet.jobs import needs
from ratchet.jobs.answers.chat_options import check_chat
from ratchet.jobs.answers.lengths import DISTILLED
from ratchet.jobs.model_checks import check_decoder_model, check_length
from ratchet.jobs.on_policy.options import OnPolicyConfig, check_training, check_turns, fill_options
from ratchet.jobs.training import config as training
from ratchet.orchestrator.job_interface import (
    Context,
    Fraction,
    Job,
    Needs,
    Parents,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    Result,
    Unit,
)

LABELS = 1280
"""Labels whose logits take as much memory as those of a chunk, of which the divergence keeps ten arrays; see
`ratchet.models.losses.generalized_jsd.CHUNK`."""
LEARNING_RATES = {"lora": 1e-4, "full": 1e-5}
"""Method -> learning rate if the setting is None."""


@dataclass(frozen=True)
class Config(OnPolicyConfig):
    batch_size: Annotated[PositiveInt, Unit("samples")] = 16
    """Number of samples per training step, over all workers."""
    lmbda: Fraction = 0.5
    """Probability that a training step takes the student's own answers instead of the targets (lambda in the paper)."""
    beta: Fraction = 0.5
    """Weight of the teacher in the mixture of the divergence. 0: forward KL divergence. 1: reverse KL divergence."""
    teacher_temperature: PositiveFloat = 1.0
    """Temperature of the divergence: divides the logits of teacher and student."""
    top_p: PositiveFraction = 1.0
    """Sample only from the most likely tokens, up to this total probability. 1: from all tokens."""
    max_length: Annotated[int, Ge(4), Unit("tokens")] | None = None
    """Maximum length of a sample of `train` and `valid`. Longer samples are left out and counted (metrics `too_long`
    and `valid/too_long`). None: 2048, or as many as the model has positions beside max_new_tokens."""
    learning_rate: PositiveFloat | None = None  # type: ignore[assignment]
    """Peak learning rate, reached after the warm-up. None: 1e-4 with LoRA, and 1e-5 for all weights."""
    metric: Literal["accuracy", "eval_loss"] = "accuracy"
    """Metric on `valid` that selects the best model. The loss is always computed on the targets of all held-out
    samples."""


@dataclass(frozen=True)
class Options(Config, training.FinetuneConfig):
    """The settings in the form that finetuning jobs share: one epoch of `steps` training steps."""

    epochs: int = 1
    start_from: Literal["base", "current_best"] = "current_best"


@dataclass(frozen=True)
class Inputs:
    base: Path
    """The student: a Hugging Face folder of a causal language model."""
    teacher: Path
    """The teacher: a Hugging Face folder of a causal language model. Tokens that both models have need the same ids."""
    train: Path
    """Samples with one turn each, as written by `prepare_tasks`, or by `rejection_sample` from a teacher's answers."""
    valid: Path
    """Held-out samples of the same task."""
    current_best: Path | None = None
    """A LoRA adapter of the base, such as the output of `sft`; with method=lora only. Training starts from it, and has
    to improve on it. None: training starts with a new adapter."""
    verifier_file: Path | None = None
    """The Python file with the verifier, if `prepare_tasks` got one."""


def make_options(config: Config) -> Options:
    """Return the settings in the form that finetuning jobs share. The last training step is always a checkpoint."""
    return fill_options(config, Options, LEARNING_RATES)


def check_samples(train: Path) -> None:
    """Raise InputError for conversations of several turns."""
    check_turns("distill", train, "which the student answers")


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Check the inputs at plan time. Raises InputError for an adapter as `current_best` with method=full, and
    ModelError for a teacher with another vocabulary."""
    check_training("distill", config, make_options(config), inputs, parents)
    length = DISTILLED.resolve(config, inputs.base) + config.max_new_tokens
    for folder in (inputs.base, inputs.teacher):
        if folder is not None:
            from ratchet.models.decoder import decoder

            check_decoder_model(folder)
            decoder.check_head(folder)
            check_length("distill: max_length + max_new_tokens", folder, length)
    if inputs.base is not None and inputs.teacher is not None:
        from ratchet.models.decoder import decoder

        decoder.find_shared_tokens(inputs.teacher, inputs.base)
    if inputs.train is not None:
        check_samples(inputs.train)
    check_chat(inputs, parents, trains=True)
    return Result(note=DISTILLED.describe(config, inputs.base))


@needs.of_model
def estimate_needs(step: needs.ModelStep) -> Needs | None:
    config = step.config
    length = DISTILLED.resolve(config, step.folder) + config.max_new_tokens
    tokens = step.graph_tokens(config.batch_size, length)
    labels = min(tokens, LABELS)
    teacher = needs.find_model_folder("teacher", step.inputs, step.parents)
    step = replace(step, config=make_options(config))
    return step.estimate_training(
        "causal", length=length, tokens=tokens, labels=labels, teacher=teacher
    )


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.jobs.on_policy.distill_training import DistillTask
    from ratchet.jobs.training.finetuning import run_finetuning

    check_samples(inputs.train)  # at plan time they may not have existed
    return run_finetuning(context, make_options(config), DistillTask, inputs)[0]


JOB = Job(
    "distill",
    Config,
    Inputs,
    run,
    check=check,
    needs=estimate_needs,
    divide=training.divide_batches,
    outputs=training.OUTPUTS,
    metrics=lambda own: [
        *training.list_training_metrics(make_options(own)),
        "samples",
        "too_long",
        "valid/too_long",
        "on_policy_steps",
    ],
)
