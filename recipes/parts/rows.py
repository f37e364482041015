"""Rows of a retrieval loop's summary table."""

from collections.abc import Mapping

from ratchet.orchestrator.step import Output, Row, Step


def make_row(
    label: str,
    evaluations: Mapping[str, Step],
    finetuned: Step | None = None,
    mined: Step | Output | None = None,
    merged: Output | None = None,
    chosen: Step | None = None,
    baseline: bool = False,
    detail: bool = False,
) -> Row:
    """Return a row of the summary table. evaluations: split -> evaluation; the row shows the first one. If it is empty,
    the row's last step is the merge. chosen: the step with the model of `finetuned` that is used."""
    columns = {"loss": finetuned.metric("loss")} if finetuned else {}
    last: Step | None
    last = merged.step if merged else None
    for split, last in list(evaluations.items())[:1]:
        end = " of valid" if split == "valid" else ""
        columns |= {f"{name.upper()}{end}": last.metric(name) for name in ("map@25", "r@25")}
        for group in ("seen", "unseen"):
            columns[f"{group} MAP@25{end}"] = last.metric(
                f"{group}/map@25", count=f"{group}/queries"
            )
    return Row(
        label,
        columns,
        list(dict.fromkeys(s for s in (mined, finetuned, chosen, last) if isinstance(s, Step))),
        merged,
        baseline,
        detail,
    )
