"""What makes a step the same step: its job, its version, its code, its settings and the content of its inputs.

The code of a step is every top-level function, class and statement of the job's module and of the first-party
modules that it imports, anywhere in the file and however deep: each parsed, stripped of docstrings and positions, and
hashed by itself. A comment changes nothing; a helper's helper does, and can be named.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jobs.job import Job
from orchestrator.canonical import digest
from orchestrator.errors import InputError, RecipeError

SCHEMA = 1
"""Raised when the meaning of an identity document changes."""

FIRST_PARTY = ("jobs", "models", "data")
"""Packages whose code is followed, beside the job's own."""


def identity(job: Job, code: Mapping[str, str], config: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The identity document of a step; `step_id` is its digest.

    code: from `code_of`, as it was when the run was planned. inputs: field -> digest, list of digests, or None.
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


def step_id(document: Mapping[str, Any]) -> str:
    """sha256, hex, of the canonical JSON of an identity document."""
    return digest(document)


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two identity documents, one sentence each; empty if nothing."""
    said = [
        f"{key}: {old.get(key)} -> {new.get(key)}"
        for key in ("schema", "job", "version")
        if old.get(key) != new.get(key)
    ]
    for slot, word in (("config", "setting"), ("inputs", "input"), ("code", "code")):
        before, after = old.get(slot, {}), new.get(slot, {})
        for key in sorted({*before, *after}):
            if key not in before:
                said.append(f"{word} {key}: added" + (f" ({after[key]!r})" if slot == "config" else ""))
            elif key not in after:
                said.append(f"{word} {key}: removed")
            elif before[key] != after[key]:
                if slot == "config":
                    said.append(f"{word} {key}: {before[key]!r} -> {after[key]!r}")
                elif slot == "inputs":
                    said.append(f"{word} {key}: {_short(before[key])} -> {_short(after[key])}")
                else:
                    said.append(f"{word} {key}: changed")
    return said


def code_of(job: Job) -> dict[str, str]:
    """`module.name` -> digest of the normalised source of everything that the job's `run` can reach by import."""
    module = job.run.__module__
    origin = getattr(sys.modules.get(module), "__file__", None)
    if origin is None:
        raise RecipeError(f"job {job.name}: its module {module} has no source file; define jobs in a file")
    root = Path(origin).resolve().parents[module.count(".")]
    followed = frozenset((*FIRST_PARTY, module.split(".")[0]))
    return dict(_closure(module, root, followed))


def same_code(job: Job, code: Mapping[str, str]) -> None:
    """Raises InputError if the job's code is not `code` on this machine now."""
    now = code_of(job)
    changed = sorted(name for name in {*now, *code} if now.get(name) != code.get(name))
    if changed:
        raise InputError(
            f"code: {', '.join(changed[:3])}{' and others' if len(changed) > 3 else ''} on {platform.node()} changed"
            " since the run was planned; expected the same code to the end, or a result would stand under the wrong"
            " version; give the same command again"
        )


def _closure(module: str, root: Path, followed: frozenset[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    seen, queue = set(), [module]
    while queue:
        name = queue.pop()
        if name in seen or (path := _file_of(name, root)) is None:
            continue
        seen.add(name)
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
    """The digests of a file's top-level definitions, and the names of the modules that it may import.

    changed: the file's modification time, so that it is read again when it changes.
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
    """Strings that stand alone are documentation: of modules, functions, classes and dataclass fields."""
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
