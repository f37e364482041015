"""Rows of a retrieval loop's summary table, and inputs of its evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.orchestrator.step import Output, Row, Step


def make_comparison_inputs(
    split: str, before: Mapping[str, Step], finetuned: Step
) -> dict[str, Any]:
    """Return the inputs of an evaluation of `split`: an earlier evaluation to compare with (`before`), and on `valid`
    the `selection.json` of the finetune, which has the metric of the model before merging."""
    return {
        "before": before.get(split),
        "selection": finetuned["selection.json"] if split == "valid" else None,
    }


def make_row(
    label: str,
    evaluations: Mapping[str, Step],
    finetuned: Step | None = None,
    mined: Step | Output | None = None,
    merged: Output | None = None,
    judged: Step | None = None,
    baseline: bool = False,
) -> Row:
    """Return a row of the summary table. evaluations: split -> evaluation; the row shows the first one. If it is empty,
    the row's last step is the merge. judged: the evaluation that has the metric `merging_cost`."""
    if finetuned:
        columns = {"loss": finetuned.metric("loss")}
    else:
        columns = {}
    last: Step | None
    if merged:
        last = merged.step
    else:
        last = None
    for split, last in list(evaluations.items())[:1]:
        if split == "test":
            end = ""
        else:
            end = f" of {split}"
        columns |= {f"{name.upper()}{end}": last.metric(name) for name in ("map@25", "r@25")}
        for group in ("seen", "unseen"):
            columns[f"{group} MAP@25{end}"] = last.metric(
                f"{group}/map@25", count=f"{group}/queries"
            )
    if judged:
        columns["merging cost"] = judged.metric("merging_cost", count="merging_cost/queries")
    return Row(
        label,
        columns,
        [s for s in (mined, finetuned, last) if isinstance(s, Step)],
        merged,
        baseline,
    )
