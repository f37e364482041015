"""A Markdown table of measurements that were repeated with several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def format_table(title: str, found: Mapping[str, Sequence[Mapping[str, float]]], metrics: Sequence[str]) -> str:
    """Return the means with 95 % intervals over seeds, of the metrics that all rows have. found: the rows of each
    variant, by seed. The differences to the first variant are paired by seed."""
    names = [name for name in metrics if all(name in row for rows in found.values() for row in rows)]
    gains = [name for name in ("map@25", "seen", "unseen") if name in names]
    lines = ["| " + " | ".join([title, *names, *(f"gain of {one}" for one in gains)]) + " |"]
    lines.append("| --- " * (len(names) + len(gains) + 1) + "|")
    first = next(iter(found.values()))
    for name, rows in found.items():
        cells = [
            f"{np.mean([row[one] for row in rows]):,.0f}"
            if one.startswith("seconds")
            else _format_mean([row[one] for row in rows])
            for one in names
        ]
        for one in gains:
            differences = [row[one] - base[one] for row, base in zip(rows, first, strict=False)]
            cells.append("" if rows is first else _format_mean(differences, "+"))
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines)


def _format_mean(values: Sequence[float], sign: str = "") -> str:
    from scipy.stats import t

    text = f"{np.mean(values):{sign}.4f}"
    if len(values) < 2:
        return text
    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    return f"{text} ± {half:.4f}"
