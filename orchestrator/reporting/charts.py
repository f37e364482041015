"""Charts of the reports, drawn by matplotlib as SVG, in the colours of the style sheet (light, dark, print)."""

import io
import re
import warnings
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from cycler import cycler
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure

from ratchet.orchestrator.job_interface.clean_output import clean
from ratchet.orchestrator.reporting.formatting import format_value, is_finite, shorten
from ratchet.orchestrator.reporting.run_data import Chart

COLOURS = {f"#0{number}0{number}0{number}": f"var(--s{number - 1})" for number in range(1, 8)}
"""Colour of a series in the drawing -> its colour in the style sheet. Further series are grey. Black
would be left out."""
NO_METADATA = dict.fromkeys(["Creator", "Date", "Format", "Type"])
RANKS = [factor * 10**power for power in range(9) for factor in (1, 3)]
"""Ticks of axes of ranks."""
INK, GREY = "#080808", "#090909"
REPLACED = {**COLOURS, INK: "var(--ink)", GREY: "var(--faint)"}

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ratchet",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.prop_cycle": cycler(color=COLOURS, linestyle=["-", "--", ":", "-.", "-", "--", ":"]),
}
STYLE |= dict.fromkeys(
    ["text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"],
    INK,
)


def draw_dots(
    rows: Mapping[str, Mapping[str, float | None]], column: str, quiet: Collection[str] = ()
) -> Markup:
    """Draw the values of a column of the summary, one row below the other, with their deviations as error bars. quiet:
    labels of rows in grey."""
    with rc_context(STYLE):
        figure = Figure((4.6, 0.5 + 0.3 * len(rows)))
        axes = figure.add_subplot()
        names = []
        for place, (label, row) in enumerate(rows.items()):
            value = row.get(column)
            names.append(f"{shorten(clean(label), 22)}  {format_value(value, column)}")
            if value is not None and is_finite(value):
                deviation = getattr(value, "deviation", None) or 0.0
                colour = GREY if label in quiet else next(iter(COLOURS))
                axes.errorbar(value, place, xerr=deviation, fmt="o", color=colour, elinewidth=2)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        return _render(figure, f"{column} per row")


def draw_points(
    rows: Mapping[str, Mapping[str, float | None]], x: str, y: str, quiet: Collection[str] = ()
) -> Markup:
    """Draw a point for each row that has both columns, with the deviation of y as an error bar. quiet: labels of rows
    in grey; the others are written beside their points."""
    with rc_context(STYLE):
        figure = Figure((4.6, 2.8))
        axes = figure.add_subplot()
        for label, row in rows.items():
            across = row.get(x)
            up = row.get(y)
            if across is None or up is None or not is_finite(across) or not is_finite(up):
                continue
            deviation = getattr(up, "deviation", None) or 0.0
            colour = GREY if label in quiet else next(iter(COLOURS))
            axes.errorbar(across, up, yerr=deviation, fmt="o", color=colour)
            if label not in quiet:
                text = shorten(clean(label), 40)
                axes.annotate(
                    text, (across, up), xytext=(6, 4), textcoords="offset points", fontsize=8
                )
        axes.set_xlabel(clean(x))
        axes.margins(x=0.3)
        return _render(figure, f"{y} by {x}")


def draw_ranks(chart: Chart) -> Markup:
    """Draw a point for each pair of ranks, larger for more queries, also of several seeds. Rank 1 is at the top, so
    points above the diagonal rose."""
    queries: Counter[tuple[float, float]] = Counter()
    for series in chart.series:
        queries.update(zip(series.x, series.y, strict=True))
    rose = sum(count for (before, after), count in queries.items() if after < before)
    fell = sum(count for (before, after), count in queries.items() if after > before)
    end = max(10, *map(max, queries)) * 1.3
    with rc_context(STYLE):
        figure = Figure((4.6, 2.8))
        axes = figure.add_subplot(xscale="log", yscale="log", xlim=(0.8, end), ylim=(end, 0.8))
        axes.plot([1, end], [1, end], color=GREY, linestyle="-")
        before, after = zip(*queries, strict=True)
        sizes = [12 * count**0.5 for count in queries.values()]
        axes.scatter(before, after, sizes, color=next(iter(COLOURS)), zorder=2)
        ticks = [rank for rank in RANKS if rank < end]
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(ticks, [f"{rank:,}" for rank in ticks])
            axis.set_ticks([], minor=True)
        axes.set_xlabel(clean(chart.x_label))
        axes.set_title(f"{rose:,} queries rose, {fell:,} fell", fontsize=9)
        return _render(figure, f"{chart.y_label} against {chart.x_label}")


def draw_lines(chart: Chart) -> Markup:
    """Draw the curves of a chart over shared axes; nothing if no curve has two finite points."""
    if chart.y_label.startswith("rank ") and chart.x_label.startswith("rank "):
        return draw_ranks(chart)
    curves = []
    for series in chart.series:
        points = []
        for x, y in zip(series.x, series.y, strict=False):
            if is_finite(x) and is_finite(y):
                points.append((x, y))
        curves.append(sorted(points))
    if max(map(len, curves)) < 2:
        return Markup()
    with rc_context(STYLE):
        figure = Figure((4.6, 2.8))
        axes = figure.add_subplot()
        for number, (points, series) in enumerate(zip(curves, chart.series, strict=True)):
            options: dict[str, Any] = {"label": shorten(clean(series.label), 40)}
            if number >= len(COLOURS):
                options = {"color": GREY, "linestyle": "-"}
            axes.plot(*zip(*points, strict=True), **options)
        axes.set_xlabel(clean(chart.x_label))
        if len(curves) > 1:
            legend = axes.legend(fontsize=8, frameon=False)
            if len(curves) > len(COLOURS):
                legend.set_title(f"and {len(curves) - len(COLOURS):,} more, in grey")
        return _render(figure, f"{chart.y_label} against {chart.x_label or 'position'}")


def _render(figure: Figure, title: str) -> Markup:
    """Return a drawing as an SVG element that can stand in a page."""
    file = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the page has a font for glyphs that matplotlib lacks
        figure.savefig(
            file, format="svg", transparent=True, bbox_inches="tight", metadata=NO_METADATA
        )
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r' id="[\w.]+_\d+"', "", text)  # repeated in each drawing, and not referred to
    for drawn, shown in REPLACED.items():
        text = text.replace(drawn, shown)
    return Markup(
        text.replace("<svg", Markup('<svg role="img" aria-label="{}"').format(clean(title)), 1)
    )
