"""Imports: the modules that a file imports, and the file of each module, found by Python's own finders.

Nothing is imported here. A module is *followed* if its source code counts as code of the job: it belongs neither to the
standard library nor to an installed distribution. Ratchet itself is always followed, installed or not.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Literal

from ratchet.errors import RecipeError

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
    if (
        name == "__main__" and (main := sys.modules[name].__spec__) is not None
    ):  # started by `python -m`
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


def list_imports(nodes: Iterable[ast.AST], package: str) -> Iterator[tuple[str, bool]]:
    """Yield (dotted name, whether it must be a module) of what a module imports. False: it may also be an attribute.

    nodes: all AST nodes of the module. package: the package that relative imports refer to.
    """
    for node in nodes:
        yield from _names(node, package)


def list_parents(module: str) -> Iterator[str]:
    """Yield the packages that Python imports before a module."""
    parts = module.split(".")
    return (".".join(parts[:depth]) for depth in range(1, len(parts)))


def list_unfollowed(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield (line, construct) of constructs that load code or files which `list_imports` cannot find."""
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


def _names(node: ast.AST, package: str) -> Iterator[tuple[str, bool]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name, True) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            above = package.split(".")[: len(package.split(".")) - (node.level - 1)]
        else:
            above = []
        base = ".".join([*above, *([node.module] if node.module else [])])
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
