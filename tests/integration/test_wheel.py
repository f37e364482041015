"""The wheel: its files, and that it runs outside the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("data", "examples", "jobs", "models", "orchestrator", "recipes")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, since setuptools leaves its own folders beside the sources."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    leave_out = shutil.ignore_patterns("__pycache__")
    for name in ("ratchet", *FOLDERS):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=leave_out)
    for name in ("setup.cfg", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(built), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = built.glob("ratchet_train-*.whl")
    return found


def test_wheel_contents(wheel: Path) -> None:
    expected = {f"ratchet/{path.name}" for path in (ROOT / "ratchet").glob("*.py")}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in (".py", ".css", ".js", ".j2", ".yaml", ".jsonl"):
                expected.add(f"ratchet/{path.relative_to(ROOT)}")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert any(name.endswith(".html.j2") for name in expected)


def test_wheel_beside_a_users_data_module(wheel: Path, tmp_path: Path) -> None:
    """`data.py` and `jobs.py` are names that users give their own files."""
    installed, cwd = tmp_path / "installed", tmp_path / "cwd"
    done = subprocess.run(
        [*PIP, "install", "--no-deps", "--target", str(installed), str(wheel)], capture_output=True
    )
    assert done.returncode == 0, done.stderr
    cwd.mkdir()
    for name in ("data", "jobs"):
        (cwd / f"{name}.py").write_text(
            "raise RuntimeError('the module of the user was imported')\n"
        )
    code = (
        "import sys; sys.path.insert(0, '')\n"
        "import ratchet, ratchet.orchestrator.cli.main as main\n"
        f"assert ratchet.__file__.startswith({str(installed)!r}), ratchet.__file__\n"
        "sys.exit(main.main(['recipes']))"
    )
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "quickstart" in done.stdout
