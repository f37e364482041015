"""choose_checkpoint: take the model of a chosen epoch, from a finetuning that kept the models of all evaluations.

Training does not run again when another epoch is chosen. What follows uses the chosen model.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import Context, Job, Parents, PositiveInt, Result


@dataclass(frozen=True)
class Config:
    checkpoint: PositiveInt | None = None
    """Epoch whose model is taken, or with eval_steps the training step, even if its model improves nothing. None: the
    model that the training returned."""


@dataclass(frozen=True)
class Inputs:
    training: Path
    """The output of a finetuning job with keep=all."""


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Raise InputError for a training that does not keep all models, for an epoch after the last one, and for a
    training step without an evaluation."""
    known = parents.get("training", Result()).metrics
    if known.get("keep", "all") != "all":
        raise InputError(
            f"choose_checkpoint.training: a training with keep={known['keep']} given; expected keep=all; set it"
        )
    epochs = known.get("epochs")
    if isinstance(epochs, int) and config.checkpoint is not None and config.checkpoint > epochs:
        raise InputError(
            f"choose_checkpoint.checkpoint: {config.checkpoint} given, of {epochs} epochs; expected one of these; lower"
            " it, or train for more"
        )
    eval_steps = known.get("eval_steps", 1)
    if isinstance(eval_steps, int) and (config.checkpoint or 0) % eval_steps:
        raise InputError(
            f"choose_checkpoint.checkpoint: {config.checkpoint} given, of a training with eval_steps={eval_steps};"
            " expected a multiple of it"
        )
    return Result(known)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    kind = "model" if (inputs.training / "model").is_dir() else "adapter"
    history = json.loads((inputs.training / "history.json").read_text())
    (title,) = history["tables"]
    unit = title.removesuffix("s")
    rows = history["tables"][title]
    best = next(row for row in rows if row["best"])
    name = str(config.checkpoint or best[unit])
    known = [row[unit] for row in rows if row[unit] != "start"]
    if name not in [*known, best[unit]]:
        raise InputError(
            f"step {context.step}: checkpoint={name} given; expected one of the {title} {', '.join(known)}; choose"
            " one of these"
        )
    folder = inputs.training / kind
    gate = inputs.training / "teacher_gate"
    note = ""
    if config.checkpoint is not None:
        folder = inputs.training / f"checkpoint-{'epoch-' if unit == 'epoch' else ''}{name}"
        gate = gate / f"{unit}-{name}"
        if name != best[unit]:
            note = f"{unit} {name} was chosen; the training returned {best[unit]}"
    shutil.copytree(folder, context.out / kind)
    if gate.is_dir():
        shutil.copytree(
            gate, context.out / "teacher_gate", ignore=shutil.ignore_patterns(f"{unit}-*")
        )
    metrics = {"kept": name, "changed": config.checkpoint is not None or history["changed"]}
    chosen = next(row for row in rows if row[unit] == name)
    for key, value in chosen.items():
        if key.startswith("valid/") and value is not None:
            metrics[key] = value
    return Result(metrics, note=note)


JOB = Job(
    "choose_checkpoint",
    Config,
    Inputs,
    run,
    check=check,
    resources=("retries",),
    outputs=("adapter", "model", "teacher_gate"),
)
