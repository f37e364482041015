"""Jinja2 environment of the reports.

HTML templates escape every value. Markdown templates name the escape of a value by a filter: `md` for text that keeps
its line breaks, `inline` for text within a line, `code_block` for a block of code. Control characters are removed from
all values.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from ratchet.orchestrator.atomic_file import write_atomically
from ratchet.orchestrator.job_interface.terminal import clean
from ratchet.orchestrator.reporting.formatting import (
    format_duration,
    format_number,
    format_setting,
    format_timestamp,
    is_time,
    pluralize,
    shorten,
)

_FOLDER = Path(__file__).parent
_SPECIAL = re.compile(r"([\\`*{}\[\]<>|~$#]|(?<!\w)_|_(?!\w))")  # `a_b` needs no escape


def render(template: str, **values: Any) -> str:
    """Fill a template of `templates/`."""
    return _ENVIRONMENT.get_template(template).render(values)


def save(folder: Path, html: str, markdown: str) -> tuple[Path, Path]:
    """Write both texts as `report.html` and `report.md`; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / "report.html", folder / "report.md"
    for path, text in zip(written, (html, markdown), strict=True):
        write_atomically(path, text)
    return written


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
    "duration": format_duration,
    "timestamp": format_timestamp,
    "number": format_number,
    "setting": format_setting,
    "plural": pluralize,
    "shorten": shorten,
    "md": _escape_markdown,
    "code_block": _quote_code,
    "inline": lambda text: " ".join(_escape_markdown(text).split()),
}
_ENVIRONMENT.tests["time"] = is_time
_SCRIPT = (_FOLDER / "page.js").read_text(encoding="utf-8")
_ENVIRONMENT.globals |= {
    "style": Markup((_FOLDER / "page.css").read_text(encoding="utf-8")),
    "script": Markup(_SCRIPT),
    "script_hash": base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode(),
}
