"""Settings that finetuning jobs share, and their checks at plan time."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Interval

from ratchet.errors import InputError
from ratchet.jobs.inference import NF4, check_quantization
from ratchet.jobs.model_checks import check_embedder_model, check_target_modules
from ratchet.jobs.prompt_settings import resolve_encoding_config
from ratchet.models.embedder.encoding_config import EncodingConfig, Example
from ratchet.models.model_files import check_folder
from ratchet.models.model_kind import read_object
from ratchet.orchestrator.job_interface import (
    Division,
    FractionBelowOne,
    Neutral,
    NonNegativeFloat,
    NonNegativeInt,
    Parents,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    Result,
    Seed,
    Unit,
)

Distillation = Literal["none", "kl_div", "m3_kd_loss", "margin_mse"]
"""Loss on a teacher's scores; see `ratchet.models.losses.distillation`. `kl_div` and `m3_kd_loss`: as FlagEmbedding."""


OUTPUTS = ("adapter", "model", "checkpoint-*", "history.json")
"""What finetuning jobs write: the value of `Job.outputs`."""
LEAST_STAGE = {"none": 0, "optimizer": 1, "parameters": 3}
"""Value of `offload` -> the least ZeRO stage that shards what is offloaded."""


@dataclass(frozen=True)
class OptimizerConfig:
    """Settings of every training job: which weights are trained, and the optimizer."""

    learning_rate: PositiveFloat = 2e-4
    """Peak learning rate, reached after the warm-up."""
    method: Literal["lora", "full"] = "lora"
    """`lora`: train an adapter. `full`: train all weights (except the head of a decoder that is finetuned as a
    reranker), and write a whole model."""
    lora_r: PositiveInt = 32
    """LoRA rank."""
    lora_alpha: PositiveFloat = 64.0
    """LoRA alpha: the adapter's update is scaled by lora_alpha / lora_r."""
    target_modules: str = "all-linear"
    """Modules that get LoRA layers: `all-linear`, or module names separated by commas."""
    warmup_ratio: FractionBelowOne = 0.1
    """Fraction of all training steps in which the learning rate rises linearly to its peak."""
    warmup_steps: Annotated[NonNegativeInt, Unit("training steps")] | None = None
    """Number of warm-up steps, instead of warmup_ratio. None: warmup_ratio of all training steps."""
    lr_scheduler_type: Literal["cosine", "linear", "constant"] = "cosine"
    """Decay of the learning rate after the warm-up."""
    weight_decay: NonNegativeFloat = 0.01
    """Weight decay of AdamW. Biases and the weights of norms are not decayed."""
    max_grad_norm: NonNegativeFloat = 1.0
    """Gradient norm above which gradients are clipped. 0: no clipping."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of weights and arithmetic. `auto`: bfloat16 if the hardware multiplies it natively, else float32. Trained
    weights have float32 master weights in both cases."""
    quantization: Annotated[Literal["none", "nf4"], NF4] = "none"
    """`nf4`: load the base in 4 bits with double quantization (QLoRA). The base takes a quarter of the memory, and
    training is slower. Only with method=lora; it needs the extra `nf4`."""
    gradient_checkpointing: Annotated[bool, Neutral()] = False
    """Recompute activations in the backward pass. Training is a third slower and needs much less memory."""
    allow_regression: bool = False
    """Return the best new model even if it does not improve on the current best."""
    save_steps: Annotated[PositiveInt | None, Unit("training steps"), Neutral()] = None
    """Training steps between the checkpoints to resume from. Each evaluation also writes one. None: every minute,
    or less often if saving would take more than 5 % of the time."""
    seed: Seed = 42
    """Random seed of the new weights of an adapter, the order of the data and the sampling."""


@dataclass(frozen=True)
class FinetuneConfig(OptimizerConfig):
    """Settings of every finetuning job."""

    epochs: PositiveInt = 4
    """Passes over the training data. The model of the evaluation with the best `metric` is kept."""
    lora_dropout: FractionBelowOne = 0.0
    """Dropout on the inputs of LoRA layers. On CPUs it makes training up to a tenth slower."""
    max_length: Annotated[int, Ge(4), Unit("tokens")] | None = None
    """Maximum length of a text. Longer texts are truncated. Saved with the trained model. None: as in the base."""
    start_from: Literal["base", "current_best"] = "base"
    """`base`: train a new adapter on the base, or with method=full the base. `current_best`: continue the current best
    adapter or model if there is one. A continued adapter keeps its own lora_r, lora_alpha and target_modules; setting
    other values is an error."""
    metric: str = "map@25"
    """Metric on `valid` that selects the model to keep: map@K, r@K, ndcg@K, p@K, hit@K, mrr or map."""
    keep: Literal["best", "last", "all"] = "best"
    """`last`: return the last model instead of the best one, even if it improves nothing. `all`: also keep the model of
    each evaluation, as checkpoint-epoch-N, or with eval_steps as checkpoint-STEP; `choose_checkpoint` takes one."""
    patience: Annotated[PositiveInt, Unit("evaluations")] | None = None
    """Stop after this many evaluations in a row that are not better than the best one before. The learning rate still
    decays over all epochs. None: train all epochs."""
    eval_steps: Annotated[PositiveInt, Unit("training steps")] | None = None
    """Training steps between evaluations on `valid`. None: evaluate after each epoch."""
    zero_stage: Annotated[Annotated[int, Interval(ge=0, le=3)] | None, Neutral()] = None
    """DeepSpeed ZeRO stage, which sets what is sharded over workers. 0: nothing. 1: optimizer states. 2: also
    gradients. 3: also all weights; slow, for bases that do not fit otherwise, and not with nf4. None: 0 for adapters,
    whose states are small, and 1 for method=full. Where all weights are trained in bfloat16, it is at least 1."""
    offload: Annotated[Literal["none", "optimizer", "parameters"], Neutral()] = "none"
    """What is kept in host memory instead of GPU memory. Training is then slower. `optimizer`: optimizer states; needs
    zero_stage 1 or more. `parameters`: also the weights; needs zero_stage 3."""

    @property
    def shard_stage(self) -> int:
        """The ZeRO stage that is used."""
        trains_all = self.method == "full"
        stage = self.zero_stage
        if stage is None:
            stage = max(int(trains_all), LEAST_STAGE[self.offload])
        if trains_all and self.dtype == "bfloat16":
            return max(stage, 1)
        return stage

    @property
    def kept_steps(self) -> tuple[int, ...]:
        """Training steps after which the model is evaluated and kept: the setting `checkpoints` of jobs that have it.
        Empty: evaluate by `eval_steps`, and keep the best model."""
        return getattr(self, "checkpoints", ())

    @property
    def unit(self) -> str:
        """What evaluations are counted in: `step` (training steps) or `epoch`."""
        if self.eval_steps or self.kept_steps:
            return "step"
        return "epoch"

    @property
    def keeps_all(self) -> bool:
        """Whether the work folder keeps the model of each evaluation while the job runs."""
        return self.keep == "all" or bool(self.kept_steps)


@dataclass(frozen=True)
class RankFinetuneConfig(FinetuneConfig):
    """Settings of finetuning jobs that evaluate rankings of held-out rows."""

    significance_level: PositiveFraction = 0.05
    """The best new model replaces the current best only if the p-value of its improvement is at most this. The test is
    paired over groups of held-out rows, and corrected for choosing the best of several evaluations. 1: any improvement
    is enough. If the metric changed for too few groups to reach this level, the test compares the held-out losses."""


@dataclass(frozen=True)
class RetrievalFinetuneConfig(RankFinetuneConfig):
    """Settings of finetuning on queries with positives and negatives."""

    batch_size: Annotated[PositiveInt, Unit("queries")] = 64
    """Maximum number of queries per training step, over all workers. All batches of an epoch are of similar size."""
    num_negatives: NonNegativeInt = 4
    """Maximum number of mined negatives per query in a training step, sampled anew in each epoch."""
    eval_fraction: PositiveFraction = 1.0
    """Fraction of the groups of `valid` that are evaluated during training, drawn at random."""
    label_smoothing: FractionBelowOne = 0.0
    """Fraction of the target probability that is spread evenly over all passages. Applies to the loss on the labels
    only, not to the teacher's scores."""
    distillation: Distillation = "none"
    """Loss on the teacher scores that `rerank` wrote. `kl_div`: add the KL divergence over the passages of each query
    to the loss on the labels. `margin_mse`: add the squared error of the score margins instead. `m3_kd_loss`: instead
    of the labels, use each passage of a query as its positive, weighted by the teacher's probabilities."""
    distillation_weight: PositiveFloat = 1.0
    """Weight of `kl_div` or `margin_mse`, relative to the loss on the labels."""
    teacher_temperature: PositiveFloat | None = None
    """Temperature that divides the teacher's scores; a higher one gives softer targets. None: a quarter of the mean
    difference between its scores of positives and of negatives, so the mean margin is 4 for teachers of any scale."""


@dataclass(frozen=True)
class RetrievalFinetuneInputs:
    """Inputs of finetuning on queries with positives and negatives."""

    base: Path
    """A Hugging Face model folder. A reranker's base is a decoder, a cross-encoder, or an encoder (gets a new head)."""
    mined: Path
    """Queries with positives and negatives, as written by `mine` (or `prepare`); for distillation, by `rerank`."""
    corpus: Path
    """Shards of documents (columns id and text) that contain all positives and negatives."""
    valid: Path | None = None
    """Held-out queries with positives. None: the model of the last epoch is kept, and a reranker is not used as a
    teacher, unless its gate is open."""
    ranking: Path | None = None
    """A ranking for `valid`, as written by `evaluate_retrieval`. A reranker is evaluated on the top of its lists; an
    embedder takes a part of its `eval_pool` from them."""
    current_best: Path | None = None
    """The current best adapter (or model, with method=full), which is kept if training does not improve on it. None:
    training has to improve on the base, or if the base is not a reranker yet, on the order of `ranking`."""


def find_start(config: FinetuneConfig, inputs: Any) -> tuple[Path, Path | None]:
    """Return the start of training: (model folder, adapter to continue or None).

    inputs: has `base` and `current_best`, as the inputs of every finetuning job."""
    current_best = inputs.current_best if config.start_from == "current_best" else None
    if config.method == "full":
        return (current_best or inputs.base, None)
    return (inputs.base, current_best)


def check_config(job: str, config: FinetuneConfig, inputs: Any, parents: Parents) -> None:
    """Raise InputError for settings that exclude each other or need an extra that is not installed, and for an
    unusable base or current best."""
    check_quantization(job, config.quantization, inputs.base)
    current_best = inputs.current_best
    full = config.method == "full"
    needed = LEAST_STAGE[config.offload]
    plain = config.quantization == "none"
    holds_out = "valid" in parents or inputs.valid is not None
    compares = config.keep != "last" and holds_out
    fraction = getattr(config, "eval_fraction", 1)
    rules = [
        ("method", not full or plain, "lora with nf4, whose weights cannot be trained"),
        ("eval_fraction", holds_out or fraction == 1, "1 where nothing is held out; leave it out"),
        (
            "patience",
            config.patience is None or (compares and not config.kept_steps),
            "none with keep=last, with checkpoints or without held-out rows; leave it out",
        ),
        (
            "zero_stage",
            plain or config.shard_stage < 3,
            "2 or less with nf4, since quantized blocks cannot be sharded; lower it, or set quantization=none",
        ),
        (
            "zero_stage",
            config.shard_stage >= needed,
            f"{needed} or more with offload={config.offload}, which offloads what is sharded; raise it",
        ),
    ]
    require(job, config, rules)
    if current_best is not None and full == (current_best / "adapter_config.json").is_file():
        wanted = "a whole model" if full else "an adapter of the base"
        raise InputError(
            f"{job}.current_best: {current_best} given; expected {wanted} with method={config.method}; give one, or"
            " change the method"
        )
    check_adapter(job, config, current_best)
    if current_best is not None and full:
        check_folder(current_best)
    if inputs.base is not None:
        check_folder(inputs.base)
    if isinstance(config, RankFinetuneConfig) and not re.fullmatch(
        r"(map|r|ndcg|p|hit)@[1-9]\d*|mrr|map", config.metric
    ):
        raise InputError(
            f"{job}.metric: {config.metric} given; expected map@25, r@10, mrr or the like"
        )


def chooses_model(config: FinetuneConfig) -> bool:
    """Return whether settings choose the training steps or the model, so that folds cannot choose them."""
    if config.allow_regression or config.keep == "last" or config.patience is not None:
        return True
    return bool(
        config.eval_steps is not None or config.kept_steps or config.warmup_steps is not None
    )


def add_epochs(result: Result, config: FinetuneConfig) -> Result:
    """Return a result that is known at plan time, with what `choose_checkpoint` checks."""
    known: dict[str, Any] = {"keep": config.keep, "eval_steps": config.eval_steps or 1}
    if config.unit == "epoch":
        known["epochs"] = config.epochs
    return replace(result, metrics={**result.metrics, **known})


def check_embedder(
    job: str, config: Any, inputs: Any, examples: Sequence[Example] | None = None
) -> EncodingConfig:
    """Check the embedder that a job trains, and return its encoding config. examples: see `resolve_encoding_config`."""
    start, adapter = find_start(config, inputs)
    # Else the adapter may bring a template.
    is_known = config.start_from == "base" or inputs.current_best is not None
    found = resolve_encoding_config(job, config, start, adapter, examples, uses_task=is_known)
    check_embedder_model(start, found, adapter)
    check_target_modules(job, inputs.base, "backbone", config)
    return found


def check_adapter(job: str, config: FinetuneConfig, adapter: Path | None) -> str:
    """Return a note of the LoRA settings that a continued adapter has instead of the defaults; empty if training starts
    from the base. Raises InputError for a setting that is neither the default nor the adapter's own."""
    if adapter is None or config.method == "full" or config.start_from == "base":
        return ""
    about = read_object(adapter / "adapter_config.json")
    own = {
        "lora_r": about.get("r", config.lora_r),
        "lora_alpha": about.get("lora_alpha", config.lora_alpha),
    }
    names = {name.strip() for name in config.target_modules.split(",")}
    if names not in ({"all-linear"}, set(about.get("target_modules") or names)):
        own["target_modules"] = about["target_modules"]
    defaults = {one.name: one.default for one in fields(config)}
    notes = []
    for name, stays in own.items():
        given = getattr(config, name)
        if given == stays:
            continue
        if given != defaults[name]:
            raise InputError(
                f"{job}.{name}: {given} given, to continue {adapter}; expected its own, {stays}, which stays; leave it"
                " out, or start from the base"
            )
        notes.append(f"{name}={stays}")
    if notes:
        return f"continued the adapter with its own {', '.join(notes)}"
    return ""


def require(job: str, config: object, rules: list[tuple[str, bool, str]]) -> None:
    """Raise InputError for the first rule that does not hold. rules: (setting, whether it holds, expected value)."""
    for name, holds, expected in rules:
        if not holds:
            raise InputError(f"{job}.{name}: {getattr(config, name)} given; expected {expected}")


def divide_batches(config: Any, inputs: Any) -> Division:
    """Divide batches: by default, every worker gets a row in every training step. Batches of an epoch have nearly equal
    size, so each holds at least half of `batch_size` rows."""
    return Division(default=max(1, config.batch_size // 2))


def list_training_metrics(config: FinetuneConfig) -> list[str]:
    """Return the names of the metrics that every finetuning job reports."""
    held_out = [f"valid/{config.metric}{end}" for end in ("", "_start", "_best")]
    counts = ("trainable_weights", "weights", "trainable_percent")
    decision = ("p_value", "tested", "tested_on", "improved", "changed")
    return [*held_out, *counts, *decision, "loss", "best_epoch", "best_step"]
