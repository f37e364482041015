"""compare_checkpoints: a training's checkpoints side by side: losses, gradient norm, pass@k, what failed; collapses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.job import BadInput, Context, Job, Result


@dataclass(frozen=True)
class Config:
    steps: tuple[int, ...]
    """Of the checkpoints, in the order of `evaluations`."""


@dataclass(frozen=True)
class Inputs:
    training: Path
    """As `sft` writes it."""
    evaluations: tuple[Path, ...]
    """Of each checkpoint, by `evaluate_answers`, on the same examples."""
    before: Path | None = None
    """Of the model before training."""


def check(config: Config, inputs: Inputs) -> None:
    if list(config.steps) != sorted(set(config.steps)) or not config.steps:
        raise BadInput(f"compare_checkpoints.steps: {config.steps} given; expected rising numbers of steps")
    if inputs.evaluations is not None and len(inputs.evaluations) != len(config.steps):
        raise BadInput(
            f"compare_checkpoints.evaluations: {len(inputs.evaluations)} given, for {len(config.steps)} checkpoints;"
            " expected one each"
        )


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from data.tasks.answers import collapses

    history = json.loads((inputs.training / "history.json").read_text())
    trained = {row["step"]: row for row in history["tables"]["steps"]}
    norms = history["curves"]["gradient norm against step"]["y"]
    places = [("start", 0, inputs.before)] if inputs.before else []
    places += [(str(step), step, folder) for step, folder in zip(config.steps, inputs.evaluations, strict=True)]
    rows: list[dict[str, Any]] = []
    found = [json.loads((folder / "summary.json").read_text()) for _, _, folder in places if folder]
    if len({one["questions"] for one in found}) > 1:
        raise BadInput("compare_checkpoints.evaluations: of different numbers of questions; expected the same examples")
    passes = [name for name in found[0]["metrics"] if name.startswith("pass@")]
    for (label, step, _), one in zip(places, found, strict=True):
        line = trained[label]
        rows.append(
            {
                "step": label,
                "train loss": line["loss"],
                "eval loss": line["valid eval_loss"],
                "gradient norm": norms[step - 1] if step else None,
                **{name: one["metrics"][name] for name in passes},
                **one["failures"],
            }
        )
    shares, questions = [row["pass@1"] for row in rows], found[0]["questions"]
    fell = collapses(shares, questions)
    for number, row in enumerate(rows):
        row["note"] = "collapsed" if number in fell else ""
    best = max(range(len(rows)), key=lambda number: (shares[number], -number))
    rows[best]["note"] = (rows[best]["note"] + " best").strip()
    x = [float(step) for _, step, _ in places]
    drawn = {f"passed against step | {name}": {"x": x, "y": [row[name] for row in rows]} for name in passes}
    for name in found[0]["failures"]:
        y = [round(one["failures"][name] / questions, 6) for one in found]
        drawn[f"share of questions failed against step | {name}"] = {"x": x, "y": y}
    said = [
        f"from {rows[i - 1]['step']} to {rows[i]['step']}: pass@1 {shares[i - 1]:.3f} to {shares[i]:.3f}" for i in fell
    ]
    (context.out / "checkpoints.json").write_text(json.dumps(rows, indent=2) + "\n")
    metrics = {"best checkpoint": rows[best]["step"], **{name: rows[best][name] for name in passes}}
    return Result({**metrics, "collapses": "; ".join(said) or "none"}, {"checkpoints": rows}, drawn)


JOB = Job("compare_checkpoints", version=1, config=Config, inputs=Inputs, run=run, check=check)
