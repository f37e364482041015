"""Identity: what must change it does, what must not does not. The code under test is real files, edited on disk."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.orchestrator import fingerprint

JOB = '''
"""A job."""
from dataclasses import dataclass
from pathlib import Path
from ratchet.orchestrator.job_interface import Job, Result
from {package}.helper import half

LIMIT = 3

@dataclass(frozen=True)
class Config:
    size: int = 1
    """How many."""

@dataclass(frozen=True)
class Inputs:
    data: Path | None = None

def run(context, config, inputs):
    from {package} import late
    return Result({{"x": half(config.size) + late.VALUE}})

JOB = Job("toy", version=1, config=Config, inputs=Inputs, run=run)
'''
HELPER = '''
from .deeper import third
def half(x):
    """Halves."""
    return x / 2 + third(x)
'''
FILES = {
    "helper.py": HELPER,
    "deeper.py": "def third(x):\n    return x / 3\n",
    "late.py": "VALUE = 1\n",
    "alone.py": "Y = 1\n",
}


class Project:
    """A package on disk whose fingerprint can be asked for again and again."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        (root / name).mkdir()
        self.write("__init__.py", "")
        self.write("toy.py", JOB.format(package=name))
        for file, text in FILES.items():
            self.write(file, text)

    def write(self, file: str, text: str) -> None:
        (self.root / self.name / file).write_text(text)

    def edit(self, file: str, old: str, new: str) -> None:
        text = (self.root / self.name / file).read_text()
        assert old in text
        self.write(file, text.replace(old, new))

    def document(self, inputs: Any = None, **config: Any) -> dict[str, Any]:
        fingerprint._read.cache_clear()
        for name in [name for name in sys.modules if name.split(".")[0] == self.name]:
            del sys.modules[name]
        importlib.invalidate_caches()
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            module = importlib.import_module(f"{self.name}.toy")
        finally:
            sys.dont_write_bytecode = before
        return fingerprint.build_fingerprint(
            module.JOB, fingerprint.digest_code(module.JOB), module.Config(**config), inputs or {"data": "d" * 64}
        )


@pytest.fixture
def project(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.syspath_prepend(str(tmp_path))
    return Project(tmp_path, f"toyproject{abs(hash(request.node.name)) % 10**6}")


UNCHANGING = [
    ("toy.py", "LIMIT = 3", "# a remark\n\n\nLIMIT   =  3"),
    ("toy.py", '"""A job."""', '"""The same job."""'),
    ("toy.py", '"""How many."""', '"""How many things."""'),
    ("helper.py", '"""Halves."""', ""),
    ("helper.py", "x / 2 + third(x)", "(x / 2) + third(x)  # why"),
    ("alone.py", "Y = 1", "Y = 2"),
]
CHANGING = [
    ("toy.py", "LIMIT = 3", "LIMIT = 4", "code {}.toy.LIMIT: changed"),
    ("toy.py", "half(config.size)", "2 * half(config.size)", "code {}.toy.run: changed"),
    ("helper.py", "x / 2", "x // 2", "code {}.helper.half: changed"),
    ("deeper.py", "x / 3", "x / 4", "code {}.deeper.third: changed"),
    ("late.py", "VALUE = 1", "VALUE = 2", "code {}.late.VALUE: changed"),
    ("toy.py", "version=1", "version=2", "version: 1 -> 2"),
]


@pytest.mark.parametrize(("file", "old", "new"), UNCHANGING)
def test_comments_docstrings_layout_and_unrelated_files_change_nothing(
    project: Project, file: str, old: str, new: str
) -> None:
    before = project.document()
    project.edit(file, old, new)
    after = project.document()
    assert fingerprint.describe_changes(before, after) == []
    assert fingerprint.compute_step_id(before) == fingerprint.compute_step_id(after)


@pytest.mark.parametrize(("file", "old", "new", "said"), CHANGING)
def test_each_real_change_is_named(project: Project, file: str, old: str, new: str, said: str) -> None:
    before = project.document()
    project.edit(file, old, new)
    after = project.document()
    assert said.format(project.name) in fingerprint.describe_changes(before, after)
    assert fingerprint.compute_step_id(before) != fingerprint.compute_step_id(after)


def test_settings_and_inputs_are_named_with_both_values(project: Project) -> None:
    before = project.document(size=1)
    assert fingerprint.describe_changes(before, project.document(size=2)) == ["setting size: 1 -> 2"]
    other = project.document(inputs={"data": "e" * 64})
    assert fingerprint.describe_changes(before, other) == [f"input data: {'d' * 12} -> {'e' * 12}"]


def test_the_place_of_the_checkout_does_not_matter(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    before = project.document()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    sys.path.remove(str(project.root))
    (project.root / project.name).rename(elsewhere / project.name)
    sys.path.insert(0, str(elsewhere))
    moved = Project.__new__(Project)
    moved.root, moved.name = elsewhere, project.name
    try:
        assert moved.document() == before
    finally:
        sys.path.remove(str(elsewhere))
        sys.path.insert(0, str(project.root))


def test_the_real_jobs_follow_their_helpers() -> None:
    from ratchet.jobs.retrieval import mine

    code = fingerprint.digest_code(mine.JOB)
    assert any(name.startswith("ratchet.models.search.top_k.") for name in code)
    assert any(name.startswith("ratchet.data.negatives.") for name in code)
    assert not any(name.startswith("orchestrator.") for name in code)
