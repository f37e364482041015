"""Mutations: changes of source files, and whether they change the step ids of a recipe.

Run as a program, with the copy of the package to change on the import path:
`python mutations.py RECIPE [--sample N] [--set NAME=VALUE]`. Prints a JSON object: `count` maps each kind of mutation
to the number that was tried. `wrong` lists the mutations after which a step id is not as expected.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[3]

KEEPING = ("comment", "docstring")
"""Kinds of mutations that keep every identity."""


@dataclass(frozen=True)
class Mutation:
    kind: str
    path: Path
    line: int
    text: str
    """The source of the whole file."""


def list_mutations(path: Path) -> Iterator[Mutation]:
    """Yield a mutation for the file and for each constant, default, decorator and docstring in it, and a comment."""
    source = path.read_text()
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    raw = source.encode()

    def replace(kind: str, node: ast.AST, new: str) -> Mutation:
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        first, last = (
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
        )
        return Mutation(kind, path, node.lineno, (raw[:first] + new.encode() + raw[last:]).decode())

    yield Mutation("file", path, len(lines), source + "\n_MUTATION = 1\n")
    yield Mutation("comment", path, len(lines), source + "\n# A comment.\n")
    tree = ast.parse(source)
    documentation = {id(node.value): node for node in ast.walk(tree) if _is_text(node)}
    # Python 3.11 does not say where the constants inside an f-string are.
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) in documentation:
            yield replace("docstring", node, '"""Another docstring."""')
        elif isinstance(node, ast.Constant) and id(node) not in inside:
            yield replace("constant", node, _change(node.value))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from (
                replace("decorator", one, f"_mutated({ast.unparse(one)})")
                for one in node.decorator_list
            )
        if isinstance(node, ast.arguments):
            defaults = [*node.defaults, *(one for one in node.kw_defaults if one is not None)]
            yield from (
                replace("default", one, f"_mutated({ast.unparse(one)})") for one in defaults
            )


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _change(value: object) -> str:
    if isinstance(value, str | bytes):
        return repr(value + type(value)(b"~" if isinstance(value, bytes) else "~"))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "_mutated"
    return repr(value + 1) if value + 1 != value else "_mutated"


def try_mutations(
    recipe: str, settings: list[str], sample: int | None
) -> tuple[Counter[str], list[str]]:
    """Apply mutations one by one, and compute the step ids of the steps whose job imports the file."""
    from ratchet.orchestrator.canonical_json import digest
    from ratchet.orchestrator.fingerprint import build_fingerprint
    from ratchet.orchestrator.job_interface import code
    from ratchet.orchestrator.recipe import Settings, build, find

    steps = build(find(recipe), Settings.read(settings))[0]
    files = {step.name: set(code.read_code(step.job).files.values()) for step in steps}

    def identify(path: Path) -> dict[str, str]:
        code.read_file.cache_clear()
        code.follow_imports.cache_clear()
        return {
            step.name: digest(
                build_fingerprint(step.job, code.read_code(step.job), step.config, {})
            )
            for step in steps
            if path in files[step.name]
        }

    mutations = [
        one for path in sorted(set().union(*files.values())) for one in list_mutations(path)
    ]
    if sample is not None:
        mutations = Random(0).sample(mutations, sample)
    count: Counter[str] = Counter()
    wrong = []
    for one in mutations:
        source, before = one.path.read_text(), identify(one.path)
        one.path.write_text(one.text)
        after = identify(one.path)
        one.path.write_text(source)
        count[one.kind] += 1
        wrong += [
            f"{one.path.name}:{one.line}: {one.kind}: {name}"
            for name in before
            if (before[name] == after[name]) != (one.kind in KEEPING)
        ]
    return count, wrong


def mutate_copy(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run this program on a copy of the package in a folder, and return what it prints."""
    shutil.copytree(
        ROOT / "ratchet", folder / "ratchet", ignore=shutil.ignore_patterns("__pycache__")
    )
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--sample", type=int)
    arguments = parser.parse_args()
    found, unexpected = try_mutations(arguments.recipe, arguments.set, arguments.sample)
    print(json.dumps({"count": found, "wrong": unexpected}))
