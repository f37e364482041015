"""Implementation of `compare_checkpoints`: table, curves and collapses of the checkpoints."""

from __future__ import annotations

import json
from typing import Any

from ratchet.data.tasks.answers import find_collapses
from ratchet.errors import InputError
from ratchet.jobs.answers.compare_checkpoints import Config, Inputs
from ratchet.jobs.training.schedule import is_better
from ratchet.orchestrator.job_interface import Context, Result


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    history = json.loads((inputs.training / "history.json").read_text())
    training = {row["step"]: row for row in history["tables"]["steps"]}
    norms = history["curves"]["gradient norm against step"]["y"]
    checkpoints = [("start", 0, inputs.before)] if inputs.before else []
    checkpoints += [(str(step), step, folder) for step, folder in zip(config.steps, inputs.evaluations, strict=True)]
    summaries = [json.loads((folder / "summary.json").read_text()) for _, _, folder in checkpoints if folder]
    if len({summary["questions"] for summary in summaries}) > 1:
        raise InputError(
            "compare_checkpoints.evaluations: different numbers of questions given; expected evaluations on the same"
            " samples"
        )
    names = [name for name in summaries[0]["metrics"] if name.startswith("pass@")]
    # The failure labels of a user's verifier are known only from the answers that have them.
    failures = list(dict.fromkeys(name for summary in summaries for name in summary["failures"]))
    held_out = [name for name in history["tables"]["steps"][0] if name.startswith("valid/")]
    rows: list[dict[str, Any]] = [
        {
            "step": label,
            "train_loss": training[label]["loss"],
            **{name: training[label][name] for name in held_out},
            "gradient_norm": norms[step - 1] if step else None,
            **{name: summary["metrics"][name] for name in names},
            **{name: summary["failures"].get(name, 0) for name in failures},
        }
        for (label, step, _), summary in zip(checkpoints, summaries, strict=True)
    ]
    accuracy, questions = [row["pass@1"] for row in rows], summaries[0]["questions"]
    collapsed = find_collapses(accuracy, questions)
    best = 0  # selected on the held-out samples, not on the test questions that were answered above
    for number, row in enumerate(rows):
        row["note"] = "collapsed" if number in collapsed else ""
        values, than = ({name.removeprefix("valid/"): one[name] for name in held_out} for one in (row, rows[best]))
        best = number if is_better(history["metric"], values, than) else best
    rows[best]["note"] = (rows[best]["note"] + " best").strip()
    x = [float(step) for _, step, _ in checkpoints]
    curves = {f"pass@k against step | {name}": {"x": x, "y": [row[name] for row in rows]} for name in names}
    for name in failures:
        y = [round(row[name] / questions, 6) for row in rows]
        curves[f"share of questions failed against step | {name}"] = {"x": x, "y": y}
    described = [
        f"from {rows[i - 1]['step']} to {rows[i]['step']}: pass@1 {accuracy[i - 1]:.3f} to {accuracy[i]:.3f}"
        for i in collapsed
    ]
    (context.out / "checkpoints.json").write_text(json.dumps(rows, indent=2) + "\n")
    metrics = {"best_checkpoint": rows[best]["step"], **{name: rows[best][name] for name in names}}
    return Result({**metrics, "collapses": "; ".join(described) or "none"}, {"checkpoints": rows}, curves)
