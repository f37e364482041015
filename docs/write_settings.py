"""The page of the inputs and settings of all jobs, for the site (`make docs`)."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from ratchet.orchestrator.job_interface import Resources
from ratchet.orchestrator.job_interface.settings import Setting, describe_settings
from ratchet.orchestrator.recipe.single_job import list_jobs, load_job


def write_reference() -> str:
    """Return the inputs and settings of all jobs as Markdown."""
    parts = [REFERENCE_HEAD, "## Resources", *_table(describe_settings(Resources))]
    for verb, module in list_jobs().items():
        job = load_job(module)
        text = (importlib.import_module(module).__doc__ or "").partition("\n\n")[0]
        parts += [
            f"## {verb}",
            " ".join(text.split()).removeprefix(f"{verb}: ").replace("|", "\\|"),
        ]
        inputs = describe_settings(job.inputs)
        if inputs:
            parts += ["Inputs:", *_table(inputs)]
        parts += ["Settings:", *_table(describe_settings(job.config))]
        used = "all" if job.resources is None else ", ".join(f"`{name}`" for name in job.resources)
        parts.append(f"Resources: {used}.")
    return "\n\n".join(parts) + "\n"


REFERENCE_HEAD = """# Settings of the jobs

Give a setting as `--set job.setting=value`, or for one step as
`--set step.setting=value`, such as `iter0/mine.window=2,100`. Resources are given alike; they change results by
rounding at most."""


def _table(settings: Sequence[Setting]) -> list[str]:
    """Return a Markdown table, as a list of one item; empty without settings."""
    if not settings:
        return ["None."]
    rows = [
        f"| `{setting.name}` | {_cell(setting.type)} | {f'`{setting.default}`' if setting.default else ''} |"
        f" {_cell(setting.help)} |"
        for setting in settings
    ]
    return ["\n".join(["| name | type | default | |", "| --- | --- | --- | --- |", *rows])]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
