"""Fingerprints: identify a step by its job, version, code, libraries, settings, and the content of its inputs."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ratchet.orchestrator.canonical_json import digest
from ratchet.orchestrator.job_interface.code import Code, find_version
from ratchet.orchestrator.job_interface.job import Job
from ratchet.orchestrator.job_interface.settings import Neutral, Uses, list_annotations

SCHEMA = 2
"""Version of the fingerprint's format; increased when the meaning of a fingerprint changes."""


def build_fingerprint(
    job: Job, code: Code, config: Any, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fingerprint of a step. Its digest is the step id (`canonical_json.digest`, which raises CanonicalError
    for a setting without a stable form).

    code: the job's code when the run was planned. inputs: field -> digest, list of digests, or None.
    """
    settings = asdict(config)
    libraries = dict(code.libraries)
    for name, uses in list_annotations(job.config, Uses):
        if settings[name] == uses.value:
            libraries |= {library: find_version(library) for library in uses.libraries}
    for name, _ in list_annotations(job.config, Neutral):
        del settings[name]
    return {
        "schema": SCHEMA,
        "job": job.name,
        "version": job.version,
        "code": dict(code.modules),
        "libraries": libraries,
        "config": settings,
        "inputs": dict(inputs),
    }


def describe_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return one line for each difference between two fingerprints."""
    differ = [key for key in ("schema", "job", "version") if old.get(key) != new.get(key)]
    found = [f"{key}: {old.get(key)} -> {new.get(key)}" for key in differ]
    for slot, (word, show) in SLOTS.items():
        before = old.get(slot, {})
        after = new.get(slot, {})
        for key in sorted({*before, *after}):
            if key not in before:
                found.append(
                    f"{word} {key}: added" + (f" ({after[key]!r})" if slot == "config" else "")
                )
            elif key not in after:
                found.append(f"{word} {key}: removed")
            elif digest(before[key]) != digest(after[key]):  # a tuple becomes a list in JSON
                change = f"{show(before[key])} -> {show(after[key])}" if show else "changed"
                found.append(f"{word} {key}: {change}")
    return found


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_short, value)) + "]"
    if value is not None:
        return str(value)[:12]
    return "none"


SLOTS: Mapping[str, tuple[str, Callable[[Any], str] | None]] = {
    "config": ("setting", repr),
    "inputs": ("input", _short),
    "code": ("code", None),
    "libraries": ("library", str),
}
"""Part of a fingerprint -> the word for its entries, and the function that formats a value (None: not shown)."""
