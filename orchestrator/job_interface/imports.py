"""Imports: where a module's file is, what a module imports, and which of its constructs cannot be followed.

Nothing is imported here: Python's own finders find the file of a module, and its syntax tree says the rest.
"""

import ast
import builtins
import functools
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Literal

from ratchet.errors import RecipeError

ALWAYS_FOLLOWED = ("ratchet",)

IMPORTERS = ("import_module", "__import__", "run_module", "resolve_name")
"""Functions that import the module of a name. It is followed if it is a constant, as is that of `find_spec`."""

LOADERS = ("run_path", "spec_from_file_location")
"""Functions that load code from files."""

_CALLS = [
    "builtins.compile",
    "builtins.eval",
    "builtins.exec",
    "ctypes.CDLL",
    "ctypes.cdll.LoadLibrary",
    "importlib.metadata.entry_points",
    "importlib.resources.files",
    "importlib.resources.open_text",
    "importlib.resources.read_binary",
    "importlib.resources.read_text",
    "os.environ.get",
    "os.getenv",
    "os.popen",
    "os.system",
    "pkgutil.get_data",
    "subprocess.Popen",
    "subprocess.call",
    "subprocess.check_call",
    "subprocess.check_output",
    "subprocess.run",
    "torch.hub.load",
    "torch.utils.cpp_extension.load",
    "types.FunctionType",
]

UNFOLLOWED = {name: f"{name.removeprefix('builtins.')}()" for name in _CALLS} | {
    "__file__": "__file__",
    "os.environ[]": "os.environ",
}
"""Name -> how a warning calls it. They read or run what is no module of the job: files, programs, the environment."""

READERS = ("glob", "iterdir", "open", "read_bytes", "read_text", "rglob")
"""Methods of a path that read."""

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


def list_unfollowed(
    nodes: Sequence[ast.AST], aliases: Mapping[str, str]
) -> Iterator[tuple[int, str]]:
    """Yield (line, construct) of constructs that load code or read files which `list_imports` cannot find."""
    followed = set()
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        called = dotted_name(node.func, aliases)
        constant = _constant(node)
        if called.rpartition(".")[2] in IMPORTERS and constant is not None:
            followed.add(node.func)
        elif constant is not None and called in ("builtins.open", "io.open"):
            yield node.lineno, f"open({constant!r})"
    for node in nodes:
        if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript) or node in followed:
            continue
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
            path = _constant(node.value)
            is_path = dotted_name(node.value.func, aliases) == "pathlib.Path"
            if is_path and path is not None and node.attr in READERS:
                yield node.lineno, f"Path({path!r}).{node.attr}()"
        name = dotted_name(node, aliases)
        last = name.rpartition(".")[2]
        if not isinstance(node.ctx, ast.Load):
            continue
        if name in UNFOLLOWED:
            yield node.lineno, UNFOLLOWED[name]
        elif last in IMPORTERS:
            yield node.lineno, f"{last}() of a name that is computed"
        elif last in LOADERS:
            yield node.lineno, f"{last}()"


def list_aliases(nodes: Sequence[ast.AST]) -> dict[str, str]:
    """Return name -> the dotted name of what an import binds to it: `load` -> `importlib.import_module`."""
    aliases = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    aliases[alias.asname] = alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in nodes:  # names of the module's own hide builtins
        own = getattr(node, "arg", None) or getattr(node, "name", None)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own = node.id
        if isinstance(own, str) and not isinstance(node, ast.keyword | ast.alias):
            aliases.setdefault(own, own)
    return aliases


def dotted_name(node: ast.AST, aliases: Mapping[str, str]) -> str:
    """Return the dotted name of an expression, with the names of imports resolved: `importlib.import_module`,
    `builtins.exec`, `os.environ[]` of a subscript. Empty for other expressions."""
    if isinstance(node, ast.Name):
        if node.id in aliases:
            return aliases[node.id]
        if node.id in vars(builtins):
            return f"builtins.{node.id}"
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value, aliases)}.{node.attr}"
    if isinstance(node, ast.Subscript):
        return f"{dotted_name(node.value, aliases)}[]"
    return ""


def list_imports(
    node: ast.AST, package: str, aliases: Mapping[str, str]
) -> Iterator[tuple[str, bool]]:
    """Yield (dotted name, whether it must be a module) of what a node of a module imports. False: it may also be an
    attribute. package: the package that relative imports refer to. aliases: as from `list_aliases`."""
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
    elif _changes_all(node):
        # `from package import *` imports the submodules that `__all__` lists.
        for item in ast.walk(node):
            if (
                isinstance(item, ast.Constant)
                and isinstance(item.value, str)
                and item.value.isidentifier()
            ):
                yield f"{package}.{item.value}", False
    elif isinstance(node, ast.Call):
        name = _constant(node)
        called = dotted_name(node.func, aliases).rpartition(".")[2]
        if name is None or called not in (*IMPORTERS, "find_spec"):
            return
        if name.startswith("."):
            yield importlib.util.resolve_name(name, package), False
        else:
            yield name.partition(":")[0], False


def _changes_all(node: ast.AST) -> bool:
    """Return whether a node sets or extends `__all__`."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        targets = [node.func.value]
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


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
