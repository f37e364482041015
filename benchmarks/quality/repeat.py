"""Measurements of several variants on several data sets with several seeds, and their tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HELP = """
A data set is a path that `prepare` reads, `generated` (the questions of the quickstart), `squad=` with SQuAD's JSON
(questions against paragraphs, held out by article; `squad-sentences=`: against sentences), or `stacks=` with groups of
statements (the first finds the rest).
Rows are appended to `--out`, and found there again. The tables show means with 95 % intervals over seeds: of each
metric, and of the difference to the first variant, which is paired by seed.
"""


def make_parser(about: str | None, variants: Sequence[str], out: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=(about or "") + HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", default=["generated"], metavar="[KIND=]PATH")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--queries", type=int, default=4000, help="training queries at most")
    parser.add_argument(
        "--held-out", type=int, default=1000, help="queries of a held-out split at most"
    )
    parser.add_argument(
        "--unseen",
        type=float,
        default=0.3,
        help="least fraction of held-out queries with new labels",
    )
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        metavar="NAME=VALUE",
        help="further settings of all variants",
    )
    parser.add_argument(
        "--only", nargs="*", default=list(variants), metavar="VARIANT", help=", ".join(variants)
    )
    parser.add_argument("--out", type=Path, default=Path(out))
    return parser


def repeat(
    given: argparse.Namespace,
    metrics: Sequence[str],
    measure: Callable[[str, str, int], Mapping[str, Any]],
) -> None:
    """Print the table of each data set. measure(data set, variant, seed) returns the row of a variant."""
    known = (
        [json.loads(line) for line in given.out.read_text().splitlines()]
        if given.out.exists()
        else []
    )
    for source in given.data:
        found: dict[str, list[Mapping[str, Any]]] = {}
        for seed in range(given.seeds):
            for variant in given.only:
                key = [
                    name_source(source),
                    variant,
                    seed,
                    given.queries,
                    given.held_out,
                    given.unseen,
                    *given.set,
                ]
                row = next((one for one in known if one["key"] == key), None)
                if row is None:
                    row = {"key": key, **measure(source, variant, seed)}
                    with given.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                values = (f"{name} {row[name]:.4g}" for name in metrics if name in row)
                print(key[0], f"{variant}, seed {seed}:", *values, flush=True)
                found.setdefault(variant, []).append(row)
        print("\n" + format_table(name_source(source), found, metrics) + "\n", flush=True)


def name_source(source: str) -> str:
    path, mark, options = source.partition("?")
    kind, sign, path = path.rpartition("=")
    return kind + sign + Path(path).name + mark + options


def format_table(
    title: str, found: Mapping[str, Sequence[Mapping[str, float]]], metrics: Sequence[str]
) -> str:
    """Return the means with 95 % intervals over seeds, of the metrics that all rows have. found: the rows of each
    variant, by seed. The differences to the first variant are paired by seed."""
    names = [
        name for name in metrics if all(name in row for rows in found.values() for row in rows)
    ]
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
