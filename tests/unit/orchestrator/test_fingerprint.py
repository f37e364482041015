"""Fingerprints: which changes must change a step id, and which must not. The code under test is in files on disk."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mutations import mutate_copy

from ratchet.errors import RecipeError
from ratchet.orchestrator import fingerprint
from ratchet.orchestrator.canonical_json import digest
from ratchet.orchestrator.job_interface import code, imports

# They follow the imports of jobs.
pytestmark = pytest.mark.slow

JOB = '''
"""A job."""
from dataclasses import dataclass
from pathlib import Path
from ratchet.orchestrator.job_interface import Job, Result
from {package}.helper import half

import beside, importlib
try:
    import optional
except ImportError:
    optional = None
FOUND = importlib.import_module("constant")

LIMIT = 3
TOP = LIMIT
HOOKS = []

def first(hook):
    HOOKS.append(hook)
    return hook

def second(hook):
    HOOKS.append(hook)
    return hook

@first
def hook_a():
    pass

@second
def hook_b():
    pass

def run_other_job():
    from implementation import WORK

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
BESIDE = {
    "beside.py": "import beside_package.inner\nFACTOR = 2\n",
    "beside_package/inner.py": "from .starred import *\nINNER = 1\n",  # a namespace package
    "beside_package/starred/__init__.py": "__all__ = ['listed']\n",
    "beside_package/starred/listed.py": "LISTED = 1\n",
    "constant.py": "NAMED = 1\n",
    "optional.py": "OPTIONAL = 1\n",
    "implementation.py": "WORK = 1\n",
    "not_imported.py": "Z = 1\n",
}
"""Modules that lie beside the package of the job, as those beside a recipe's file do."""


class Project:
    """A package on disk whose fingerprint can be asked for again and again."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        (root / name).mkdir()
        self.write("__init__.py", "")
        self.write("toy.py", JOB.format(package=name))
        for file, text in FILES.items():
            self.write(file, text)
        for file, text in BESIDE.items():
            path = root / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def write(self, file: str, text: str) -> None:
        (self.root / self.name / file).write_text(text)

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.root / file if file in BESIDE else self.root / self.name / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def document(self, inputs: Any = None, **config: Any) -> dict[str, Any]:
        # As in a new process.
        for cached in (code.follow_imports, code.read_file, code._read_module, code._distributions):
            cached.cache_clear()
        for cached in (imports.find_module, imports._holds_distributions):
            cached.cache_clear()
        for name in [name for name in sys.modules if name.split(".")[0] == self.name]:
            del sys.modules[name]
        importlib.invalidate_caches()
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            module = importlib.import_module(f"{self.name}.toy")
        finally:
            sys.dont_write_bytecode = before
        self.code = code.read_code(module.JOB)
        return fingerprint.build_fingerprint(
            module.JOB, self.code, module.Config(**config), inputs or {"data": "d" * 64}
        )


@pytest.fixture
def project(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Project]:
    monkeypatch.syspath_prepend(str(tmp_path))
    return Project(tmp_path, f"toyproject{abs(hash(request.node.name)) % 10**6}")


UNCHANGING = [
    ("toy.py", "LIMIT = 3", "# a remark\n\n\nLIMIT   =  3"),
    ("toy.py", '"""A job."""', '"""The same job."""'),
    ("toy.py", '"""How many."""', '"""How many things."""'),
    ("helper.py", '"""Halves."""', ""),
    ("helper.py", "x / 2 + third(x)", "(x / 2) + third(x)  # why"),
    ("alone.py", "Y = 1", "Y = 2"),
    ("not_imported.py", "Z = 1", "Z = 2"),
    ("beside.py", "FACTOR = 2", "FACTOR = 2  # a factor"),
]
CHANGING = [
    ("toy.py", "LIMIT = 3", "LIMIT = 4", "code {}.toy: changed"),
    ("toy.py", "half(config.size)", "2 * half(config.size)", "code {}.toy: changed"),
    ("helper.py", "x / 2", "x // 2", "code {}.helper: changed"),
    ("deeper.py", "x / 3", "x / 4", "code {}.deeper: changed"),
    ("late.py", "VALUE = 1", "VALUE = 2", "code {}.late: changed"),
    ("toy.py", "version=1", "version=2", "version: 1 -> 2"),
    ("toy.py", "size: int = 1", "size: int = 2", "code {}.toy: changed"),
    ("toy.py", "@first", "@second", "code {}.toy: changed"),
    ("beside.py", "FACTOR = 2", "FACTOR = 3", "code beside: changed"),
    ("beside_package/inner.py", "INNER = 1", "INNER = 2", "code beside_package.inner: changed"),
    (
        "beside_package/starred/listed.py",
        "= 1",
        "= 2",
        "code beside_package.starred.listed: changed",
    ),
    ("constant.py", "NAMED = 1", "NAMED = 2", "code constant: changed"),
    ("optional.py", "OPTIONAL = 1", "OPTIONAL = 2", "code optional: changed"),
    ("implementation.py", "WORK = 1", "WORK = 2", "code implementation: changed"),
]


@pytest.mark.parametrize(("file", "old", "new"), UNCHANGING)
def test_comments_change_no_identity(project: Project, file: str, old: str, new: str) -> None:
    before = project.document()
    project.edit(file, old, new)
    after = project.document()
    assert fingerprint.describe_changes(before, after) == []
    assert digest(before) == digest(after)


@pytest.mark.parametrize(("file", "old", "new", "said"), CHANGING)
def test_each_real_change_is_named(
    project: Project, file: str, old: str, new: str, said: str
) -> None:
    before = project.document()
    project.edit(file, old, new)
    after = project.document()
    assert said.format(project.name) in fingerprint.describe_changes(before, after)
    assert digest(before) != digest(after)


def test_the_order_of_statements_counts(project: Project) -> None:
    """`K = 5; TOP = K; K = 10` is not `K = 5; K = 10; TOP = K`, and decorators register in order."""
    text = "LIMIT = 3\nTOP = LIMIT\n"
    ids = []
    for order in (text, text + "LIMIT = 10\n", text.replace("TOP", "LIMIT = 10\nTOP")):
        project.write("toy.py", JOB.format(package=project.name).replace(text, order))
        ids.append(digest(project.document()))
    hooks = ["@first\ndef hook_a():\n    pass\n", "@second\ndef hook_b():\n    pass\n"]
    whole = JOB.format(package=project.name)
    assert "\n".join(hooks) in whole
    project.write("toy.py", whole.replace("\n".join(hooks), "\n".join(hooks[::-1])))
    ids.append(digest(project.document()))
    assert len(set(ids)) == 4


def install(folder: Path, version: str) -> None:
    """Install a distribution with one module, as `pip install --target` does."""
    shutil.rmtree(folder, ignore_errors=True)
    about = folder / f"Measuring_Tape-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: Measuring_Tape\nVersion: {version}\n"
    )
    (about / "top_level.txt").write_text("measuring\n")
    (folder / "measuring.py").write_text(f"VERSION = '{version}'\n")


def test_installed_libraries_count_by_version(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = tmp_path / "libraries"
    install(libraries, "1.0+local")
    monkeypatch.syspath_prepend(str(libraries))
    project.edit("late.py", "VALUE = 1", "import json, measuring, ray, torch\nVALUE = 1")
    before = project.document()
    assert before["libraries"]["measuring-tape"] == "1.0"
    assert {"python", "torch"} <= set(before["libraries"])
    assert not {"json", "ray"} & set(before["libraries"])
    assert not [name for name in before["code"] if name.startswith("measuring")]
    install(libraries, "1.1")
    after = project.document()
    assert fingerprint.describe_changes(before, after) == ["library measuring-tape: 1.0 -> 1.1"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "import importlib; importlib.import_module('a' + 'b')",
            "late.py:1: import_module() of a name",
        ),
        ("open(__file__)", "late.py:1: __file__ cannot be followed"),
        ("exec('VALUE = 2')", "late.py:1: exec() cannot be followed"),
        (
            "try:\n    import nowhere\nexcept ImportError:\n    pass",
            "late.py: imports nowhere, which is not on this",
        ),
        ("import builtins; builtins.exec('VALUE = 2')", "late.py:1: exec() cannot be followed"),
        ("from runpy import run_path as go; go('mine.py')", "late.py:1: run_path() cannot"),
        (
            "import importlib; load = importlib.import_module",
            "late.py:1: import_module() of a name",
        ),
        ("open('/somewhere/prompt.txt')", "late.py:1: open('/somewhere/prompt.txt') cannot"),
        (
            "from pathlib import Path; Path('/x/prompt.txt').read_text()",
            "late.py:1: Path('/x/prompt.txt').read_text() cannot",
        ),
        ("import os; os.environ.get('ALPHA')", "late.py:1: os.environ.get() cannot be followed"),
        ("from os import environ; environ['ALPHA']", "late.py:1: os.environ cannot be followed"),
        ("import ctypes; ctypes.CDLL('k.so')", "late.py:1: ctypes.CDLL() cannot be followed"),
        ("import torch; torch.hub.load('a', 'b')", "late.py:1: torch.hub.load() cannot"),
        (
            "import importlib.metadata as m; m.entry_points()",
            "late.py:1: importlib.metadata.entry_points()",
        ),
        ("import subprocess; subprocess.run(['tool'])", "late.py:1: subprocess.run() cannot"),
        ("import pkgutil; pkgutil.get_data('a', 'b')", "late.py:1: pkgutil.get_data() cannot"),
    ],
)
def test_what_cannot_be_followed_is_said(project: Project, line: str, said: str) -> None:
    project.document()
    assert project.code.warnings == ()
    project.write("late.py", f"{line}\nVALUE = 1\n")
    project.document()
    (warning,) = project.code.warnings
    assert said in warning


@pytest.mark.parametrize(
    "line",
    [
        "def work(model, compile, eval=True):\n    model.eval()\n    return compile or eval",
        "import os; os.environ['OMP_NUM_THREADS'] = '1'",
        "import re; re.compile('a')",
        "from pathlib import Path; Path('/data/corpus')",
        "def work(context):\n    return (context.out / 'part').open()",
    ],
)
def test_what_reads_nothing_else_is_not_said(project: Project, line: str) -> None:
    project.write("late.py", f"{line}\nVALUE = 1\n")
    project.document()
    assert project.code.warnings == ()


@pytest.mark.parametrize(
    "line",
    [
        "from importlib import import_module as load; load('not_imported')",
        "import pkgutil; pkgutil.resolve_name('not_imported:Z')",
        "import pkgutil; pkgutil.resolve_name('not_imported.Z')",
        "import runpy; runpy.run_module('not_imported')",
        "from starred import *",
    ],
)
@pytest.mark.parametrize(
    "listing",
    [
        "__all__: list[str] = ['not_imported']",
        "__all__ = []\n__all__ += ['not_imported']",
        "__all__ = []\n__all__.extend(['not_imported'])",
    ],
)
def test_modules_of_constant_names_are_followed(project: Project, line: str, listing: str) -> None:
    edited = "not_imported.py"
    if "starred" in line:
        (project.root / "starred").mkdir()
        (project.root / "starred" / "__init__.py").write_text(f"{listing}\n")
        (project.root / edited).rename(project.root / "starred" / edited)
        edited = f"starred/{edited}"
    project.write("late.py", f"{line}\nVALUE = 1\n")
    before = project.document()
    assert project.code.warnings == ()
    (project.root / edited).write_text("Z = 2\n")
    assert project.document() != before


def test_docstrings_count_where_they_are_read(project: Project) -> None:
    text = "def ask():\n    'one'\n    return ask.__doc__\nVALUE = 1\n"
    project.write("late.py", text)
    before = project.document()
    project.write("late.py", text.replace("one", "another"))
    assert project.document() != before


def test_hidden_standard_module_is_refused(project: Project) -> None:
    (project.root / "queue.py").write_text("Z = 1\n")
    project.edit("late.py", "VALUE = 1", "import queue\nVALUE = 1")
    with pytest.raises(
        RecipeError, match=r"queue\.py: the standard library has a module queue too; .* rename"
    ):
        project.document()


def test_settings_and_inputs_are_named_with_both_values(project: Project) -> None:
    before = project.document(size=1)
    assert fingerprint.describe_changes(before, project.document(size=2)) == [
        "setting size: 1 -> 2"
    ]
    other = project.document(inputs={"data": "e" * 64})
    assert fingerprint.describe_changes(before, other) == [f"input data: {'d' * 12} -> {'e' * 12}"]
    known, planned = ({"config": {"dims": dims}} for dims in ([64], (64,)))
    assert fingerprint.describe_changes(known, planned) == []


def test_the_place_of_the_checkout_does_not_matter(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = project.document()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    sys.path.remove(str(project.root))
    for path in project.root.iterdir():
        path.rename(elsewhere / path.name)
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

    found = code.read_code(mine.JOB)
    assert any(name == "ratchet.models.search.top_k" for name in found.modules)
    assert any(name == "ratchet.data.negatives" for name in found.modules)
    assert not any(name.startswith("orchestrator.") for name in found.modules)
    assert {"numpy", "pyarrow", "python", "torch"} <= set(found.libraries)
    assert found.warnings == ()


def test_recipe_mutations_change_identities(tmp_path: Path) -> None:
    """A sample of the mutations that tests/soak/test_identity.py tries."""
    found = mutate_copy(tmp_path, "quickstart", "--sample", "60")
    assert found["count"]["constant"] > 10
    assert found["count"]["docstring"] > 1
    assert not found["wrong"]


def test_dynamic_library_names() -> None:
    """sentence-transformers adds a finder of its old names, whose modules have no file."""
    import sentence_transformers  # noqa: F401

    imports.find_module.cache_clear()
    try:
        assert imports.find_module("sentence_transformers.SentenceTransformer").kind == "installed"
        assert imports.find_module("sentence_transformers").kind == "installed"
    finally:
        imports.find_module.cache_clear()


def test_what_was_read_of_a_module_is_kept_between_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "CACHE", tmp_path / "cache")
    module = imports.find_module("ratchet.orchestrator.fingerprint")
    assert module.path is not None
    content = module.path.read_bytes()

    def read(content: bytes = content) -> Any:
        code._read_module.cache_clear()  # as in another process
        return code._read_module(module, content)

    read()
    (kept,) = (tmp_path / "cache").iterdir()
    parsed = code._parse_module(module, content)
    with monkeypatch.context() as patched:
        patched.setattr(code, "_parse_module", lambda *_: pytest.fail("parsed again"))
        found = read()
    assert (found.digest, tuple(found.warnings)) == (parsed.digest, parsed.warnings)
    assert [tuple(one) for one in found.imported] == [*parsed.imported]
    changed = read(content + b"\nNEW = 1\n")
    assert changed.digest != parsed.digest
    for damage in (b"", b'{"digest": "'):  # a power loss
        kept.write_bytes(damage)
        assert read() == parsed
    (tmp_path / "file").touch()
    monkeypatch.setattr(code, "CACHE", tmp_path / "file")  # as a folder that cannot be written
    assert read() == parsed
    code._read_module.cache_clear()


def test_only_libraries_that_decide_the_result_of_mining_count() -> None:
    from ratchet.jobs.retrieval import mine

    found = set(code.read_code(mine.JOB).libraries)
    assert found == {"python", "numpy", "pandas", "pyarrow", "torch"}
