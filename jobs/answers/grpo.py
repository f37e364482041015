"""grpo: group-relative policy optimisation of a model's own answers, with the task's verifier as reward.

For each question of a training step the model samples several completions. The reward of a completion is 1 if the
verifier accepts it, else 0; its advantage is the reward minus the mean over the question's completions, divided by
their standard deviation (Shao et al. 2024, "DeepSeekMath"). A question whose completions are all right or all wrong
teaches nothing, so the model must already solve some of the questions, as after `sft`. The loss is averaged over the
tokens of the training step (Yu et al. 2025, "DAPO"). TRL's GRPOTrainer does the training steps, on one worker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from ratchet.errors import InputError
from ratchet.extras import require_extra
from ratchet.jobs import needs
from ratchet.jobs.answers.chat_options import check_chat
from ratchet.jobs.answers.sft import LABELS
from ratchet.jobs.training import config as training
from ratchet.jobs.training.schedule import check_steps
from ratchet.orchestrator.job_interface import Job, Needs, Parents, Resources, Result, Seed, Unit

LEARNING_RATES = {"lora": 1e-5, "full": 1e-6}
"""By `method`, where `learning_rate` is None."""


@dataclass(frozen=True)
class Config(training.OptimizerConfig):
    steps: Annotated[int, Ge(1), Unit("training steps")] = 200
    """Training steps. Questions are drawn without replacement, and again when all were drawn."""
    checkpoints: tuple[Annotated[int, Ge(1)], ...] = ()
    """Training steps after which the model is evaluated and saved. It is evaluated after the last one in any case."""
    batch_size: Annotated[int, Ge(1), Unit("questions")] = 16
    """Questions per training step."""
    num_completions: Annotated[int, Ge(2)] = 8
    """Completions per question, which are compared with each other."""
    temperature: Annotated[float, Gt(0)] = 1.0
    """Sampling temperature of the completions."""
    max_new_tokens: Annotated[int, Ge(1), Unit("tokens")] = 512
    """Maximum length of a completion."""
    max_prompt_length: Annotated[int, Ge(1), Unit("tokens")] = 1024
    """Maximum length of a prompt. Longer ones are left out, not truncated, and counted."""
    kl_weight: Annotated[float, Ge(0)] = 0.0
    """Weight of the KL divergence from the model that training starts from (TRL's `beta`). 0: none, which saves a
    forward pass and, with method=full, a second copy of the model."""
    learning_rate: Annotated[float, Gt(0)] | None = None  # type: ignore[assignment]
    """Peak learning rate, reached after the warm-up. None: 1e-5 with LoRA, and 1e-6 for all weights."""
    lora_r: Annotated[int, Ge(1)] = 16
    """LoRA rank of a new adapter."""
    lora_alpha: Annotated[float, Gt(0)] = 32.0
    """LoRA alpha of a new adapter. The update is scaled by lora_alpha / lora_r."""
    lr_scheduler_type: Literal["cosine", "linear", "constant"] = "constant"
    """Decay of the learning rate after the warm-up."""
    weight_decay: Annotated[float, Ge(0)] = 0.0
    """Weight decay of AdamW."""
    valid_samples: Annotated[int, Ge(1), Unit("samples")] = 256
    """Held-out samples that the model answers greedily at each evaluation. Their accuracy selects the model."""
    seed: Seed = 42
    """Random seed of a new adapter, of the order of the questions and of the completions."""


@dataclass(frozen=True)
class Options(Config, training.FinetuneConfig):
    """The settings as all finetuning jobs have them: one epoch, of `steps` training steps."""

    epochs: int = 1
    zero_stage: int = 0
    metric: str = "accuracy"


@dataclass(frozen=True)
class Inputs:
    base: Path
    """A Hugging Face folder of a causal language model, such as the one that `sft` makes with method=full."""
    train: Path
    """Samples written by `prepare_tasks`, with one turn each. Their targets are not used."""
    valid: Path
    """Held-out samples of the same task."""
    current_best: Path | None = None
    """A LoRA adapter of the base, such as that of `sft`, with method=lora only: training starts from it and has to
    improve on it. None: a new adapter on the base."""


def make_options(config: Config, start_from_adapter: bool) -> Options:
    """Return the settings as all finetuning jobs have them. The model is always evaluated after the last step."""
    checkpoints = tuple(sorted({*config.checkpoints, config.steps}))
    rate = config.learning_rate or LEARNING_RATES[config.method]
    given = vars(replace(config, checkpoints=checkpoints, learning_rate=rate))
    return Options(**given, start_from="current_best" if start_from_adapter else "base")


def check(config: Config, inputs: Inputs) -> None:
    require_extra("grpo: given", "grpo", "trl")
    increasing = list(config.checkpoints) == sorted(set(config.checkpoints))
    training.require("grpo", config, [("checkpoints", increasing, "increasing training steps")])
    check_steps(config, config.steps)
    adapter = inputs.current_best if config.method == "lora" else None
    training.check_config("grpo", make_options(config, adapter is not None), inputs.base, adapter)
    if inputs.base is not None:
        from ratchet.models.decoder import decoder

        decoder.check(inputs.base)
    if inputs.train is not None:
        check_samples(inputs.train)


def check_samples(train: Path) -> None:
    """Raise InputError for samples without a verifier, which gives the reward, and for conversations of several
    turns."""
    from ratchet.data.tables import read_shards
    from ratchet.data.tasks.task import read_task_file

    if read_task_file(train).get("verifier") == "none":
        raise InputError(
            f"grpo.train: samples without a verifier given ({train}); expected one, since it gives the reward; set"
            " prepare_tasks.verifier"
        )
    turns = max(map(len, read_shards(train, ["questions"])["questions"].to_pylist()), default=0)
    if turns > 1:
        raise InputError(
            f"grpo.train: conversations of up to {turns} turns given ({train}); expected one turn, whose answer has the"
            " reward; give another task, such as squad-batch"
        )


def predict(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Refuse an adapter to start from where all weights are trained."""
    training.check_no_adapter("grpo", config.method, inputs, parents)
    return check_chat(config, inputs, parents)


def estimate_needs(config: Config, inputs: Inputs, resources: Resources, parents: Parents) -> Needs | None:
    length = config.max_prompt_length + config.max_new_tokens
    rows = config.batch_size * config.num_completions
    options = make_options(config, False)
    tokens = needs.graph_tokens(options, resources, rows, length)
    # A generated token costs a forward pass too, and the divergence another one.
    counts = {
        "rows": config.steps * rows,
        "row_tokens": length,
        "passes": 2 + (config.kl_weight > 0),
        "labels": min(tokens, LABELS),  # whose logits take as much memory as TRL's tiles, or more
    }
    folder = needs.find_model("base", inputs, parents)
    found = needs.train(folder, "causal", options, resources, length=length, tokens=tokens, **counts)
    # One worker shards nothing.
    return found and replace(found, remedies=tuple(one for one in found.remedies if "zero_stage" not in one))


JOB = Job(
    "grpo",
    config=Config,
    inputs=Inputs,
    resources=("cpus", "gpus", "memory", "accelerator", "labels", "batch_tokens", "micro_batch_size", "retries"),
    check=check,
    predict=predict,
    needs=estimate_needs,
    max_workers=lambda config: 1,
    is_worker=lambda config: True,
    outputs=("adapter", "model", "checkpoint-*", "history.json", "selection.json"),
    metrics=lambda own: [*training.list_training_metrics(make_options(own, False)), "samples", "too_long", "reward"],
)
