"""grpo: train a model on its own answers by group-relative policy optimisation, with the task's verifier as reward.

For each prompt of a training step the model samples several completions. The reward of a completion is the fraction of
the prompt's questions that the verifier accepts. Most tasks have one question per prompt, so it is 1 or 0. The
advantage of a completion is its reward minus the mean over the prompt's completions, divided by their standard
deviation (Shao et al. 2024, "DeepSeekMath"). If all completions of a prompt have the same reward, the model learns
nothing from it, so it must already solve some of the prompts, as after `sft`. The loss is averaged over the tokens of
the training step (Yu et al. 2025, "DAPO"). TRL's GRPOTrainer does the training steps. Each worker answers as many of
their questions.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from ratchet.errors import InputError
from ratchet.jobs import needs
from ratchet.jobs.answers.chat_options import check_chat
from ratchet.jobs.answers.lengths import GRPO_PROMPT
from ratchet.jobs.answers.sft import LABELS
from ratchet.jobs.model_checks import check_length
from ratchet.jobs.on_policy.options import OnPolicyConfig, check_training, check_turns, fill_options
from ratchet.jobs.training import config as training
from ratchet.orchestrator.job_interface import (
    Context,
    Division,
    Job,
    Needs,
    NonNegativeFloat,
    Parents,
    PositiveFloat,
    PositiveInt,
    Result,
    Seed,
    Tokens,
    Unit,
)

LEARNING_RATES = {"lora": 1e-5, "full": 1e-6}
"""Method -> learning rate if the setting is None."""


@dataclass(frozen=True)
class Config(OnPolicyConfig):
    batch_size: Annotated[PositiveInt, Unit("questions")] = 16
    """Number of questions per training step. All workers answer equally many: of three workers, two train on 16."""
    num_completions: Annotated[int, Ge(2)] = 8
    """Completions per question, whose rewards are compared with each other (TRL's `num_generations`)."""
    max_prompt_length: Tokens | None = None
    """Maximum length of a prompt. Samples with longer prompts are left out and counted (metric `too_long`). None: 1024,
    or as many as the model has positions beside max_new_tokens."""
    kl_weight: NonNegativeFloat = 0.0
    """Weight of the KL divergence from the model that training starts from (TRL's `beta`). 0: no KL divergence, which
    saves a forward pass, and with method=full a second copy of the model."""
    learning_rate: PositiveFloat | None = None  # type: ignore[assignment]
    """Peak learning rate, reached after the warm-up. None: 1e-5 with LoRA, and 1e-6 for all weights."""
    lr_scheduler_type: Literal["cosine", "linear", "constant"] = "constant"
    """Decay of the learning rate after the warm-up."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay of AdamW. Biases and the weights of norms are not decayed."""
    seed: Seed = 42
    """Random seed of a new adapter, the order of the questions and the completions."""


@dataclass(frozen=True)
class Options(Config, training.FinetuneConfig):
    """The settings in the form that finetuning jobs share: one epoch of `steps` training steps."""

    epochs: int = 1
    zero_stage: int = 0
    metric: str = "accuracy"
    start_from: Literal["base", "current_best"] = "current_best"


@dataclass(frozen=True)
class Inputs:
    base: Path
    """A Hugging Face folder of a causal language model, such as the output of `sft` with method=full."""
    train: Path
    """Samples with one turn each, as written by `prepare_tasks`. Their targets are not used."""
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
    """Raise InputError for samples without a verifier (it gives the reward), and for conversations of several turns."""
    from ratchet.data.tasks.task import read_task_file

    if read_task_file(train).get("verifier") == "none":
        raise InputError(
            f"grpo.train: samples without a verifier given ({train}); expected one, since it gives the reward; set"
            " prepare_tasks.verifier"
        )
    check_turns("grpo", train, "whose answer has the reward")


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Check the inputs at plan time. Raises InputError for an adapter as `current_best` with method=full."""
    check_training("grpo", config, make_options(config), inputs, parents)
    if inputs.base is not None:
        length = GRPO_PROMPT.resolve(config, inputs.base) + config.max_new_tokens
        check_length("grpo: max_prompt_length + max_new_tokens", inputs.base, length)
    if inputs.train is not None:
        check_samples(inputs.train)
    check_chat(inputs, parents)
    return Result(note=GRPO_PROMPT.describe(config, inputs.base))


@needs.of_model
def estimate_needs(step: needs.ModelStep) -> Needs | None:
    config = step.config
    length = GRPO_PROMPT.resolve(config, step.folder) + config.max_new_tokens
    tokens = step.graph_tokens(config.batch_size * config.num_completions, length)
    labels = min(tokens, LABELS)  # their logits take at least as much memory as TRL's tiles
    step = replace(step, config=make_options(config))
    return step.estimate_training("causal", length=length, tokens=tokens, labels=labels)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.jobs.on_policy.grpo_training import GrpoTask
    from ratchet.jobs.training.finetuning import run_finetuning

    check_samples(inputs.train)  # at plan time they may not have existed
    workers = context.resources.workers or 1
    while config.batch_size % workers:
        workers -= 1
    context = replace(context, resources=replace(context.resources, workers=workers))
    result, history = run_finetuning(context, make_options(config), GrpoTask, inputs)
    last = history.others["reward"][-10:]
    reward = round(sum(last) / len(last), 6)
    return replace(result, metrics={**result.metrics, "reward": reward})


JOB = Job(
    "grpo",
    Config,
    Inputs,
    run,
    resources=(
        "workers",
        "cpus",
        "gpus",
        "memory",
        "accelerator",
        "labels",
        "placement",
        "timeout",
        "batch_tokens",
        "micro_batch_size",
        "retries",
    ),
    check=check,
    needs=estimate_needs,
    divide=lambda config, inputs: Division(most=config.batch_size),
    outputs=training.OUTPUTS,
    metrics=lambda own: [
        *training.list_training_metrics(make_options(own)),
        "samples",
        "too_long",
        "reward",
    ],
)
