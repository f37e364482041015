"""What a report shows, worked out from plain data and without any markup: which number is better, the headline,
which curves share a chart, which cards belong side by side."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.show import is_number, is_time

if TYPE_CHECKING:
    from orchestrator.report import StepReport

_LOWER = re.compile(r"loss|error|perplexity|\bppl\b|latency|\brank\b|missing|\bm[as]e\b|\brmse\b|drift")
_HIGHER = re.compile(
    r"^[rp]@\d|\bm?ap\b|\bmap@|\bmrr|\bndcg|recall|precision|accuracy|\bacc\b|\bem\b|\bf1\b|exact|\bhits?\b|pass@|\bauc\b"
    r"|bleu|rouge|lenient|success|solved|correct|per_s\b|/s\b"
)
_ROUND = re.compile(r"^(?:iter(?:ation)?|round|cycle|generation)\W*\d+", re.IGNORECASE)
_BASELINE = re.compile(r"bm25|zero.?shot|baseline|random|lexical|tf.?idf|pretrained|^base\b", re.IGNORECASE)
_KEPT = ("kept", "best", "chosen")


def direction(column: str) -> int:
    """1 where higher is better, -1 where lower is better, 0 where the name does not tell or it is a cost (time)."""
    name = column.lower().replace("_", " ").replace(" per s", " per_s")
    if is_time(column):
        return 0
    if _LOWER.search(name):
        return -1
    return 1 if _HIGHER.search(name) else 0


def best(
    values: Sequence[Any], column: str, sign: int | None = None, contenders: Collection[int] | None = None
) -> set[int]:
    """Positions of the best value of a column; empty if nothing says what is better or nothing stands out.

    `sign` as `direction` gives it, for those who know better than by the name; `contenders`: the positions that are
    compared, if not all.
    """
    sign = direction(column) if sign is None else sign
    compared = {i: v for i, v in enumerate(values) if contenders is None or i in contenders}
    finite = {i: sign * v for i, v in compared.items() if is_number(v) and math.isfinite(v)}
    if not sign or len(finite) < 2 or max(finite.values()) == min(finite.values()):
        return set()
    return {i for i, v in finite.items() if v == max(finite.values())}


def kept_rows(rows: Sequence[Mapping[str, Any]]) -> set[int]:
    """Positions of the rows that a table marks itself, by a true `kept`, `best` or `chosen` column."""
    return {i for i, row in enumerate(rows) if any(row.get(name) is True for name in _KEPT)}


def columns_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """All columns in the order of their first appearance."""
    return list(dict.fromkeys(column for row in rows for column in row))


def is_round(label: str) -> bool:
    """Whether a row of the summary is one of a sequence: `iteration 0`, `iter1`, `round 2`."""
    return bool(_ROUND.search(label))


def family(label: str) -> str:
    """What the rows of one sequence have in common: `iteration 0, reranked` is of another one than `iteration 0`."""
    return _ROUND.sub("", label)


def is_baseline(label: str) -> bool:
    """Whether a row of the summary is what others are measured against: BM25, zero-shot, ..."""
    return bool(_BASELINE.search(label)) and not is_round(label)


def headline_columns(rows: Mapping[str, Mapping[str, float | None]], limit: int = 2) -> list[str]:
    """The columns that the first picture shows: quality before the rest, in the summary's order."""
    columns = [c for c in columns_of(rows.values()) if not is_time(c) and any(_finite(r.get(c)) for r in rows.values())]
    judged = [c for c in columns if direction(c)]
    return (judged or columns)[:limit]


def headline(rows: Mapping[str, Mapping[str, float | None]], column: str) -> str:
    """`0.452 at iteration 1: +0.276 against zero-shot` (the best baseline); empty if the name tells nothing."""
    points = {label: row.get(column) for label, row in rows.items()}
    known = {label: float(v) for label, v in points.items() if v is not None and math.isfinite(v)}
    sign = direction(column)
    ours = {label: v for label, v in known.items() if not is_baseline(label)}
    if not ours or not sign:
        return ""
    top = max(ours, key=lambda label: sign * ours[label])
    sentence = f"{ours[top]:.3f} at {top}"
    baselines = {label: v for label, v in known.items() if is_baseline(label)}
    if baselines:
        rival = max(baselines, key=lambda label: sign * baselines[label])
        sentence += f": {ours[top] - baselines[rival]:+.3f} against {rival}"
    return sentence


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    strong: bool = False
    """Drawn thicker, and on top of the others."""


@dataclass(frozen=True)
class Chart:
    """Lines that share their axes: the same curve of every step of one job."""

    job: str
    x_label: str
    y_label: str
    series: Sequence[Series]


def charts(steps: Iterable[StepReport]) -> list[Chart]:
    """Curves of the same job and title overlaid, in the order in which they appear; `title | name` is one of several
    curves of a step that share a chart."""
    groups: dict[tuple[str, str], list[tuple[str, str, Mapping[str, Sequence[float]]]]] = {}
    for step in steps:
        for whole, curve in step.curves.items():
            title, _, name = whole.partition(" | ")
            if len(curve.get("x", ())) and len(curve.get("y", ())):
                groups.setdefault((step.job, title), []).append((step.name, name, curve))
    made = []
    for (job, title), curves in groups.items():
        y_label, against, x_label = title.partition(" against ")
        owners = list(dict.fromkeys(step for step, _, _ in curves))
        short = dict(zip(owners, short_names(owners), strict=True))
        labels = [name if name and len(owners) == 1 else f"{short[step]} {name}".strip() for step, name, _ in curves]
        series = [Series(label, c["x"], c["y"]) for label, (_, _, c) in zip(labels, curves, strict=True)]
        made.append(Chart(job, x_label if against else "", y_label, series))
    return made


def short_names(names: Sequence[str]) -> list[str]:
    """Step names without the ending that all share: `iter0/train`, `iter1/train` -> `iter0`, `iter1`."""
    parts = [name.split("/") for name in names]
    if len(names) > 1 and all(len(p) > 1 and p[-1] == parts[0][-1] for p in parts):
        shorter = ["/".join(p[:-1]) for p in parts]
        if len(set(shorter)) == len(set(names)):
            return shorter
    return list(names)


@dataclass(frozen=True)
class Card:
    """A query and, by heading, what was found for it: (text, right or not) in order of rank."""

    title: str
    columns: Mapping[str, Sequence[tuple[str, bool]]]
    left_out: int = 0
    """Columns between the first and the last that are not shown."""

    @property
    def ranks(self) -> list[int | None]:
        """Per column, the rank (from 1) of the first right answer; None if it is not among those shown."""
        return [next((i for i, (_, good) in enumerate(c, 1) if good), None) for c in self.columns.values()]


def cards(steps: Sequence[StepReport], widest: int = 3) -> dict[str, list[Card]]:
    """Examples of all steps by title; cards of one query are joined, so that before and after stand side by side."""
    joined: dict[str, dict[str, dict[str, list[tuple[str, bool]]]]] = {}
    for step in steps:
        for title, given in step.examples.items():
            for card in given:
                columns = joined.setdefault(title, {}).setdefault(str(card.get("title", "")), {})
                for heading, items in card.get("columns", {}).items():
                    found = [(str(item.get("text", "")), bool(item.get("good"))) for item in items]
                    if columns.get(heading, found) != found:
                        heading = f"{heading} ({step.name})"
                    columns[heading] = found
    return {
        title: [_card(query, columns, widest) for query, columns in queries.items()]
        for title, queries in joined.items()
    }


def _card(query: str, columns: dict[str, list[tuple[str, bool]]], widest: int) -> Card:
    if len(columns) <= widest:
        return Card(query, columns)
    headings = list(columns)
    shown = {h: columns[h] for h in (headings[0], headings[-1])}
    return Card(query, shown, len(columns) - len(shown))


def _finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def losses(steps: Sequence[StepReport]) -> list[dict[str, Any]]:
    """What vanished under the steps, and what of it was done a second time: rows of a table."""
    return [
        {
            "step": step.name,
            "lost": lost["what"],
            "done again": None if lost["amount"] is None else f"{lost['amount']:g} {lost['unit']}",
            "seconds again": lost["seconds"],
        }
        for step in steps
        for lost in step.lost
    ]
