"""The floors: recipes -> {orchestrator.step, jobs}, orchestrator -> jobs' contract, jobs -> {models, data}."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("orchestrator", "jobs", "models", "data", "recipes")
CONTRACT = ("jobs.job", "jobs.machines", "jobs.values", "jobs.progress", "jobs.trail", "jobs.lines")
SHARED_BY_JOBS = (
    *CONTRACT,
    "jobs.shards",
    "jobs.vllm_shards",
    "jobs.trainee",
    "jobs.training",
    "jobs.training_loop",
    "jobs.optimization",
    "jobs.tracking",
    "jobs.finetuning",
    "jobs.standing",
    "jobs.preemption",
    "jobs.leftover",
)


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(path: Path, module: str) -> set[str]:
    """Dotted names of the modules that a file imports, anywhere in it."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = (
                ".".join([*parts[: len(parts) - node.level + 1], node.module or ""]).strip(".")
                if node.level
                else node.module
            )
            assert base is not None
            for alias in node.names:
                name = f"{base}.{alias.name}"
                exists = (ROOT / Path(*name.split("."))).with_suffix(".py").exists() or (
                    ROOT / Path(*name.split("."))
                ).is_dir()
                found.add(name if exists else base)
    return found


def top(name: str) -> str:
    return name.split(".")[0]


@pytest.mark.parametrize(
    ("module", "path"), list(modules()), ids=lambda value: str(value) if isinstance(value, str) else ""
)
def test_a_module_imports_only_from_its_floor_and_below(module: str, path: Path) -> None:
    own = {name for name in imports(path, module) if top(name) in PACKAGES}
    floor = top(module)
    if floor in ("models", "data"):
        assert not {name for name in own if top(name) != floor}, "models and data know only themselves"
        assert not {name for name in imports(path, module) if top(name) == "ray"}, "models and data know no Ray"
    elif floor == "jobs":
        assert not {name for name in own if top(name) in ("orchestrator", "recipes")}
        others = {name for name in own if top(name) == "jobs" and name not in ("jobs", *SHARED_BY_JOBS)}
        assert not others or module == "jobs.__main__", "jobs do not import each other"
    elif floor == "orchestrator":
        assert not {name for name in own if top(name) in ("models", "data")}
        assert not {name for name in own if top(name) == "jobs" and name not in CONTRACT}
        assert module == "orchestrator.recipe" or not {name for name in own if top(name) == "recipes"}
    else:
        assert not {name for name in own if top(name) in ("models", "data")}
        assert not {name for name in own if top(name) == "orchestrator" and name != "orchestrator.step"}


def test_no_file_is_longer_than_400_lines() -> None:
    long = {str(path.relative_to(ROOT)): n for _, path in modules() if (n := len(path.read_text().splitlines())) > 400}
    assert not long


def test_every_package_is_listed_for_installation() -> None:
    listed = (ROOT / "setup.cfg").read_text().split("packages =")[1].split("python_requires")[0].split()
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for package in PACKAGES
        for path in (ROOT / package).rglob("__init__.py")
    }
    assert sorted(listed) == sorted(found)


def test_planning_imports_nothing_heavy() -> None:
    heavy = ("torch", "ray", "transformers", "deepspeed", "pyarrow", "numpy")
    code = (
        "import sys, pkgutil, importlib, orchestrator.cli, recipes\n"
        "[importlib.import_module(f'recipes.{m.name}') for m in pkgutil.iter_modules(recipes.__path__)]\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
