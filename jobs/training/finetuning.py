"""Finetuning that never makes the model worse: train, and keep the model that is best on held-out rows.

The model is evaluated before and during training. If the best evaluation does not improve on the one before training,
the current best adapter (or the base) is kept instead.
"""

import filecmp
import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ratchet.jobs.distributed.resolve_dtype import resolve_dtype
from ratchet.jobs.training.checkpoints import checkpoint_folder
from ratchet.jobs.training.config import FinetuneConfig, check_adapter
from ratchet.jobs.training.evaluation import decide
from ratchet.jobs.training.ray_train import train
from ratchet.jobs.training.schedule import TrainHistory
from ratchet.jobs.training.task import FinetuneTask
from ratchet.models.adapters import lora
from ratchet.models.model_files import find_weights
from ratchet.orchestrator.job_interface import Context, Result, digests

MIN_CHANGED = 20
"""Changed groups of a cross-validation from which the metric decides. For fewer the losses tell more."""


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
    """Train, and write the model that is best on held-out rows to `context.out`: as `adapter` or `model`. If
    nothing is held out, the last model is written. Models of other evaluations that the config keeps
    (`config.keeps_all`) are written to `checkpoint-STEP` or `checkpoint-epoch-N`.

    inputs: has `base` and `current_best`. base_is_usable: whether the base itself can be kept; a base that gets a new
    head cannot. pool_rows: corpus rows that held-out queries are ranked against; None: the whole corpus.
    cross_validated: the history that decides, and chooses the epoch, instead of that on `valid`; see
    `cross_validation`. arguments: further arguments of `task_class`."""
    config = resolve_dtype(context, config)
    # At plan time the current best may not have existed.
    notes = [check_adapter(task_class.job, config, inputs.current_best)]
    if pool_rows is not None:
        arguments["pool_rows"] = pool_rows
    make_task = partial(task_class, inputs=inputs, resources=context.resources, **arguments)
    trained = config
    if cross_validated is not None:
        trained = replace(config, keep="all")
    folder = context.out / ("model" if config.method == "full" else "adapter")
    history = train(context, trained, make_task, folder)
    if cross_validated is not None:
        history.best = cross_validated.best
        if inputs.valid is None:
            history.start = cross_validated.start
            for own, of_folds in zip(history.evaluations, cross_validated.evaluations, strict=True):
                own |= of_folds
        shutil.rmtree(folder)
        _copy_checkpoint(context, history.evaluated_at[history.best or 0], folder)
    assert history.best is not None
    _copy_checkpoints(context, config, history)

    numbers = number_evaluations(config, history)
    best = history.evaluations[history.best]
    kept = f"{config.unit} {numbers[history.best]}"
    value = best.get(config.metric, 0.0)
    if cross_validated is None:
        decision = decide(config, history)
    else:
        decision = decide(config, cross_validated, least_changed=MIN_CHANGED)
    is_given = config.allow_regression or config.keep == "last"
    note = ""
    if config.metric not in history.start:
        note = f"kept the last {config.unit}: nothing is held out, nothing was compared"
    elif decision.reason and not is_given and (inputs.current_best is not None or base_is_usable):
        kept = "base" if inputs.current_best is None else "current_best"
        value = history.start[config.metric]
        note = f"kept the {kept.replace('_', ' ')}: {decision.reason}"
        _keep_start(config, inputs, folder)
    elif decision.by_loss and not decision.reason:
        note = f"better by the held-out loss, p {decision.p_value:.2g}: valid is too small to test {config.metric}"
    if cross_validated is not None:
        said = "in a cross-validation of the training queries"
        note = f"{note}, {said}" if note else f"better {said}"
    notes.append(note)
    if history.epoch < config.epochs:
        last = history.epoch + (history.step > 0)
        notes.append(f"stopped in epoch {last} of {config.epochs} (patience={config.patience})")

    metrics: dict[str, Any] = {"loss": _round(history.evaluations[-1]["loss"])}
    if config.metric in history.start:
        metrics |= {
            f"valid/{config.metric}": value,
            f"valid/{config.metric}_start": history.start[config.metric],
            f"valid/{config.metric}_best": best[config.metric],
            "improved": not decision.reason,
        }
        if decision.p_value is not None:
            metrics["p_value"] = _round(decision.p_value)
            metrics["tested"] = "eval_loss" if decision.by_loss else config.metric
            metrics["tested_on"] = "valid"
            if cross_validated is not None:
                metrics["tested_on"] = "folds of the training queries"
        if pool_rows is not None:
            metrics["valid/documents"] = len(pool_rows)
    is_new = kept.startswith(config.unit)
    trainable_weights, weights = history.weights
    metrics |= {
        f"best_{config.unit}": numbers[history.best],
        "kept": kept,
        "changed": is_new or (kept == "current_best" and _differs_from_base(inputs, folder)),
        "dtype": config.dtype,
        "trainable_weights": trainable_weights,
        "weights": weights,
        "trainable_percent": round(100 * trainable_weights / weights, 4),
        **history.counts,
    }
    tables = {f"{config.unit}s": _tabulate(config, history, numbers, kept)}
    curves = _draw_curves(history)
    if hasattr(config, "checkpoints") or config.keep == "all":  # for those that choose one
        found = {"metric": config.metric, "tables": tables, "curves": curves}
        found["changed"] = metrics["changed"]
        (context.out / "history.json").write_text(json.dumps(found) + "\n")
    tables |= history.tables
    return Result(metrics, tables, curves, note="; ".join(filter(None, notes))), history


def number_evaluations(config: FinetuneConfig, history: TrainHistory) -> list[int]:
    """Return what the evaluations are called: their training steps or epochs."""
    if config.unit == "epoch":
        return list(range(1, len(history.evaluations) + 1))
    return history.evaluated_at


def _copy_checkpoints(context: Context, config: FinetuneConfig, history: TrainHistory) -> None:
    """Copy the models of evaluations that the config keeps into the output."""
    numbers = number_evaluations(config, history)
    for number, step in zip(numbers, history.evaluated_at, strict=True):
        if config.keep == "all" or step in config.kept_steps:
            name = f"checkpoint-{number}" if config.unit == "step" else f"checkpoint-epoch-{number}"
            _copy_checkpoint(context, step, context.out / name)


def _copy_checkpoint(context: Context, step: int, target: Path) -> None:
    # Copied, not moved: if the run is killed here, the next attempt needs it.
    ignored = shutil.ignore_patterns(digests.NAME)
    shutil.copytree(checkpoint_folder(context, step), target, ignore=ignored)


def _tabulate(
    config: FinetuneConfig, history: TrainHistory, numbers: list[int], kept: str
) -> list[dict[str, Any]]:
    """Return a row for the start and one for each evaluation. numbers: their epochs or training steps."""
    unit = config.unit
    # A new head is not evaluated before training, but the lists are that it will rerank.
    names = list(dict.fromkeys([*history.start, *history.evaluations[0]]))
    names.remove("loss")
    names.sort(key=lambda name: name != "eval_loss")  # the losses side by side
    first: dict[str, Any] = {unit: "start", "loss": None}
    for name in names:
        first[f"valid/{name}"] = history.start.get(name)
    first["best"] = not kept.startswith(unit)
    rows = [first]
    for number, evaluation in zip(numbers, history.evaluations, strict=True):
        row: dict[str, Any] = {unit: str(number), "loss": _round(evaluation["loss"])}
        for name in names:
            row[f"valid/{name}"] = evaluation[name]
        row["best"] = kept == f"{unit} {number}"
        rows.append(row)
    return rows


def _draw_curves(history: TrainHistory) -> dict[str, dict[str, list[float]]]:
    curves = {
        "loss": history.loss,
        "learning rate": history.learning_rate,
        "gradient norm": history.gradient_norm,
        **history.others,
    }
    steps = np.arange(1.0, len(history.loss) + 1).tolist()
    found = {}
    for name, values in curves.items():
        found[f"{name} against step"] = {"x": steps, "y": list(map(_round, values))}
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
