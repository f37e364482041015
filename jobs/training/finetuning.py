"""Finetuning that never makes the model worse: train, and keep the model that is best on held-out rows.

The model is evaluated before and during training. If the best evaluation does not improve on the one before training,
the current best adapter (or the base) is kept instead.
"""

from __future__ import annotations

import filecmp
import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ratchet.jobs.distributed.resolve_dtype import resolve_dtype
from ratchet.jobs.training.checkpoints import checkpoint_folder
from ratchet.jobs.training.config import FinetuneConfig, check_adapter
from ratchet.jobs.training.evaluation import Decision, decide
from ratchet.jobs.training.merging_cost import write_selection
from ratchet.jobs.training.ray_train import train
from ratchet.jobs.training.schedule import TrainHistory
from ratchet.jobs.training.task import FinetuneTask
from ratchet.models.adapters import lora
from ratchet.models.model_files import find_weights
from ratchet.orchestrator.job_interface import Context, Result, digests


@dataclass(frozen=True)
class Kept:
    """The model that is kept, and why."""

    name: str
    """`epoch N`, `step N`, `current_best` or `base`."""
    value: float
    """Its held-out metric."""
    note: str


def run_finetuning(
    context: Context,
    config: FinetuneConfig,
    task_class: type[FinetuneTask],
    inputs: Any,
    *,
    base_is_usable: bool = True,
    pool_rows: np.ndarray | None = None,
    cross_validated: TrainHistory | None = None,
    **arguments: Any,
) -> tuple[Result, TrainHistory]:
    """Train, and write the model that is best on held-out rows to `context.out`: as `adapter` or `model`, with its
    metric in `selection.json`. If nothing is held out, the last model is written. Models of other evaluations that the
    config keeps (`config.keeps_all`) are written to `checkpoint-STEP` or `checkpoint-epoch-N`.

    inputs: has `base` and `current_best`. base_is_usable: whether the base itself can be kept; a base that gets a new
    head cannot. pool_rows: corpus rows that held-out queries are ranked against; None: the whole corpus.
    cross_validated: the history that decides, and chooses the epoch, instead of that on `valid`; see
    `cross_validation`. arguments: further arguments of `task_class`."""
    config = resolve_dtype(context, config)
    continued = check_adapter(
        task_class.job, config, inputs.current_best
    )  # at plan time it may not have existed
    if pool_rows is not None:
        arguments["pool_rows"] = pool_rows
    make_task = partial(task_class, inputs=inputs, resources=context.resources, **arguments)
    trained = config
    if cross_validated is not None:
        assert cross_validated.best is not None
        trained = replace(config, epoch=cross_validated.best + 1)
    if config.method == "full":
        best_folder = context.out / "model"
    else:
        best_folder = context.out / "adapter"
    history = train(context, trained, make_task, best_folder)
    _copy_checkpoints(context, config, history)

    decision = decide(config, cross_validated or history, by_loss=cross_validated is not None)
    start_is_usable = inputs.current_best is not None or base_is_usable
    kept = _choose(config, history, decision, inputs.current_best, start_is_usable)
    if kept.name in ("current_best", "base"):
        _keep_start(config, inputs, best_folder)
    notes = [continued, kept.note]
    if cross_validated is not None:
        notes[1] += " (cross-validation of the training queries)"

    metrics: dict[str, float | int | str] = {"loss": _round(history.evaluations[-1]["loss"])}
    if config.metric in history.start:
        write_selection(context.out, config.metric, kept.value, exact=pool_rows is None)
        metrics |= _compare(config, history, decision, kept, cross_validated is not None)
        if pool_rows is not None:
            metrics["valid/documents"] = len(pool_rows)
    else:
        notes[1] = f"kept the last {config.unit}: nothing is held out, nothing was compared"
    is_new = kept.name.startswith(config.unit)
    trainable_weights, weights = history.weights
    metrics |= {
        f"best_{config.unit}": _find_best(config, history),
        "kept": kept.name,
        "changed": is_new
        or (kept.name == "current_best" and _differs_from_base(inputs, best_folder)),
        "dtype": config.dtype,
        "trainable_weights": trainable_weights,
        "weights": weights,
        "trainable_percent": round(100 * trainable_weights / weights, 4),
    }
    tables = {f"{config.unit}s": _tabulate(config, history, kept)}
    return Result(
        metrics, tables, _draw_curves(history), note="; ".join(filter(None, notes))
    ), history


def _copy_checkpoints(context: Context, config: FinetuneConfig, history: TrainHistory) -> None:
    """Copy the models of evaluations that the config keeps into the output."""
    for number, step in enumerate(history.evaluated_at, start=1):
        if config.keep == "all" or step in config.kept_steps:
            if config.unit == "step":
                name = f"checkpoint-{step}"
            else:
                name = f"checkpoint-epoch-{number}"
            # Copied, not moved: if the run is killed here, the next attempt needs them.
            ignored = shutil.ignore_patterns(digests.NAME)
            shutil.copytree(checkpoint_folder(context, step), context.out / name, ignore=ignored)


def _find_best(config: FinetuneConfig, history: TrainHistory) -> int:
    """Return the epoch or training step of the best evaluation."""
    assert history.best is not None
    if config.unit == "epoch":
        return history.best + 1
    return history.evaluated_at[history.best]


def _choose(
    config: FinetuneConfig,
    history: TrainHistory,
    decision: Decision,
    current_best: Path | None,
    start_is_usable: bool,
) -> Kept:
    assert history.best is not None
    is_given = config.allow_regression or config.epoch is not None
    if decision.reason and not is_given and start_is_usable:
        if current_best is not None:
            name = "current_best"
        else:
            name = "base"
        note = f"kept the {name.replace('_', ' ')}: {decision.reason}"
        return Kept(name, history.start.get(config.metric, 0.0), note)
    note = ""
    if decision.by_loss and not decision.reason:
        note = f"better by the held-out loss, p {decision.p_value:.2g}: valid is too small to test {config.metric}"
    value = history.evaluations[history.best].get(config.metric, 0.0)
    return Kept(f"{config.unit} {_find_best(config, history)}", value, note)


def _compare(
    config: FinetuneConfig,
    history: TrainHistory,
    decision: Decision,
    kept: Kept,
    is_cross_validated: bool,
) -> dict[str, float | int | str]:
    """Return the metrics that compare the best evaluation with the start."""
    assert history.best is not None
    name = f"valid/{config.metric}"
    metrics: dict[str, float | int | str] = {
        name: kept.value,
        f"{name}_start": history.start[config.metric],
        f"{name}_best": history.evaluations[history.best][config.metric],
        "improved": not decision.reason,
    }
    if decision.p_value is None:
        return metrics
    metrics["p_value"] = _round(decision.p_value)
    metrics["tested"] = config.metric
    if decision.by_loss:
        metrics["tested"] = "eval_loss"
    metrics["tested_on"] = "valid"
    if is_cross_validated:
        metrics["tested_on"] = "folds of the training queries"
    return metrics


def _tabulate(config: FinetuneConfig, history: TrainHistory, kept: Kept) -> list[dict[str, Any]]:
    """Return a row for the start and one for each evaluation."""
    unit = config.unit
    numbers: list[int] = list(range(1, len(history.evaluations) + 1))
    if unit == "step":
        numbers = history.evaluated_at
    evaluations: list[tuple[str, dict[str, Any]]] = [("start", history.start)]
    for number, evaluation in zip(numbers, history.evaluations, strict=True):
        evaluations.append((str(number), evaluation))
    chosen = "start"
    if kept.name.startswith(unit):
        chosen = kept.name.removeprefix(f"{unit} ")
    rows = []
    for label, evaluation in evaluations:
        row: dict[str, Any] = {unit: label, "loss": None}
        if label != "start":
            row["loss"] = _round(evaluation["loss"])
        for name in history.start:
            row[f"valid/{name}"] = evaluation[name]
        row["best"] = label == chosen
        rows.append(row)
    return rows


def _draw_curves(history: TrainHistory) -> dict[str, dict[str, list[float]]]:
    curves = {
        "loss": history.loss,
        "learning rate": history.learning_rate,
        "gradient norm": history.gradient_norm,
    }
    steps = []
    for number in range(1, len(history.loss) + 1):
        steps.append(float(number))
    found = {}
    for name, values in (curves | history.others).items():
        found[f"{name} against step"] = {"x": steps, "y": [_round(value) for value in values]}
    return found


def _keep_start(config: FinetuneConfig, inputs: Any, folder: Path) -> None:
    """Replace the trained weights in `folder`: by the current best, or without one by the base's weights. With LoRA the
    latter means an adapter that changes nothing (B is 0, and a head has the base's weights). Other files, such as the
    encoding config, are kept."""
    if inputs.current_best is not None:
        shutil.rmtree(folder)
        shutil.copytree(inputs.current_best, folder)
    elif config.method == "full":
        for path in folder.glob("model*.safetensors*"):
            path.unlink()
        for path in [inputs.base / "config.json", *inputs.base.glob("model*.safetensors*")]:
            shutil.copyfile(path, folder / path.name)
    else:
        weights = load_file(folder / lora.WEIGHTS)
        stored = find_weights(inputs.base)
        for name, value in weights.items():
            if "lora_B" in name:
                weights[name] = value * 0
            plain = name.removeprefix("base_model.model.")
            if (
                "lora_" not in name and plain in stored
            ):  # weights of a head, which is trained in full
                with safe_open(inputs.base / stored[plain], "pt") as file:
                    weights[name] = file.get_tensor(plain).to(value.dtype)
        save_file(weights, folder / lora.WEIGHTS, metadata={"format": "pt"})


def _differs_from_base(inputs: Any, folder: Path) -> bool:
    """Return whether the adapter or model in `folder` has other weights than the base. A current best that was kept may
    be the base itself, which an earlier step kept."""
    adapter = folder / lora.WEIGHTS
    if adapter.is_file():
        with safe_open(adapter, "pt") as file:
            names = [name for name in file.keys() if "lora_B" in name]  # noqa: SIM118
            return any(bool(file.get_tensor(name).any()) for name in names)
    for path in folder.glob("model*.safetensors"):
        original = inputs.base / path.name
        if not original.is_file() or not filecmp.cmp(path, original, shallow=False):
            return True
    return False


def _round(value: float) -> float:
    return float(f"{value:.6g}")
