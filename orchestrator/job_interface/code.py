"""The code of a job: the modules that its results depend on, and the versions of the libraries that they import.

The modules are those of the job and all followed modules that they import, directly or indirectly. A module is
*followed* if it belongs neither to the standard library nor to an installed distribution. Ratchet itself is always
followed, installed or not. Python's own finders find the file of a module; nothing is imported here.

Each module is parsed, stripped of docstrings and positions, and hashed. Comments do not change the code. A change in an
indirectly imported helper does; `plan --explain` names its module.

A process reads each file once. The hashes and the snapshot (see `snapshot`) are therefore of the same content, even if
the file is edited in between.
"""

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import RecipeError
from ratchet.orchestrator.atomic_file import replace
from ratchet.orchestrator.job_interface import imports
from ratchet.orchestrator.job_interface.imports import (
    ALWAYS_FOLLOWED,
    Module,
    dotted_name,
    find_module,
    list_aliases,
    list_imports,
    list_parents,
    list_unfollowed,
)
from ratchet.orchestrator.job_interface.job import Job

NEUTRAL_LIBRARIES = frozenset(
    ["annotated-types", "huggingface-hub", "obstore", "pydantic", "ray", "rich", "tensorboardx"]
)
"""Distributions whose versions do not affect results: they place work, fetch files, check settings and show progress.
The versions of all other distributions are part of the code."""

COMPANIONS = {"transformers": ("tokenizers",)}
"""Distribution -> further distributions that affect its results, but that jobs do not import themselves."""

OPTIONAL_LIBRARIES = frozenset(["bitsandbytes", "datasets", "math-verify", "vllm"])
"""Distributions that some values of settings need. If Ratchet's own modules import them, their versions count only in
steps with such a value (`settings.Uses`), so that installing an extra changes no other step."""

CACHE = (
    Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "ratchet" / "code"
)
"""Cache of parsed modules, shared by processes. It may be deleted at any time."""


@dataclass(frozen=True)
class Code:
    """The code and library versions that the results of a job depend on."""

    modules: Mapping[str, str]
    """Dotted name -> digest of the normalized source."""
    libraries: Mapping[str, str]
    """Distribution -> version. `python` is one of them."""
    files: Mapping[str, Path]
    """Path relative to the folder on the import path, such as `package/module.py` -> file. Installed packages are left
    out, except Ratchet: every machine has them."""
    warnings: tuple[str, ...] = ()
    """Constructs that could not be followed, with file and line."""


def read_code(job: Job) -> Code:
    """Read the code of a job. Raises RecipeError for a module that cannot be followed."""
    return follow_imports(job.modules)


@functools.cache
def follow_imports(modules: tuple[str, ...]) -> Code:
    """Read the code of modules and of everything that they import.

    modules: dotted names. Raises RecipeError for a module that has no file.
    """
    followed = tuple({name.split(".")[0] for name in modules})
    digests = {}
    files = {}
    libraries = set()
    warnings = set()
    visited = set()
    # (module, what imports it; empty where it need not exist, whether that is a module of Ratchet)
    queue = [(name, f"job in module {name}", False) for name in modules]
    while queue:
        name, importer, by_ratchet = queue.pop()
        if (name, by_ratchet) in visited:
            continue
        visited.add((name, by_ratchet))
        queue += [(parent, importer, by_ratchet) for parent in list_parents(name)]
        module = find_module(name, followed)
        if module.kind == "missing" and name in modules:
            raise RecipeError(
                f"module {name}: has no source file; expected a job that is defined in a file"
            )
        if module.kind == "missing" and importer:
            warnings.add(
                f"{importer}: imports {name}, which is not on this machine; its changes would not be noticed"
            )
        own = name.split(".")[0] in ALWAYS_FOLLOWED
        if module.kind == "installed" or (module.installed and not own):
            owners = _find_owners(name.split(".")[0])
            libraries |= owners - OPTIONAL_LIBRARIES if by_ratchet else owners
        if module.kind != "followed" or module.path is None:
            continue
        found = _read_module(module, read_file(module.path))
        if own or not module.installed:
            files[module.file] = module.path
        digests[module.name] = found.digest
        warnings.update([] if own else found.warnings)
        for imported, certain in found.imported:
            queue.append((imported, f"{module.path}" if certain and not own else "", own))
    return Code(
        dict(sorted(digests.items())),
        _find_versions(libraries),
        dict(sorted(files.items())),
        tuple(sorted(warnings)),
    )


@functools.cache
def read_file(path: Path) -> bytes:
    """Return the content of a file when this process first read it."""
    return path.read_bytes()


def read_script_libraries(script: str) -> dict[str, str]:
    """Return distribution -> version of what a script imports, and Python's; empty for a text that is no Python."""
    try:
        nodes = list(ast.walk(ast.parse(script)))
    except (SyntaxError, ValueError):
        return {}
    libraries = set()
    for node in nodes:
        for name, _ in list_imports(node, "", {}):
            libraries |= _find_owners(name.split(".")[0])
    return _find_versions(libraries)


def find_version(library: str) -> str:
    """Return the version of a distribution without its local part: 2.13.0 for 2.13.0+cpu. Of `python`: 3.12. `none`: it
    is not installed."""
    if library == "python":
        return ".".join(platform.python_version_tuple()[:2])
    try:
        return importlib.metadata.version(library).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return "none"


@dataclass(frozen=True)
class _ModuleCode:
    digest: str
    """Digest of the source without docstrings and positions."""
    imported: tuple[tuple[str, bool], ...]
    """(dotted name, whether it must be a module) of everything that the module imports."""
    warnings: tuple[str, ...]


@functools.cache
def _read_module(module: Module, content: bytes) -> _ModuleCode:
    """Parse a module, or return the cached result for the same content, parser and version of Python."""
    parser = [read_file(Path(source)) for source in (__file__, imports.__file__)]
    known_by = [*parser, sys.version.encode(), repr(module).encode(), content]
    kept = CACHE / hashlib.sha256(b"\0".join(known_by)).hexdigest()
    with suppress(OSError, ValueError):
        return _ModuleCode(**json.loads(kept.read_bytes()))
    found = _parse_module(module, content)
    with suppress(OSError):  # a folder that cannot be written: the next process parses again
        replace(kept, json.dumps(vars(found)).encode(), durable=False)
    return found


def _parse_module(module: Module, content: bytes) -> _ModuleCode:
    assert module.path is not None
    if module.path.suffix != ".py":  # an extension, or bytecode without its source
        return _ModuleCode(_hash(content), (), ())
    tree = ast.parse(content, filename=str(module.path))
    nodes = list(ast.walk(tree))
    aliases = list_aliases(nodes)
    imported = {}
    for node in nodes:
        imported.update(dict.fromkeys(list_imports(node, module.package, aliases)))
    why = "cannot be followed; changes of what it reads or runs would not be noticed"
    found = dict.fromkeys(list_unfollowed(nodes, aliases))
    warnings = tuple(f"{module.path}:{line}: {what} {why}" for line, what in found)
    # String statements: docstrings of modules, functions, classes and fields. A module that reads one keeps them all.
    if not any(dotted_name(node, aliases).endswith("__doc__") for node in nodes):
        for node in nodes:
            body = getattr(node, "body", None)
            if isinstance(body, list):
                node.body = [s for s in body if not _is_text(s)] or [ast.Pass()]  # type: ignore[attr-defined]
    return _ModuleCode(_hash(ast.dump(tree).encode()), tuple(imported), warnings)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(
        getattr(statement.value, "value", None), str
    )


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _find_owners(package: str) -> set[str]:
    """Return the distributions of a top-level package."""
    return {owner.lower().replace("_", "-") for owner in _distributions().get(package, ())}


def _find_versions(libraries: set[str]) -> dict[str, str]:
    """Return distribution -> version of those libraries whose versions may affect results, and of `python`."""
    found = {"python": find_version("python")}
    for library in sorted(libraries):
        for name in (library, *COMPANIONS.get(library, ())):
            if name not in NEUTRAL_LIBRARIES:
                found[name] = find_version(name)
    return found


@functools.cache
def _distributions() -> Mapping[str, set[str]]:
    """Return top-level package -> names of its distributions, some times as fast as `packages_distributions`."""
    found: dict[str, set[str]] = {}
    for one in importlib.metadata.distributions():
        listed = (one.read_text("top_level.txt") or "").split()
        if not listed:
            listed = re.findall(r"^([^./]+)[./]", one.read_text("RECORD") or "", re.MULTILINE)
        for name in set(listed):
            found.setdefault(name, set()).add(one.name)
    return found
