"""`report.html` and `report.md` of a run or a sweep, from the templates `run.*` and `sweep.*`.

Nothing here reads a store or a clock. `report.html` is one file that contains its style and charts, and loads nothing;
its content security policy forbids scripts. The order is from the result to the evidence. For a run: the summary,
training curves, cases, the steps, and how to repeat the run. For a sweep: the conclusion and the winner's settings, the
trials, charts, failures, and how to repeat the sweep. Sections without data are left out.

HTML templates escape every value. Markdown templates escape by filters: `md` for text that keeps its line breaks,
`inline` for text within a line, `code_block` for a block of code. Control characters are removed from all values.
"""

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from ratchet.orchestrator.atomic_file import write_atomically
from ratchet.orchestrator.job_interface.clean_output import clean
from ratchet.orchestrator.reporting import formatting, report_json, run_data, sweep_data
from ratchet.orchestrator.reporting.run_data import RunReport
from ratchet.orchestrator.reporting.sweep_data import SweepReport

_FOLDER = Path(__file__).parent
_SPECIAL = re.compile(r"([\\`*{}\[\]<>|~$#]|(?<!\w)_|_(?!\w))")  # `a_b` needs no escape


def write_report(folder: Path, data: RunReport | SweepReport) -> tuple[Path, Path]:
    """Write `report.html`, `report.md` and, for a run, `report.json` into `folder`, each atomically. Returns the first
    two paths."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(data, RunReport):
        write_atomically(folder / report_json.NAME, report_json.write(data))
    written = folder / "report.html", folder / "report.md"
    for path, kind in zip(written, ("html", "md"), strict=True):
        write_atomically(path, render(data, kind))
    return written


def render(data: RunReport | SweepReport, kind: str) -> str:
    """Return the report as `html` or as GitHub's Markdown (`md`). Data is escaped: `$x_1 < y$` is shown literally."""
    from ratchet.orchestrator.reporting import charts  # it imports matplotlib

    if isinstance(data, RunReport):
        return render_template(f"run.{kind}.j2", data=data, parts=run_data, charts=charts)
    return render_template(f"sweep.{kind}.j2", data=data, parts=sweep_data, charts=charts)


def render_template(template: str, **values: Any) -> str:
    """Render a template. The values are escaped automatically in HTML templates only."""
    return _ENVIRONMENT.get_template(template).render(**values)


def _escape_markdown(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", clean(text).replace("&", "&amp;"))


def _quote_code(text: str) -> str:
    text = clean(text)
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(_FOLDER / "templates"),
    autoescape=select_autoescape(["html.j2"]),
    finalize=lambda value: value if hasattr(value, "__html__") else clean(str(value)),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {
    "duration": formatting.format_duration,
    "timestamp": formatting.format_timestamp,
    "value": formatting.format_value,
    "setting": formatting.format_setting,
    "plural": formatting.pluralize,
    "shorten": formatting.shorten,
    "md": _escape_markdown,
    "code_block": _quote_code,
    "inline": lambda text: " ".join(_escape_markdown(text).split()),
}
_ENVIRONMENT.globals["style"] = Markup((_FOLDER / "page.css").read_text(encoding="utf-8"))
