"""Fingerprints: what makes two steps equal: job, version, code, settings and the content of the inputs.

The code of a step is every top-level function, class and statement of the job's modules and of the first-party modules
that they import, directly or indirectly. Each is parsed, stripped of docstrings and positions, and hashed separately.
Comments do not count; a change in a helper of a helper does, and `--explain` names it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ratchet.errors import InputError, RecipeError
from ratchet.orchestrator.canonical_json import digest
from ratchet.orchestrator.job_interface.job import Job

SCHEMA = 1
"""Raised when the meaning of a fingerprint changes."""

FIRST_PARTY = ("ratchet",)
"""Packages whose imports are followed, in addition to the job's own."""


def build_fingerprint(job: Job, code: Mapping[str, str], config: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fingerprint of a step. Its digest is the step id.

    code: from `digest_code`, when the run was planned. inputs: field -> digest, list of digests, or None.
    Raises CanonicalError for a setting without a stable form.
    """
    return {
        "schema": SCHEMA,
        "job": job.name,
        "version": job.version,
        "code": dict(code),
        "config": dict(asdict(config).items()),
        "inputs": dict(inputs),
    }


def compute_step_id(document: Mapping[str, Any]) -> str:
    """Return the digest of a fingerprint."""
    return digest(document)


def describe_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return one line for each difference between two fingerprints."""
    found = [
        f"{key}: {old.get(key)} -> {new.get(key)}"
        for key in ("schema", "job", "version")
        if old.get(key) != new.get(key)
    ]
    for slot, word in (("config", "setting"), ("inputs", "input"), ("code", "code")):
        before, after = old.get(slot, {}), new.get(slot, {})
        for key in sorted({*before, *after}):
            if key not in before:
                found.append(f"{word} {key}: added" + (f" ({after[key]!r})" if slot == "config" else ""))
            elif key not in after:
                found.append(f"{word} {key}: removed")
            elif before[key] != after[key]:
                if slot == "config":
                    found.append(f"{word} {key}: {before[key]!r} -> {after[key]!r}")
                elif slot == "inputs":
                    found.append(f"{word} {key}: {_short(before[key])} -> {_short(after[key])}")
                else:
                    found.append(f"{word} {key}: changed")
    return found


def digest_code(job: Job) -> dict[str, str]:
    """Return `module.name` -> digest of the normalized source of everything that the job imports."""
    found: dict[str, str] = {}
    for module in job.modules:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise RecipeError(
                f"job {job.name}: module {module} has no source file; expected a job that is defined in a file"
            )
        root = Path(spec.origin).absolute().parents[module.count(".")]
        found |= _closure(module, root, frozenset((*FIRST_PARTY, module.split(".")[0])))
    return dict(sorted(found.items()))


def check_code(job: Job, code: Mapping[str, str]) -> None:
    """Raises InputError if the job's code on this machine differs from `code`."""
    now = digest_code(job)
    changed = sorted(name for name in {*now, *code} if now.get(name) != code.get(name))
    if changed:
        raise InputError(
            f"code: {', '.join(changed[:3])}{' and others' if len(changed) > 3 else ''} on {platform.node()} changed"
            " since the run was planned; expected the same code to the end, so that results belong to one version; give"
            " the same command again"
        )


def _closure(module: str, root: Path, followed: frozenset[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    visited, queue = set(), [module]
    while queue:
        name = queue.pop()
        if name in visited or (path := _file_of(name, root)) is None:
            continue
        visited.add(name)
        definitions, imported = _read(path, path.stat().st_mtime_ns, name)
        found.update({f"{name}.{key}": value for key, value in definitions.items()})
        queue += [candidate for candidate in imported if candidate.split(".")[0] in followed]
    return dict(sorted(found.items()))


def _file_of(name: str, root: Path) -> Path | None:
    path = root.joinpath(*name.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


@functools.cache
def _read(path: Path, changed: int, module: str) -> tuple[dict[str, str], list[str]]:
    """Return the digests of a file's top-level definitions and the names of the modules that it imports.

    changed: the file's modification time, as a part of the cache key.
    """
    tree = ast.parse(path.read_bytes(), filename=str(path))
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    imported = [*_parents(module), *(name for node in ast.walk(tree) for name in _imports(node, package))]
    for node in ast.walk(tree):
        _drop_docstring(node)
    texts: dict[str, list[str]] = {}
    for statement in tree.body:
        texts.setdefault(_key(statement), []).append(ast.dump(statement))
    return {key: hashlib.sha256("\n".join(text).encode()).hexdigest()[:16] for key, text in texts.items()}, imported


def _parents(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[:depth]) for depth in range(1, len(parts)))


def _imports(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name
            yield from _parents(alias.name)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - (node.level - 1)] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        yield base
        yield from _parents(base)
        yield from (f"{base}.{alias.name}" for alias in node.names)


def _drop_docstring(node: ast.AST) -> None:
    """Remove string statements: docstrings of modules, functions, classes and fields."""
    body = getattr(node, "body", None)
    if isinstance(body, list):
        node.body = [s for s in body if not _is_text(s)] or [ast.Pass()]  # type: ignore[attr-defined]


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _key(statement: ast.stmt) -> str:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return statement.name
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id
    return "<module>"


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_short, value)) + "]"
    return str(value)[:12] if value is not None else "none"
