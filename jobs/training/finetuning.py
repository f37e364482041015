"""Finetuning that never makes the model worse: train, and keep the model that is best on held-out rows.

The model is evaluated before and during training. If the best evaluation does not improve on the one before training,
the current best adapter (or the base) is kept instead.
"""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from ratchet.errors import InputError
from ratchet.jobs.distributed.resolve_dtype import resolve_dtype
from ratchet.jobs.training.checkpoints import checkpoint_folder
from ratchet.jobs.training.config import FinetuneConfig, check_adapter, find_start
from ratchet.jobs.training.evaluation import Evaluation, decide
from ratchet.jobs.training.ray_train import train
from ratchet.jobs.training.schedule import TrainHistory
from ratchet.jobs.training.selection import write_selection
from ratchet.jobs.training.task import WorkerInfo
from ratchet.models.adapters import lora
from ratchet.models.adapters.shard_merge import list_tensors
from ratchet.models.batching import find_overhead, group_by_length
from ratchet.models.engine import load_partitioned
from ratchet.models.loading import add_other_adapter, eval_mode, other_adapter, save_weights, train_in_float32
from ratchet.models.pass_size import size_passes
from ratchet.orchestrator.job_interface import Context, Resources, Result, digests


class FinetuneTask:
    """Base class of training tasks: the model, its batches, loss and evaluation. Each worker constructs one, with
    `worker=` and the arguments of `train`. A subclass loads the model, and defines `steps`, `parts` and `evaluate`."""

    job: ClassVar[str]
    """The name of the job, for errors."""
    model: Any
    """A torch module. Parameters that require a gradient are trained, in float32 or in bfloat16 with float32 master
    weights."""
    steps: Sequence[int]
    """Number of training steps of each epoch."""

    def __init__(self, worker: WorkerInfo, config: Any, inputs: Any, resources: Resources) -> None:
        """config: a FinetuneConfig. inputs: has `base` and `current_best`, as the inputs of every finetuning job."""
        self.worker = worker
        self.config = config
        self.inputs = inputs
        self.resources = resources
        if worker.device == "cpu":
            self.device = "cpu"
        else:
            self.device = "cuda"
        self.multiple, self.pass_tokens = size_passes(self.device, resources.batch_tokens, training=True)

    def load(self, load_model: Callable[..., Any], base: Path, *, zero_stage: int | None = None, **options: Any) -> Any:
        """Load a model to train. zero_stage: None: `config.zero_stage`. options: further arguments of `load_model`."""
        config = self.config
        options = {"dtype": config.dtype, "device": self.device, "quantization": config.quantization} | options
        if zero_stage is None:
            stage = config.zero_stage
        else:
            stage = zero_stage
        with load_partitioned(options["dtype"], self.device, zero_stage=stage, offload=config.offload):
            return load_model(base, training=True, **options)

    def make_trainable(self, model: Any, **options: Any) -> Any:
        """Return the model to train: itself with method=full, else with an adapter, which is the current best one if
        training starts from it, or a new one.

        options: `modules_to_save` and `task` of `ratchet.models.adapters.lora.attach`."""
        config = self.config
        current_best = self.inputs.current_best
        if config.method == "full":
            if config.gradient_checkpointing:
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            return model
        resumes = config.start_from == "current_best"
        if current_best is not None and resumes:
            with_adapter = lora.load(model, current_best, trainable=True, lora_dropout=config.lora_dropout)
        else:
            with_adapter = lora.attach(
                model,
                lora_r=config.lora_r,
                lora_alpha=config.lora_alpha,
                lora_dropout=config.lora_dropout,
                target_modules=lora.split_names(config.target_modules),
                seed=config.seed,
                **options,
            )
        train_in_float32(with_adapter)
        if config.gradient_checkpointing:
            with_adapter.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if config.zero_stage == 3 and current_best is not None and not resumes:
            add_other_adapter(with_adapter, current_best)
        return with_adapter

    def parts(self, epoch: int, step: int) -> Sequence[Callable[[], tuple[Tensor, int]]]:
        """Split a training step into parts that fit in memory. Each part runs a forward pass and returns (this worker's
        share of the loss, number of tokens). The loss of the batch is the sum over parts, averaged over workers. All
        workers must return the same number of parts."""
        raise NotImplementedError

    def evaluate(self) -> Evaluation:
        """Evaluate the model in its current state. Collective; all workers return the same evaluation."""
        raise NotImplementedError

    def evaluate_current_best(self) -> Evaluation:
        """Evaluate the current best where training starts from the base. If it is an adapter, the model has it now."""
        return self.evaluate()

    def evaluate_start(self) -> Evaluation:
        """Evaluate the model that training must improve on. Called on all workers before training, not on a resume."""
        current_best = self.inputs.current_best
        if current_best is None or self.config.start_from == "current_best":
            return self.evaluate()  # it is the model that training starts from
        if self.config.method == "full":
            return self.evaluate_current_best()
        with other_adapter(self.model, current_best), eval_mode(self.model):
            return self.evaluate_current_best()

    def save(self, folder: Path) -> None:
        """Write the trained adapter or model. Called on one worker."""
        if self.config.method == "full":
            save_weights(self.model, find_start(self.config, self.inputs)[0], folder)
        else:
            lora.save(self.model, folder)

    def group_rows(self, lengths: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Group rows of similar length into forward passes. Return the row indices of each pass."""
        overhead = find_overhead(self.device, self.model.config.get_text_config().hidden_size)
        return group_by_length(lengths, self.pass_tokens, self.multiple, overhead)

    def split_rows(self, rows: int) -> np.ndarray:
        """Return the indices of the rows that this worker evaluates, a consecutive range of `rows`."""
        return np.array_split(np.arange(rows), self.worker.world_size)[self.worker.rank]


def steps_of_epochs(job: str, rows: int, steps: int, epochs: int, worker: WorkerInfo) -> list[int]:
    """Return the number of training steps of each epoch. Raises InputError if a worker would get no row in a step."""
    smallest = rows // steps
    if smallest < worker.world_size:
        raise InputError(
            f"{job}.workers: {worker.world_size} given, for training steps of {smallest} rows; expected at most one"
            " worker per row; lower workers, or raise batch_size"
        )
    return [steps] * epochs


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
    `cross_validation`. arguments: arguments of `task_class` besides `config`, `inputs` and `resources`."""
    current_best: Path | None = inputs.current_best
    config = resolve_dtype(context, config)
    arguments |= {"config": config, "inputs": inputs, "resources": context.resources}
    arguments |= {} if pool_rows is None else {"pool_rows": pool_rows}
    best_folder = context.out / ("model" if config.method == "full" else "adapter")
    continued = check_adapter(task_class.job, config, current_best)  # at plan time it may not have existed
    if cross_validated is not None:
        assert cross_validated.best is not None
        arguments["config"] = replace(config, epoch=cross_validated.best + 1)
    history = train(context, arguments["config"], task_class, arguments, best_folder)
    if config.eval_steps or config.kept_steps:
        unit = "step"
    else:
        unit = "epoch"
    for number, step in enumerate(history.evaluated_at if config.keeps_all else [], 1):
        if config.keep == "all" or step in config.kept_steps:
            # Copied, not moved: if the run is killed here, the next attempt needs them.
            made = context.out / (f"checkpoint-{step}" if unit == "step" else f"checkpoint-epoch-{number}")
            shutil.copytree(checkpoint_folder(context, step), made, ignore=shutil.ignore_patterns(digests.NAME))
    assert history.best is not None
    before, after = (found.get(config.metric, 0.0) for found in (history.start, history.evaluations[history.best]))
    decision = decide(config, cross_validated or history, unit, by_loss=cross_validated is not None)
    if unit == "epoch":
        best = history.best + 1
    else:
        best = history.evaluated_at[history.best]
    kept = f"{unit} {best}"
    value = after
    note = ""
    chosen = config.allow_regression or config.epoch is not None
    if decision.reason and not chosen and (current_best is not None or base_is_usable):
        if current_best:
            kept = "current_best"
        else:
            kept = "base"
        value = before
        note = f"kept the {kept.replace('_', ' ')}: {decision.reason}"
        _keep_start(config, inputs, best_folder)
    elif decision.by_loss and not decision.reason:
        note = f"better by the held-out loss, p {decision.p_value:.2g}: valid is too small to test {config.metric}"
    if cross_validated is not None:
        note += " (cross-validation of the training queries)"
    name = f"valid/{config.metric}"
    compared: dict[str, float | int | str] = {name: value, f"{name}_start": before, f"{name}_best": after}
    compared["improved"] = not decision.reason
    if decision.p_value is not None:
        compared["p_value"] = _rounded(decision.p_value)
        if decision.by_loss:
            compared["tested"] = "eval_loss"
        else:
            compared["tested"] = config.metric
        if cross_validated is None:
            compared["tested_on"] = "valid"
        else:
            compared["tested_on"] = "folds of the training queries"
    if config.metric in history.start:
        write_selection(context.out, config.metric, value, exact=pool_rows is None)
        compared |= {} if pool_rows is None else {"valid/documents": len(pool_rows)}
    else:
        compared = {}
        note = f"kept the last {unit}: nothing is held out, nothing was compared"
    result = Result(
        {
            "loss": _rounded(history.evaluations[-1]["loss"]),
            **compared,
            f"best_{unit}": best,
            "kept": kept,
            "changed": kept == f"{unit} {best}" or (kept == "current_best" and _differs_from_base(inputs, best_folder)),
            "dtype": config.dtype,
            **dict(zip(("trainable_weights", "weights"), history.weights, strict=True)),
            "trainable_percent": round(100 * history.weights[0] / history.weights[1], 4),
        },
        {f"{unit}s": _table(history, unit, kept)},
        _curves(history),
        note="; ".join(filter(None, (continued, note))),
    )
    return result, history


def _table(history: TrainHistory, unit: str, kept: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{unit: "start", "loss": None, **history.start}]
    at = history.evaluated_at
    if unit == "epoch":
        at = list(range(1, len(history.evaluations) + 1))
    rows += [{unit: str(number), **entry} for number, entry in zip(at, history.evaluations, strict=True)]
    if kept.startswith(unit):
        chosen = kept.removeprefix(f"{unit} ")
    else:
        chosen = "start"
    found: list[dict[str, Any]] = []
    for row in rows:
        found.append(
            {unit: row[unit], "loss": row["loss"] and _rounded(row["loss"])}
            | {f"valid/{name}": row[name] for name in history.start}
            | {"best": row[unit] == chosen}
        )
    return found


def _curves(history: TrainHistory) -> dict[str, dict[str, list[float]]]:
    steps = []
    for number in range(1, len(history.loss) + 1):
        steps.append(float(number))
    curves = {"loss": history.loss, "learning rate": history.learning_rate, "gradient norm": history.gradient_norm}
    curves |= history.others
    found: dict[str, dict[str, list[float]]] = {}
    for name, values in curves.items():
        found[f"{name} against step"] = {"x": steps, "y": [_rounded(value) for value in values]}
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
        stored = {f"base_model.model.{one.name}": one for one in list_tensors(inputs.base)}
        for name, value in weights.items():
            if "lora_B" in name:
                weights[name] = value * 0
            elif (one := stored.get(name)) is not None:  # weights of a head, which is trained in full
                with safe_open(inputs.base / one.file, "pt") as file:
                    weights[name] = file.get_tensor(one.name).to(value.dtype)
        save_file(weights, folder / lora.WEIGHTS, metadata={"format": "pt"})


def _differs_from_base(inputs: Any, folder: Path) -> bool:
    """Return whether the adapter or model in `folder` has other weights than the base. A current best that was kept may
    be the base itself, which an earlier step kept."""
    adapter = folder / lora.WEIGHTS
    if adapter.is_file():
        with safe_open(adapter, "pt") as file:
            names = [name for name in file.keys() if "lora_B" in name]  # noqa: SIM118
            return any(bool(file.get_tensor(name).any()) for name in names)
    weights = []
    for path in folder.glob("model*.safetensors"):
        weights.append(path.name)
    return not all(
        (inputs.base / name).is_file() and filecmp.cmp(folder / name, inputs.base / name, shallow=False)
        for name in weights
    )


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
