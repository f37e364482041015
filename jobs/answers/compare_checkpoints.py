"""compare_checkpoints: compare losses, gradient norm, pass@k and failures of a run's checkpoints, and find collapses.

The best checkpoint is selected on the held-out samples of training (`valid`), never on the test questions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import Context, Job, Parents, Result


@dataclass(frozen=True)
class Config:
    steps: tuple[Annotated[int, Ge(1)], ...]
    """Training steps of the checkpoints, in the order of `evaluations`."""


@dataclass(frozen=True)
class Inputs:
    training: Path
    """The output of `sft` or `grpo`."""
    evaluations: tuple[Path, ...]
    """The output of `evaluate_answers` for each checkpoint, on the same samples."""
    before: Path | None = None
    """The output of `evaluate_answers` for the model before training. None: it is not in the comparison."""


def check(config: Config, inputs: Inputs, parents: Parents) -> None:
    if list(config.steps) != sorted(set(config.steps)) or not config.steps:
        raise InputError(
            f"compare_checkpoints.steps: {config.steps} given; expected increasing training steps"
        )
    if inputs.evaluations is not None and len(inputs.evaluations) != len(config.steps):
        raise InputError(
            f"compare_checkpoints.evaluations: {len(inputs.evaluations)} given, for {len(config.steps)} checkpoints;"
            " expected one per checkpoint"
        )


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.data.tasks.answers import find_collapses
    from ratchet.jobs.training.schedule import is_better

    history = json.loads((inputs.training / "history.json").read_text())
    training = {row["step"]: row for row in history["tables"]["steps"]}
    norms = history["curves"]["gradient norm against step"]["y"]
    if inputs.before:
        checkpoints = [("start", 0, inputs.before)]
    else:
        checkpoints = []
    checkpoints += [
        (str(step), step, folder)
        for step, folder in zip(config.steps, inputs.evaluations, strict=True)
    ]
    summaries = []
    for _, _, folder in checkpoints:
        if folder:
            summaries.append(json.loads((folder / "summary.json").read_text()))
    if len({summary["questions"] for summary in summaries}) > 1:
        raise InputError(
            "compare_checkpoints.evaluations: different numbers of questions given; expected evaluations on the same"
            " samples"
        )
    names = [name for name in summaries[0]["metrics"] if name.startswith("pass@")]
    # The failure labels of a user's verifier are known only from the answers that have them.
    failures = list(dict.fromkeys(name for summary in summaries for name in summary["failures"]))
    held_out = [name for name in history["tables"]["steps"][0] if name.startswith("valid/")]
    rows: list[dict[str, Any]] = []
    for (label, step, _), summary in zip(checkpoints, summaries, strict=True):
        row = {"step": label, "train_loss": training[label]["loss"]}
        for name in held_out:
            row[name] = training[label][name]
        row["gradient_norm"] = norms[step - 1] if step else None
        for name in names:
            row[name] = summary["metrics"][name]
        for name in failures:
            row[name] = summary["failures"].get(name, 0)
        rows.append(row)
    accuracy = [row["pass@1"] for row in rows]
    questions = summaries[0]["questions"]
    collapsed = find_collapses(accuracy, questions)
    best = 0  # selected on the held-out samples, not on the test questions that were answered above
    for number, row in enumerate(rows):
        if number in collapsed:
            row["note"] = "collapsed"
        else:
            row["note"] = ""
        values = {}
        than = {}
        for name in held_out:
            values[name.removeprefix("valid/")] = row[name]
            than[name.removeprefix("valid/")] = rows[best][name]
        if is_better(history["metric"], values, than):
            best = number
    rows[best]["note"] = (rows[best]["note"] + " best").strip()
    x = [float(step) for _, step, _ in checkpoints]
    curves = {}
    for name in names:
        y = [row[name] for row in rows]
        curves[f"pass@k against step | {name}"] = {"x": x, "y": y}
    for name in failures:
        y = [round(row[name] / questions, 6) for row in rows]
        curves[f"share of questions failed against step | {name}"] = {"x": x, "y": y}
    described = []
    for i in collapsed:
        described.append(
            f"from {rows[i - 1]['step']} to {rows[i]['step']}: pass@1 {accuracy[i - 1]:.3f} to {accuracy[i]:.3f}"
        )
    (context.out / "checkpoints.json").write_text(json.dumps(rows, indent=2) + "\n")
    metrics = {"best_checkpoint": rows[best]["step"], **{name: rows[best][name] for name in names}}
    return Result(
        {**metrics, "collapses": "; ".join(described) or "none"}, {"checkpoints": rows}, curves
    )


JOB = Job(
    "compare_checkpoints",
    config=Config,
    inputs=Inputs,
    run=run,
    resources=("retries",),
    check=check,
)
