"""The layers: what each folder may import. Folders are listed from the bottom to the top."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parents[2]

MAY_IMPORT = {
    "ratchet.orchestrator": ("ratchet.errors", "ratchet.files", "ratchet.serving"),
    "ratchet.models": ("ratchet.errors", "ratchet.extras"),
    "ratchet.data": ("ratchet.errors", "ratchet.extras", "ratchet.files"),
    "ratchet.jobs": (
        "ratchet.errors",
        "ratchet.extras",
        "ratchet.files",
        "ratchet.serving",
        "ratchet.orchestrator.job_interface",
        "ratchet.models",
        "ratchet.data",
    ),
    "ratchet.recipes": (
        "ratchet.errors",
        "ratchet.orchestrator.finished_run",
        "ratchet.orchestrator.step",
        "ratchet.jobs",
    ),
}
"""Folder -> what it may import of the project beside itself."""

WITHOUT = {
    "ratchet.models": {"ray"},
    "ratchet.data": {"ray", "torch"},
    "ratchet.recipes": {"ray", "torch"},
}
"""Folder -> libraries that it does not know."""

LONGEST_FILE = 440
"""Lines."""

MOST_FILES = 15
"""Side by side in a folder, beside `__init__.py` and `conftest.py`."""


def modules() -> Iterator[tuple[str, Path]]:
    """(dotted name, file) of every module of the project."""
    for folder in MAY_IMPORT:
        top = folder.removeprefix("ratchet.")
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(("ratchet", *(parts[:-1] if parts[-1] == "__init__" else parts))), path


MODULES = dict(modules())


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> set[str]:
    """Dotted names of what a file imports, anywhere in it; modules where they exist, else what holds the name."""
    found: set[str] = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import; write ratchet. in front"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in names}
    return found


def below(name: str, folders: tuple[str, ...]) -> bool:
    return any(name == folder or name.startswith(f"{folder}.") for folder in folders)


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_modules_import_only_what_their_folder_may(folder: str) -> None:
    tops = {name.removeprefix("ratchet.") for name in MAY_IMPORT}
    wrong = []
    for module, path in MODULES.items():
        for name in imports(path) if below(module, (folder,)) else ():
            exists = name in MODULES or (ROOT / f"{name.replace('.', '/')}.py").is_file()
            ours = name.startswith("ratchet.")
            if ours and not (exists and below(name, (folder, *MAY_IMPORT[folder]))):
                wrong.append((module, name))
            if name.split(".")[0] in {*WITHOUT.get(folder, ()), *tops}:  # not as ratchet.<folder>
                wrong.append((module, name))
    assert not wrong


@cache
def imports_at_run_time(module: str) -> set[str]:
    """The modules that a module imports, at its top or in a function, without those that only type checkers import."""
    found = set()
    waiting: list[ast.AST] = [parse(MODULES[module])]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in MODULES else str(node.module))
    return found & MODULES.keys()


@pytest.mark.parametrize(
    "folder", sorted({name for name, path in MODULES.items() if path.name == "__init__.py"})
)
def test_no_two_parts_of_a_folder_import_each_other(folder: str) -> None:
    """The parts of a folder are its modules and its folders. `__init__.py` is a part too."""
    graph = nx.DiGraph()
    for module in MODULES:
        for imported in imports_at_run_time(module):
            if below(module, (folder,)) and below(imported, (folder,)):
                ends = (
                    name.removeprefix(folder).lstrip(".").partition(".")[0]
                    for name in (module, imported)
                )
                graph.add_edge(*ends)
    assert not [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1]


def test_files_stay_small() -> None:
    sizes = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert not {name: lines for name, lines in sizes.items() if lines > LONGEST_FILE}


@pytest.mark.parametrize(
    "top", [*(folder.removeprefix("ratchet.") for folder in MAY_IMPORT), "benchmarks", "tests"]
)
def test_folders_stay_small(top: str) -> None:
    files = [
        path
        for path in (ROOT / top).rglob("*.py")
        if path.name not in ("__init__.py", "conftest.py")
    ]
    counts = Counter(str(path.parent.relative_to(ROOT)) for path in files)
    assert counts
    assert not {folder: number for folder, number in counts.items() if number > MOST_FILES}


def test_every_package_is_listed_for_installation() -> None:
    listed = (
        (ROOT / "setup.cfg").read_text().split("packages =")[1].split("python_requires")[0].split()
    )
    found = [name for name, path in MODULES.items() if path.name == "__init__.py"]
    assert sorted(listed) == sorted(["ratchet", *found])


@pytest.mark.slow
def test_a_plan_needs_neither_torch_nor_ray(tmp_path: Path) -> None:
    code = (
        "import sys; from ratchet.orchestrator.cli.main import main\n"
        f"sys.argv = ['ratchet', 'plan', 'quickstart', '--store', {str(tmp_path / 'store')!r}]\n"
        "try: main()\n"
        "finally: print([name for name in ('torch', 'ray') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "iter0/finetune_embedder" in done.stdout, done.stderr
    assert done.stderr.strip().endswith("[]")


def test_planning_imports_nothing_heavy() -> None:
    heavy = ("torch", "ray", "transformers", "deepspeed", "pyarrow", "numpy")
    code = (
        "import sys, pkgutil, importlib, ratchet.orchestrator.cli.main\nfrom ratchet import recipes\n"
        "[importlib.import_module(f'ratchet.recipes.{m.name}') for m in pkgutil.iter_modules(recipes.__path__)]\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
