"""What the finetunes of embedders and rerankers share: their settings, the adapter, and the ratchet.

The ratchet: each epoch's adapter is measured on held-out queries, the best is kept, and if that is no better than what
there was before, what there was before is kept instead.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jobs.job import BadInput, Context, Result
from jobs.optimization import History, Options, Schedule, better
from jobs.trainee import Place, checkpoint_folder
from jobs.training import train

if TYPE_CHECKING:
    from data.triplets import Triplets
    from models.rank_metrics import RankMetrics

Rule = tuple[str, bool, str]
"""(setting, whether it holds, what is expected)."""


@dataclass(frozen=True)
class Settings:
    """What each finetune's Config begins with."""

    epochs: int = 4
    """Passes over the training data. The best by `metric` is kept."""
    learning_rate: float = 2e-4
    """At its highest, after the warm-up."""
    rank: int = 32
    """Of the LoRA matrices."""
    alpha: float = 64.0
    """LoRA's update is scaled by alpha / rank."""
    dropout: float = 0.0
    """Of LoRA's inputs. On CPUs it costs a third of the speed."""
    targets: str = "all-linear"
    """Layers that get LoRA: `all-linear`, or names separated by commas."""
    warmup_ratio: float = 0.1
    """Share of all steps over which the rate rises."""
    warmup_steps: int | None = None
    """Steps over which the rate rises, instead of a share of all."""
    schedule: Schedule = "cosine"
    """How the rate falls after the warm-up."""
    weight_decay: float = 0.01
    """AdamW's."""
    gradient_clipping: float = 1.0
    """Largest norm of the gradient; 0: not clipped."""
    max_length: int | None = None
    """Tokens; None: the contract's. Kept in the adapter's contract."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of weights and arithmetic; auto is bfloat16 where the machine multiplies it natively. Master weights: float32."""
    quantization: Literal["none", "nf4"] = "none"
    """`nf4` trains over a base in 4 bits, twice quantised (QLoRA): a quarter of the memory, and slower."""
    start: Literal["base", "incumbent"] = "base"
    """What training goes on from. `incumbent` without one is the base."""
    metric: str = "map@25"
    """On `valid`: map@K, r@K, ndcg@K, p@K, hit@K, mrr or map."""
    allow_regression: bool = False
    """Keep the best epoch even if it is no better than the incumbent."""
    save_steps: int | None = None
    """Steps between checkpoints within an epoch; None: about every five minutes."""
    eval_steps: int | None = None
    """Steps between evaluations, of which the best is kept; None: after each epoch."""
    gradient_checkpointing: bool = False
    """Keep a layer's input only, and compute the layer again on the way back: a third slower, for far less memory."""
    zero_stage: int = 1
    """What workers share: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 all weights too, the base's among
    them: slow, for bases that leave no room beside them; not with nf4."""
    seed: int = 42
    """Of the adapter, of the order, and of what is drawn."""


@dataclass(frozen=True)
class Lists(Settings):
    """Of finetunes on queries with positives and negatives."""

    batch: int = 64
    """Queries per optimizer step, over all workers; an epoch's steps are nearly equal and hold at most so many."""
    negatives: int = 4
    """Mined negatives per query and step, drawn anew each epoch."""
    label_smoothing: float = 0.0
    """Share of the target that goes to all passages evenly; of the labels, never of a teacher's targets."""
    distillation: Literal["none", "kl_div", "m3_kd_loss"] = "none"
    """Learn from a reranker's scores (see `score`) too: `kl_div` adds its distribution over each query's own passages
    to the labels; `m3_kd_loss` weighs all passages by it, instead of the labels."""
    teacher_temperature: float = 1.0
    """The teacher's scores are divided by it; more is softer."""

    def rules(self) -> list[Rule]:
        return [
            retrieval_metric(self),
            ("negatives", self.negatives >= 0, "0 or more"),
            ("label_smoothing", 0 <= self.label_smoothing < 1, "0 up to below 1"),
            ("distillation", self.distillation in ("none", "kl_div", "m3_kd_loss"), "none, kl_div or m3_kd_loss"),
            ("teacher_temperature", self.teacher_temperature > 0, "more than 0; 1 leaves the scores alone"),
        ]


def check(job: str, config: Settings, base: Path | None, further: Sequence[Rule] = ()) -> None:
    """Raises BadInput for a setting that cannot work, and for an unusable base."""
    rules: list[Rule] = [
        *further,
        ("epochs", config.epochs >= 1, "1 or more"),
        ("learning_rate", config.learning_rate > 0, "more than 0; 1e-5 to 1e-3 is usual"),
        ("rank", config.rank >= 1, "1 or more"),
        ("alpha", config.alpha > 0, "more than 0; twice the rank is usual"),
        ("dropout", 0 <= config.dropout < 1, "0 up to below 1"),
        ("warmup_ratio", 0 <= config.warmup_ratio < 1, "0 up to below 1"),
        ("warmup_steps", config.warmup_steps is None or config.warmup_steps >= 0, "0 or more, or none"),
        ("schedule", config.schedule in ("cosine", "linear", "constant"), "cosine, linear or constant"),
        ("weight_decay", config.weight_decay >= 0, "0 or more"),
        ("gradient_clipping", config.gradient_clipping >= 0, "0 (off) or more"),
        ("max_length", config.max_length is None or config.max_length >= 4, "4 or more tokens"),
        ("dtype", config.dtype in ("auto", "float32", "bfloat16"), "auto, float32 or bfloat16"),
        ("quantization", config.quantization in ("none", "nf4"), "none or nf4"),
        (
            "quantization",
            config.quantization == "none" or importlib.util.find_spec("bitsandbytes") is not None,
            "the package bitsandbytes to be installed for it",
        ),
        ("start", config.start in ("base", "incumbent"), "base or incumbent"),
        ("save_steps", config.save_steps is None or config.save_steps >= 1, "1 or more, or none"),
        ("eval_steps", config.eval_steps is None or config.eval_steps >= 1, "1 or more, or none"),
        ("zero_stage", config.zero_stage in (0, 1, 2, 3), "0, 1, 2 or 3"),
        (
            "zero_stage",
            config.zero_stage < 3 or config.quantization == "none",
            "2 or less with nf4, whose 4-bit blocks cannot be cut up; or quantization=none",
        ),
    ]
    for name, holds, expected in rules:
        if not holds:
            raise BadInput(f"{job}.{name}: {getattr(config, name)} given; expected {expected}")
    if base is not None:
        from models.weights import check_folder

        check_folder(base)


def why_not_longer(config: Settings) -> str:
    """Why more epochs are not fewer ones gone on with; '' where they are. `Job.longer`."""
    if config.schedule != "constant":
        return f"the rate of schedule={config.schedule} depends on how many there are; schedule=constant does not"
    if config.warmup_ratio and config.warmup_steps is None:
        return "warmup_ratio is a share of all steps; give warmup_steps, or warmup_ratio=0"
    if config.eval_steps or getattr(config, "checkpoints", None):
        return "the end is measured too, wherever it is; without eval_steps and checkpoints each epoch's end is"
    return ""


def retrieval_metric(config: Settings) -> Rule:
    known = bool(re.fullmatch(r"(map|r|ndcg|p|hit)@[1-9]\d*|mrr|map", config.metric))
    return ("metric", known, "map@25, r@10, mrr or the like")


def targets(config: Settings) -> str | list[str]:
    """The layers that get LoRA, as PEFT takes them."""
    names = config.targets
    return names if names == "all-linear" else [name.strip() for name in names.split(",")]


def steps(job: str, triplets: Triplets, config: Lists, place: Place) -> list[int]:
    """Steps of each epoch. Raises BadInput where a worker would have no query in one."""
    count = triplets.steps(config.batch)
    smallest = len(triplets) // count
    if smallest < place.workers:
        raise BadInput(
            f"{job}.workers: {place.workers} given, for steps of {smallest} queries; expected at most one worker per"
            " query; lower workers, or raise batch"
        )
    return [count] * config.epochs


def adapted(model: Any, config: Settings, incumbent: Path | None, **kind: Any) -> Any:
    """A loaded model with the adapter that is trained: a fresh one, or the incumbent's to go on from.

    kind: `whole` and `task` of `models.lora.attach`."""
    from models import lora
    from models.fused_lora import fuse
    from models.loading import moved

    device, dtype = model.device, model.dtype
    if incumbent is not None:
        with_adapter = lora.load(model, incumbent, trainable=True)
    else:
        with_adapter = lora.attach(
            model,
            rank=config.rank,
            alpha=config.alpha,
            dropout=config.dropout,
            targets=targets(config),
            seed=config.seed,
            **kind,
        )
    moved(with_adapter, device, dtype)
    if config.zero_stage < 3:  # which gathers the weights of the layers that PEFT calls, not of what is fused
        fuse(with_adapter)
    if config.gradient_checkpointing:
        with_adapter.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return with_adapter


def shown(config: Settings, metrics_at: Callable[[list[int]], RankMetrics], *names: str) -> dict[str, float]:
    """The metrics of an evaluation's line: the one that decides, and `names`. metrics_at: them all, for these K."""
    wanted = list(dict.fromkeys((config.metric, *names)))
    cut_offs = sorted({int(name.partition("@")[2]) for name in wanted if "@" in name})
    values = metrics_at(cut_offs or [1]).values
    return {name: round(values[name], 6) for name in wanted}


def finetuned(
    context: Context,
    config: Settings,
    trainee: type,
    arguments: dict[str, Any],
    incumbent: Path | None,
    *,
    base_can: bool = True,
    checkpoints: tuple[int, ...] = (),
    folder: str = "adapter",
    keep: Callable[[Path | None, Path], None] | None = None,
) -> Result:
    """Trains, keeps what is best on held-out rows in `context.out/folder`, tells how it went.

    base_can: whether the base without an adapter is a model to fall back to; a fresh head is none.
    checkpoints: steps whose models are kept too, as `checkpoint-STEP`. keep(incumbent, folder): puts there what is
    kept where nothing was better; an adapter's by default.
    """
    options = Options(
        epochs=config.epochs,
        learning_rate=config.learning_rate,
        schedule=config.schedule,
        warmup_ratio=config.warmup_ratio,
        warmup_steps=config.warmup_steps,
        weight_decay=config.weight_decay,
        gradient_clipping=config.gradient_clipping,
        zero_stage=config.zero_stage,
        seed=config.seed,
        metric=config.metric,
        save_steps=config.save_steps,
        eval_steps=config.eval_steps,
        checkpoints=checkpoints,
    )
    best_folder = context.out / folder
    history = train(context, options, trainee, arguments, best_folder)
    for step in checkpoints:
        # Not moved: a run that is killed here finds them again.
        shutil.copytree(checkpoint_folder(context, step), context.out / f"checkpoint-{step}")
    assert history.best is not None
    before, after = history.start[config.metric], history.evaluations[history.best][config.metric]
    improved = better(config.metric, history.evaluations[history.best], history.start)
    unit = "step" if config.eval_steps or checkpoints else "epoch"
    best = history.best + 1 if unit == "epoch" else history.evaluated_at[history.best]
    kept = f"{unit} {best}"
    if not improved and not config.allow_regression and (incumbent is not None or base_can):
        kept = "incumbent" if incumbent else "base"
        (keep or _keep)(incumbent, best_folder)
    return Result(
        {
            "loss": _rounded(history.evaluations[-1]["loss"]),
            f"valid {config.metric}": after if kept == f"{unit} {best}" else before,
            f"valid {config.metric} at the start": before,
            f"valid {config.metric} of the best {unit}": after,
            f"best {unit}": best,
            "kept": kept,
            "improved": improved,
        },
        {f"{unit}s": _table(history, unit, kept)},
        _curves(history),
    )


def _table(history: History, unit: str, kept: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{unit: "start", "loss": None, **history.start}]
    at = range(1, len(history.evaluations) + 1) if unit == "epoch" else history.evaluated_at
    rows += [{unit: str(number), **entry} for number, entry in zip(at, history.evaluations, strict=True)]
    chosen = kept.removeprefix(f"{unit} ") if kept.startswith(unit) else "start"
    return [
        {unit: row[unit], "loss": row["loss"] and _rounded(row["loss"])}
        | {f"valid {name}": row[name] for name in history.start}
        | {"best": row[unit] == chosen}
        for row in rows
    ]


def _curves(history: History) -> dict[str, dict[str, list[float]]]:
    steps = [float(number) for number in range(1, len(history.loss) + 1)]
    curves = {"loss": history.loss, "learning rate": history.learning_rate, "gradient norm": history.gradient_norm}
    return {
        f"{name} against step": {"x": steps, "y": [_rounded(value) for value in values]}
        for name, values in curves.items()
    }


def _keep(incumbent: Path | None, adapter: Path) -> None:
    """Puts the incumbent's files there; for a bare base an adapter that changes nothing: B is 0."""
    if incumbent is not None:
        shutil.rmtree(adapter)
        shutil.copytree(incumbent, adapter)
        return
    from safetensors.torch import load_file, save_file

    weights = load_file(adapter / "adapter_model.safetensors")
    changed = {name: value * 0 if "lora_B" in name else value for name, value in weights.items()}
    save_file(changed, adapter / "adapter_model.safetensors", metadata={"format": "pt"})


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
