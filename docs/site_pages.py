"""Pages of the documentation site that are made from other files (mkdocs hooks): the start page is README.md, the
changelog is CHANGELOG.md, and the pages of recipes and settings are written from their docstrings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from docs.write_settings import write_reference
from ratchet.orchestrator import recipe
from ratchet.orchestrator.job_interface.settings import describe_settings

ROOT = Path(__file__).resolve().parents[1]
BAR = r"\|"
"""A bar inside a cell of a Markdown table."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    readme = (ROOT / "README.md").read_text()
    pages = {
        "index.md": re.sub(r"\]\((?:docs/)?([\w-]+\.md|images/)", r"](\1", readme),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(),
        "recipes.md": write_recipes(),
        "settings.md": write_reference(),
    }
    for name, text in pages.items():
        # Files outside docs/ are not part of the site.
        content = re.sub(
            r"\[([^\]]+)\]\((?!https?:)(?:docs/)?(?![\w-]+\.md|images/|notebook|#)[^)]*\)",
            r"\1",
            text,
        )
        files.append(File.generated(config, name, content=content.replace("](docs/", "](")))
    return files


def write_recipes() -> str:
    """Return the recipes as Markdown: what each does, its parameters, and its steps."""
    parts = [
        "# Recipes",
        "`ratchet recipes NAME` shows the same, and the steps that a recipe makes.",
    ]
    for name in recipe.names():
        found = recipe.find(name)
        summary, _, rest = found.doc.partition("\n\n")
        settings = describe_settings(found.function)
        rows = [
            f"| `{one.name}` | {one.type.replace('|', BAR)} | {one.default} |" for one in settings
        ]
        parts += [f"## {name}", summary.replace("\n", " ")]
        parts += [f"```text\n{rest}\n```"] if rest else []
        parts.append("\n".join(["| parameter | type | default |", "| --- | --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"
