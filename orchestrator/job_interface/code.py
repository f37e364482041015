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
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Literal

from ratchet.errors import RecipeError
from ratchet.orchestrator.atomic_file import replace
from ratchet.orchestrator.job_interface.job import Job

NEUTRAL_LIBRARIES = frozenset(
    ["annotated-types", "huggingface-hub", "obstore", "pydantic", "ray", "rich", "tensorboardx"]
)
"""Distributions whose versions do not affect results: they place work, fetch files, check settings and show progress.
The versions of all other distributions are part of the code."""

COMPANIONS = {"transformers": ("tokenizers",)}
"""Distribution -> further distributions that affect its results, but that jobs do not import themselves."""

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
    queue = [(name, f"job in module {name}") for name in modules]
    while queue:
        name, importer = queue.pop()
        if name in visited:
            continue
        visited.add(name)
        queue += [(parent, importer) for parent in list_parents(name)]
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
            libraries.add(name.split(".")[0])
        if module.kind != "followed" or module.path is None:
            continue
        found = _read_module(module, read_file(module.path))
        if own or not module.installed:
            files[module.file] = module.path
        digests[module.name] = found.digest
        warnings.update([] if own else found.warnings)
        queue += [
            (name, f"{module.path}" if certain and not own else "")
            for name, certain in found.imported
        ]
    versions = _find_versions(libraries)
    return Code(
        dict(sorted(digests.items())),
        versions,
        dict(sorted(files.items())),
        tuple(sorted(warnings)),
    )


@functools.cache
def read_file(path: Path) -> bytes:
    """Return the content of a file when this process first read it."""
    return path.read_bytes()


def find_version(library: str) -> str:
    """Return the version of a distribution without its local part: 2.13.0 for 2.13.0+cpu. Of `python`: 3.12."""
    if library == "python":
        return ".".join(platform.python_version_tuple()[:2])
    return importlib.metadata.version(library).partition("+")[0]


@dataclass(frozen=True)
class _ModuleCode:
    digest: str
    """Digest of the source without docstrings and positions."""
    imported: tuple[tuple[str, bool], ...]
    """(dotted name, whether it must be a module) of everything that the module imports."""
    warnings: tuple[str, ...]


@functools.cache
def _read_module(module: "Module", content: bytes) -> _ModuleCode:
    """Parse a module, or return the cached result for the same content, parser and version of Python."""
    parser = (read_file(Path(__file__)), sys.version.encode(), repr(module).encode())
    kept = CACHE / hashlib.sha256(b"\0".join([*parser, content])).hexdigest()
    with suppress(OSError, ValueError):
        return _ModuleCode(**json.loads(kept.read_bytes()))
    found = _parse_module(module, content)
    with suppress(OSError):  # a folder that cannot be written: the next process parses again
        replace(kept, json.dumps(vars(found)).encode(), durable=False)
    return found


def _parse_module(module: "Module", content: bytes) -> _ModuleCode:
    assert module.path is not None
    if module.path.suffix != ".py":  # an extension, or bytecode without its source
        return _ModuleCode(_hash(content), (), ())
    tree = ast.parse(content, filename=str(module.path))
    nodes = list(ast.walk(tree))
    imported = {}
    for node in nodes:
        imported.update(dict.fromkeys(_list_imports(node, module.package)))
    why = "cannot be followed; changes of what it reads or runs would not be noticed"
    warnings = tuple(f"{module.path}:{line}: {what} {why}" for line, what in list_unfollowed(nodes))
    for node in nodes:  # string statements: docstrings of modules, functions, classes and fields
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


def _find_versions(packages: set[str]) -> dict[str, str]:
    """Return distribution -> version of the imported packages whose versions may affect results."""
    found = {"python": find_version("python")}
    owners = _distributions()
    names = set()
    for package in packages:
        for owner in owners.get(package, ()):
            names.add(owner.lower().replace("_", "-"))
    for library in sorted(names):
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


ALWAYS_FOLLOWED = ("ratchet",)

LOADERS = ("run_path", "run_module", "spec_from_file_location")
"""Functions that load code from files."""

STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))

Kind = Literal["standard library", "installed", "followed", "missing"]


@dataclass(frozen=True)
class Module:
    """A module and the file that defines it."""

    name: str
    kind: Kind
    path: Path | None = None
    """None for a namespace package, which has no file, and for modules that are not followed."""
    installed: bool = False
    """Whether the module belongs to an installed distribution. A job's own package is followed even if installed."""

    @property
    def package(self) -> str:
        """The package that relative imports in the module refer to."""
        is_package = self.path is not None and self.path.stem == "__init__"
        if is_package or self.path is None:
            return self.name
        return self.name.rpartition(".")[0]

    @property
    def file(self) -> str:
        """The path of the file relative to the folder of the top-level package: `package/module.py`."""
        assert self.path is not None
        parts = self.name.split(".")
        depth = len(parts) + (self.path.stem == "__init__")
        return "/".join(self.path.parts[-depth:])


@functools.cache
def find_module(name: str, followed: tuple[str, ...] = ()) -> Module:
    """Find a module by its dotted name. followed: top-level packages that are followed even if they are installed.

    Raises RecipeError for a followed module that has no file, or that has the name of a standard library module.
    """
    main = sys.modules["__main__"].__spec__
    if name == "__main__" and main is not None:  # started by `python -m`
        name = main.name
    spec = _find_spec(name)
    top = name.split(".")[0]
    if spec is None:
        return Module(name, "missing")
    if spec.origin in ("built-in", "frozen"):
        return Module(name, "standard library")
    if spec.origin is None and spec.submodule_search_locations is not None:
        return Module(name, "followed")
    path = Path(spec.origin or "")
    if not path.is_file():
        if top != name and find_module(top, followed).kind == "installed":
            return Module(name, "installed")  # from an import hook of the library, as for old names
        raise RecipeError(
            f"module {name}: loaded from {spec.origin}, which is not a file; expected a file, so that its changes are"
            " noticed; unpack it"
        )
    in_packages = not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    if path.is_relative_to(STANDARD_LIBRARY) and not in_packages:
        return Module(name, "standard library")
    depth = name.count(".") + (path.stem == "__init__")
    installed = in_packages or _holds_distributions(path.parents[depth])
    if installed and top not in (*ALWAYS_FOLLOWED, *followed):
        return Module(name, "installed")
    if top in sys.stdlib_module_names:
        raise RecipeError(
            f"{path}: the standard library has a module {top} too; expected another name, since a worker imports"
            " whichever it finds first; rename the file"
        )
    return Module(name, "followed", path, installed)


def list_parents(module: str) -> Iterator[str]:
    """Yield the packages that Python imports before a module."""
    parts = module.split(".")
    return (".".join(parts[:depth]) for depth in range(1, len(parts)))


def list_unfollowed(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield (line, construct) of constructs that load code or files which `_list_imports` cannot find."""
    for node in nodes:
        if isinstance(node, ast.Name) and node.id == "__file__":
            yield node.lineno, "__file__"
        if not isinstance(node, ast.Call):
            continue
        called = _called(node)
        if called in ("import_module", "__import__") and _constant(node) is None:
            yield node.lineno, f"{called}() of a name that is computed"
        # A method named `eval`, such as `model.eval()`, runs no code from text.
        elif called in LOADERS or (called in ("exec", "eval") and isinstance(node.func, ast.Name)):
            yield node.lineno, f"{called}()"


def _list_imports(node: ast.AST, package: str) -> Iterator[tuple[str, bool]]:
    """Yield (dotted name, whether it must be a module) of what a node of a module imports. False: it may also be an
    attribute. package: the package that relative imports refer to."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, True) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = "." * node.level + (node.module or "")
        try:
            base = importlib.util.resolve_name(base, package)
        except ImportError:
            return  # above the top-level package, which Python refuses too
        yield base, True
        yield from ((f"{base}.{alias.name}", False) for alias in node.names if alias.name != "*")
    elif isinstance(node, ast.Assign) and any(
        isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
    ):
        # `from package import *` imports the submodules that `__all__` lists.
        for item in ast.walk(node.value):
            if (
                isinstance(item, ast.Constant)
                and isinstance(item.value, str)
                and item.value.isidentifier()
            ):
                yield f"{package}.{item.value}", False
    elif isinstance(node, ast.Call) and _called(node) in (
        "import_module",
        "__import__",
        "find_spec",
    ):
        name = _constant(node)
        if name is not None and name.startswith("."):
            yield importlib.util.resolve_name(name, package), False
        elif name is not None:
            yield name, False


def _called(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return getattr(function, "id", "")


def _constant(node: ast.Call) -> str | None:
    first = node.args[0] if node.args else None
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        return first.value
    return None


def _find_spec(name: str) -> ModuleSpec | None:
    """Find a module's spec without importing its parents, which `importlib.util.find_spec` would do."""
    spec = None
    path = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        if depth > 1 and path is None:
            return None  # the parent is no package
        full = ".".join(parts[:depth])
        finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next(
            (found for finder in finders if (found := finder.find_spec(full, path)) is not None),
            None,
        )
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec


@functools.cache
def _holds_distributions(folder: Path) -> bool:
    """Return whether distributions are installed in a folder, as by `pip install --target`."""
    return any(folder.glob("*.dist-info"))
