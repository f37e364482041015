"""The settings that all finetuning jobs share, and their checks at plan time."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Ge, Gt, Interval

from ratchet.errors import InputError
from ratchet.jobs.inference import check_quantization
from ratchet.models.model_files import check_folder, read_header, read_weight_names
from ratchet.models.model_kind import read_object
from ratchet.orchestrator.job_interface import Parents, Seed, Unit, WarmStart

Distillation = Literal["none", "kl_div", "m3_kd_loss", "margin_mse"]
"""How a teacher's scores are used; see `ratchet.models.losses.distillation`. The first names are FlagEmbedding's."""


@dataclass(frozen=True)
class OptimizerConfig:
    """Settings of every training job: the weights that are trained, and the steps of the optimizer."""

    learning_rate: Annotated[float, Gt(0)] = 2e-4
    """Peak learning rate, reached after the warm-up."""
    method: Literal["lora", "full"] = "lora"
    """`full` trains all weights but the head of a decoder that reranks, and writes a model instead of an adapter."""
    lora_r: Annotated[int, Ge(1)] = 32
    """LoRA rank."""
    lora_alpha: Annotated[float, Gt(0)] = 64.0
    """LoRA scaling: the update is multiplied by lora_alpha / lora_r."""
    target_modules: str = "all-linear"
    """Modules that get LoRA layers: `all-linear`, or names separated by commas."""
    warmup_ratio: Annotated[float, Interval(ge=0, lt=1)] = 0.1
    """Fraction of all training steps over which the learning rate rises."""
    warmup_steps: Annotated[int, Ge(0), Unit("training steps")] | None = None
    """Training steps over which the learning rate rises. None: given by warmup_ratio."""
    lr_scheduler_type: Literal["cosine", "linear", "constant"] = "cosine"
    """Decay of the learning rate after the warm-up."""
    weight_decay: Annotated[float, Ge(0)] = 0.01
    """Weight decay of AdamW."""
    max_grad_norm: Annotated[float, Ge(0)] = 1.0
    """Gradient norm above which gradients are clipped. 0: no clipping."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of weights and arithmetic. auto: bfloat16 where the hardware multiplies it natively. Master weights are
    float32."""
    quantization: Literal["none", "nf4"] = "none"
    """`nf4` trains over a base in 4 bits with double quantization (QLoRA): a quarter of the memory, and slower. It
    needs the extra `nf4`."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: a third slower, with much less memory."""
    allow_regression: bool = False
    """Keep the best new model even if it does not improve on the current best."""
    save_steps: Annotated[int, Ge(1), Unit("training steps")] | None = None
    """Training steps between checkpoints to resume from, besides those after evaluations. None: about every five
    minutes."""
    seed: Seed = 42
    """Random seed of the adapter's weights, of the order of the data and of sampling."""


@dataclass(frozen=True)
class FinetuneConfig(OptimizerConfig):
    """Settings of every finetuning job."""

    epochs: Annotated[int, Ge(1)] = 4
    """Passes over the training data. The model with the best `metric` is kept."""
    layer_decay: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Factor on the learning rate from each layer to the one below it, down to the embeddings; with `method=full`. 1:
    all layers learn at the same rate."""
    lora_dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Dropout on the inputs of LoRA layers. On CPUs it costs up to a tenth of the speed."""
    max_length: Annotated[int, Ge(4), Unit("tokens")] | None = None
    """Longer texts are truncated. None: the limit of the encoding config. It is saved with the adapter."""
    start_from: Literal["base", "current_best"] = "base"
    """Where training starts: the base, with a new adapter, or the current best adapter or model if there is one. Such
    an adapter keeps its lora_r, lora_alpha and target_modules: other ones are refused where they are set."""
    metric: str = "map@25"
    """Metric on `valid` that selects the model to keep: map@K, r@K, ndcg@K, p@K, hit@K, mrr or map."""
    keep: Literal["best", "all"] = "best"
    """`all` keeps the model of each evaluation too: checkpoint-epoch-1 and so on, with eval_steps checkpoint-STEP."""
    epoch: Annotated[int, Ge(1)] | None = None
    """Take the model after this epoch instead of the best one, even if nothing improved. None: the best."""
    eval_steps: Annotated[int, Ge(1), Unit("training steps")] | None = None
    """Training steps between evaluations. None: after each epoch."""
    zero_stage: Annotated[int, Interval(ge=0, le=3)] = 1
    """DeepSpeed ZeRO stage. 0: nothing is sharded, except as with 1 where all weights are trained in bfloat16; 1:
    optimizer states; 2: gradients too; 3: all weights too, which is slow and meant for bases that do not fit otherwise
    (not with nf4)."""
    offload: Literal["none", "optimizer", "parameters"] = "none"
    """What GPUs keep in the memory of the host, which is slow. `optimizer`: the optimizer states, with zero_stage 1 or
    more; `parameters`: the weights as well, with zero_stage 3."""

    @property
    def kept_steps(self) -> tuple[int, ...]:
        """Training steps after which the model is evaluated and kept, where a job has the setting `checkpoints`. Empty:
        evaluate as eval_steps says, keep the best."""
        return getattr(self, "checkpoints", ())

    @property
    def keeps_all(self) -> bool:
        """Whether the model of each evaluation is kept while the job runs."""
        return self.keep == "all" or bool(self.kept_steps)


@dataclass(frozen=True)
class RankFinetuneConfig(FinetuneConfig):
    """Settings of finetuning that selects the model by the ranks of held-out rows."""

    significance_level: Annotated[float, Interval(gt=0, le=1)] = 0.05
    """Largest p-value at which the best model replaces the current best: a paired test over groups of held-out rows,
    corrected for the choice of the best. 1: any improvement is enough."""


@dataclass(frozen=True)
class RetrievalFinetuneConfig(RankFinetuneConfig):
    """Settings of finetuning on queries with positives and negatives."""

    batch_size: Annotated[int, Ge(1), Unit("queries")] = 64
    """Largest number of queries per training step, over all workers. The steps of an epoch are of nearly equal size."""
    num_negatives: Annotated[int, Ge(0)] = 4
    """Mined negatives per query and training step, sampled anew in each epoch."""
    label_smoothing: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Fraction of the target that is spread evenly over all passages. It applies to labels, never to a teacher."""
    distillation: Distillation = "none"
    """Learn from a reranker's scores (see `rerank`). `kl_div` adds the KL divergence over each query's own passages to
    the loss on the labels, `margin_mse` the squared difference of margins; `m3_kd_loss` weights the loss on all
    passages by them, instead of the labels."""
    distillation_weight: Annotated[float, Gt(0)] = 1.0
    """Weight of `kl_div` or `margin_mse` beside the loss on the labels."""
    teacher_temperature: Annotated[float, Gt(0)] | None = None
    """Softmax temperature of the teacher's scores. Higher is softer. None: a quarter of the mean difference between its
    scores of positives and of negatives, which gives teachers of any scale the same mean margin of 4."""


@dataclass(frozen=True)
class RetrievalFinetuneInputs:
    """Inputs of finetuning on queries with positives and negatives."""

    base: Path
    """A Hugging Face model folder. For a reranker a decoder, a cross-encoder, or an encoder, which gets a head."""
    mined: Path
    """Queries with positives and negatives, as written by `mine`; for distillation with the scores of `rerank`."""
    corpus: Path
    """Shards of documents with the texts of these ids."""
    valid: Path | None = None
    """Held-out queries with positives. None: the model of the last epoch is kept, and a reranker is no teacher."""
    ranking: Path | None = None
    """A ranking of `valid`, as written by `evaluate_retrieval`: the lists that a reranker orders, or from which the
    `eval_pool` of an embedder is chosen."""
    current_best: Path | None = None
    """The current best adapter (or model, with method=full), which is kept if training does not improve on it. None:
    the base; for a base that is no reranker yet, the order of `ranking`."""


REFUSED = "teacher_gate"
"""The metric of `rerank` that says why a teacher was refused."""

C = TypeVar("C", bound=RetrievalFinetuneConfig)


def find_start(config: FinetuneConfig, inputs: Any) -> tuple[Path, Path | None]:
    """Return where training starts: (the folder of a model, an adapter of it or None for a new one).

    inputs: `base` and `current_best`, as every finetuning job has."""
    current_best = inputs.current_best if config.start_from == "current_best" else None
    return (current_best or inputs.base, None) if config.method == "full" else (inputs.base, current_best)


def check_config(job: str, config: FinetuneConfig, base: Path | None, current_best: Path | None = None) -> None:
    """Raise InputError for settings that exclude each other or need a missing extra, and for an unusable base or
    current best."""
    check_quantization(job, config.quantization)
    full = config.method == "full"
    one_rate = "1 with method=lora, whose weights all learn at the same rate"
    last = 0 if config.eval_steps or config.kept_steps else config.epochs
    expected = f"at most epochs, which is {config.epochs}, and none with eval_steps or checkpoints; lower it"
    whole = "2 or less with nf4, since quantized blocks cannot be sharded; lower it, or set quantization=none"
    rules = [
        ("method", not full or config.quantization == "none", "lora with nf4, whose weights cannot be trained"),
        ("layer_decay", full or config.layer_decay == 1, one_rate),
        ("epoch", config.epoch is None or config.epoch <= last, expected),
        ("zero_stage", config.quantization == "none" or config.zero_stage < 3, whole),
    ]
    require(job, config, rules)
    if config.zero_stage < (needed := {"none": 0, "optimizer": 1, "parameters": 3}[config.offload]):
        raise InputError(
            f"{job}.offload: {config.offload} given, with zero_stage={config.zero_stage}; expected zero_stage {needed}"
            " or more, which shards what is offloaded; raise it"
        )
    if current_best is not None and full == (current_best / "adapter_config.json").is_file():
        given, wanted = ("an adapter", "a whole model") if full else ("no adapter", "an adapter of the base")
        raise InputError(
            f"{job}.current_best: {current_best} is {given}; expected {wanted} with method={config.method}; give one,"
            " or change the method"
        )
    check_adapter(job, config, current_best)
    if base is not None:
        check_folder(base)
        check_target_modules(job, base, config.target_modules)


def check_adapter(job: str, config: FinetuneConfig, adapter: Path | None) -> str:
    """Return a note of the LoRA settings that the current best adapter, where training starts from it, has instead of
    the defaults. Raises InputError where a setting is neither the default nor the adapter's."""
    if adapter is None or config.method == "full" or config.start_from == "base":
        return ""
    about, notes = read_object(adapter / "adapter_config.json"), list[str]()
    own = {"lora_r": about.get("r", config.lora_r), "lora_alpha": about.get("lora_alpha", config.lora_alpha)}
    names, weights = {name.strip() for name in config.target_modules.split(",")}, adapter / "adapter_model.safetensors"
    if names != {"all-linear"} and weights.is_file():
        layers = [f".{name.partition('.lora_A')[0]}" for name in read_header(weights)[1] if ".lora_A" in name]
        used = [{name for name in names if layer.endswith(f".{name}")} for layer in layers]
        own |= {} if all(used) and names == set().union(*used) else {"target_modules": about["target_modules"]}
    defaults = {one.name: one.default for one in fields(config)}
    for name, stays in own.items():
        if (given := getattr(config, name)) not in (stays, defaults[name]):
            raise InputError(
                f"{job}.{name}: {given} given, to continue {adapter}; expected its own, {stays}, which stays; leave it"
                " out, or start from the base"
            )
        notes += [f"{name}={stays}"] * (given != stays)
    return f"continued the adapter with its own {', '.join(notes)}" if notes else ""


def check_target_modules(job: str, base: Path, target_modules: str) -> None:
    """Raise InputError for a name that is not part of any weight of the model."""
    if target_modules == "all-linear":
        return
    known = {part for name in read_weight_names(base) for part in name.split(".")[:-1] if not part.isdecimal()}
    for name in target_modules.split(","):
        if known and name.strip().rpartition(".")[2] not in known:
            raise InputError(
                f"{job}.target_modules: '{name.strip()}' given; expected all-linear, or names of {base}:"
                f" {', '.join(sorted(known))}"
            )


def check_retrieval_metric(job: str, metric: str) -> None:
    """Raise InputError for an unknown metric."""
    if not re.fullmatch(r"(map|r|ndcg|p|hit)@[1-9]\d*|mrr|map", metric):
        raise InputError(f"{job}.metric: {metric} given; expected map@25, r@10, mrr or the like")


def require(job: str, config: object, rules: list[tuple[str, bool, str]]) -> None:
    """Raise InputError for the first of the rules (setting, whether it holds, what is expected) that does not hold."""
    for name, holds, expected in rules:
        if not holds:
            raise InputError(f"{job}.{name}: {getattr(config, name)} given; expected {expected}")


def count_feedable_workers(batch_size: int) -> int:
    """Return how many workers get a row in every training step. The steps of an epoch are of nearly equal size, so that
    each has at least half a batch."""
    return max(1, batch_size // 2)


def drop_refused_teacher(config: C, parents: Parents) -> C:
    """Return the config without distillation where `rerank` left the mined lists without scores, since their teacher
    was refused. It says so by `REFUSED` in its metrics."""
    is_refused = "mined" in parents and REFUSED in parents["mined"].metrics
    return replace(config, distillation="none") if is_refused else config


def check_no_adapter(job: str, method: str, inputs: Any, parents: Parents) -> None:
    """Raise InputError for an adapter to improve on by a model of all weights."""
    if method == "full" and (inputs.current_best is not None or "current_best" in parents):
        raise InputError(
            f"{job}.current_best: an adapter given, with method=full; expected none, since the result is a whole model;"
            " merge the adapter and give the merged model as base"
        )


def list_training_metrics(config: FinetuneConfig) -> list[str]:
    """Return the names of the metrics that every finetuning job reports."""
    held_out = [f"valid/{config.metric}{end}" for end in ("", "_start", "_best")]
    counts = ("trainable_weights", "weights", "trainable_percent")
    return [*held_out, *counts, "p_value", "loss", "best_epoch", "best_step", "improved"]


def epochs_blocked_by(config: FinetuneConfig) -> str:
    """Return why training for more epochs cannot continue a run with fewer, or an empty string."""
    if config.lr_scheduler_type != "constant":
        return (
            f"with lr_scheduler_type={config.lr_scheduler_type} the learning rate depends on the number of training"
            " steps; use lr_scheduler_type=constant"
        )
    if config.warmup_ratio and config.warmup_steps is None:
        return "warmup_ratio is a fraction of all training steps; set warmup_steps, or warmup_ratio=0"
    if config.eval_steps or config.keeps_all:
        return "with eval_steps, checkpoints or keep=all other models are kept or evaluated; leave them out"
    if getattr(config, "final_temperature", None) is not None:
        return "final_temperature is reached at the last of all training steps; leave it out"
    return ""


WARM_START = WarmStart("epochs", epochs_blocked_by)
"""Training continues a finished run with the same config but fewer epochs."""
