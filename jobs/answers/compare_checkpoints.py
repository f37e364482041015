"""compare_checkpoints: compare losses, gradient norm, pass@k and failures of a run's checkpoints, and find collapses.

The table `k=1` counts the newest completion of each question. The table of k completions counts a question that one of
them answers as passed, and otherwise the failure of the newest one.
The best checkpoint is selected on the held-out samples of training (`valid`), never on the test questions.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import Context, Job, Parents, PositiveInt, Result


@dataclass(frozen=True)
class Config:
    steps: tuple[PositiveInt, ...]
    """Training steps of the checkpoints, in the order of `evaluations`."""
    names: tuple[str, ...] = ()
    """Names of the models of `baselines`."""
    failures_at_1: tuple[str, ...] = ()
    """Order of the failures in the table `k=1`. Empty: the verifier's."""
    failures_at_k: tuple[str, ...] = ()
    """Order of the failures in the table of all completions. Empty: the verifier's."""


@dataclass(frozen=True)
class Inputs:
    training: Path
    """The output of `sft`, `grpo` or `distill`."""
    evaluations: tuple[Path, ...]
    """The output of `evaluate_answers` for each checkpoint, on the same samples."""
    before: Path | None = None
    """The output of `evaluate_answers` for the model before training. None: it is not in the comparison."""
    baselines: tuple[Path, ...] = ()
    """The output of `evaluate_answers` for other models, which have rows in the tables of k."""


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
    if inputs.baselines is not None and len(inputs.baselines) != len(config.names):
        raise InputError(
            f"compare_checkpoints.names: {len(config.names)} names given, for {len(inputs.baselines)} models;"
            " expected one per model"
        )


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.data.tasks.answers import find_collapses
    from ratchet.jobs.training.schedule import is_better

    history = json.loads((inputs.training / "history.json").read_text())
    training = {row["step"]: row for row in history["tables"]["steps"]}
    norms = history["curves"]["gradient norm against step"]["y"]
    steps = list(config.steps)
    folders = list(inputs.evaluations)
    if inputs.before is not None:
        steps.insert(0, 0)
        folders.insert(0, inputs.before)
    summaries = [read_summary(folder) for folder in folders]
    others = [read_summary(folder) for folder in inputs.baselines]
    questions = summaries[0]["questions"]
    if any(summary["questions"] != questions for summary in (*summaries, *others)):
        raise InputError(
            "compare_checkpoints.evaluations: different numbers of questions given; expected evaluations on the same"
            " samples"
        )
    names = [name for name in summaries[0]["metrics"] if name.startswith("pass@")]
    failures: dict[
        str, None
    ] = {}  # those of a user's verifier are known only from the answers that have them
    most = max(summaries[0]["counts"], key=int)
    for summary in (*summaries, *others):
        failures |= dict.fromkeys(summary["counts"][most]["failures"])
    rows = []
    losses = []
    best = 0  # selected on the held-out samples, not on the test questions that were answered above
    held_out = []
    for step, summary in zip(steps, summaries, strict=True):
        label = str(step) if step else "start"
        row = {"step": label, "train_loss": training[label]["loss"]}
        values = {}
        for name, value in training[label].items():
            if name.startswith("valid/"):
                row[name] = values[name.removeprefix("valid/")] = value
        row["gradient_norm"] = norms[step - 1] if step else None
        for name in names:
            row[name] = summary["metrics"][name]
        counts = summary["counts"][most]
        for name in failures:
            row[name] = counts["failures"].get(name, 0)
        row["truncated"] = counts["truncated"]
        row["note"] = ""
        if step:
            losses.append(
                {
                    "Steps": label,
                    "Train Loss": row["train_loss"],
                    "Eval Loss": row.get("valid/eval_loss"),
                    "Grad Norm": row["gradient_norm"],
                }
            )
        rows.append(row)
        held_out.append(values)
        if is_better(history["metric"], values, held_out[best]):
            best = len(rows) - 1
    accuracy = [row["pass@1"] for row in rows]
    described = []
    for i in find_collapses(accuracy, questions):
        rows[i]["note"] = "collapsed"
        described.append(
            f"from {rows[i - 1]['step']} to {rows[i]['step']}: pass@1 {accuracy[i - 1]:.3f} to {accuracy[i]:.3f}"
        )
    rows[best]["note"] = f"{rows[best]['note']} best".strip()
    curves = {}
    for name in (*names, *failures):
        title = f"pass@k against step | {name}"
        y = [row[name] for row in rows]
        if name in failures:
            title = f"share of questions failed against step | {name}"
            y = [round(value / questions, 6) for value in y]
        curves[title] = {"x": [float(step) for step in steps], "y": y}
    metrics = {"best_checkpoint": rows[best]["step"], **{name: rows[best][name] for name in names}}
    metrics["collapses"] = "; ".join(described) or "none"
    tables = {"checkpoints": rows}
    labels = [*(row["step"] for row in rows), *config.names]
    unknown = {*config.failures_at_1, *config.failures_at_k} - failures.keys()
    if unknown:
        raise InputError(
            f"compare_checkpoints.failures_at_1 and failures_at_k: {', '.join(sorted(unknown))} given; expected some of"
            f" {', '.join(failures)}"
        )
    orders = {most: config.failures_at_k, "1": config.failures_at_1}
    for k in sorted(orders, key=int):
        ordered = tuple(dict.fromkeys((*orders[k], *failures)))
        listed = []
        for label, summary in zip(labels, (*summaries, *others), strict=True):
            listed.append(count_answers(label, summary, k, ordered))
        tables[f"k={k}"] = listed
    tables["losses"] = losses
    return Result(metrics, tables, curves)


def read_summary(folder: Path) -> dict[str, Any]:
    """Return what `evaluate_answers` has written for other steps."""
    return json.loads((folder / "summary.json").read_text())


def count_answers(
    label: str, summary: dict[str, Any], k: str, failures: Sequence[str]
) -> dict[str, Any]:
    """Return a row: the questions that the newest k completions of a model answer, and the failures of the others."""
    counts = summary["counts"][k]
    passed = counts["passed"]
    share = round(passed / summary["questions"], 4)
    total = summary["questions"]
    if k == "1":
        row = {"Checkpoint": label, "Total": total, "Correct": passed, "Accuracy": share}
    else:
        row = {"N": label, "Total": total, f"Passed (pass@{k})": passed, f"Pass@{k}": share}
    for name in failures:
        row[name] = counts["failures"].get(name, 0)
    return row | {"truncated": counts["truncated"]}


JOB = Job("compare_checkpoints", Config, Inputs, run, resources=("retries",), check=check)
