"""The checks at the start of every worker: the run's code, the libraries, and the paths that it needs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import ratchet
from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import Context, Resources
from ratchet.orchestrator.job_interface.code import find_version
from ratchet.orchestrator.job_interface.job import RequiredCode
from ratchet.orchestrator.job_interface.snapshot import Snapshot, find_snapshot
from ratchet.orchestrator.job_interface.worker import check_worker, find_existing_paths

CHECK = """
import sys
from pathlib import Path
from ratchet.orchestrator.job_interface import Context, Resources
from ratchet.orchestrator.job_interface.job import RequiredCode
from ratchet.orchestrator.job_interface.worker import check_worker

context = Context("embed", "1", 1, Path(), Path(), Resources(), code=RequiredCode(sys.argv[1], {}))
check_worker(context, ())
"""


@pytest.fixture
def embed(tmp_path: Path) -> Context:
    return Context("embed", "1", 1, tmp_path, tmp_path, Resources())


def test_a_machine_must_see_what_the_driver_sees_and_no_more(
    tmp_path: Path, embed: Context
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    given = {"now": there, "later": (tmp_path / "later", None), "resources": Resources()}
    assert find_existing_paths(given, [there]) == (there, there)
    check_worker(embed, find_existing_paths(given))
    there.rmdir()
    with pytest.raises(InputError, match=r"step embed, machine [\d.]+: \S+/there does not exist"):
        check_worker(embed, [there])


def test_files_of_the_user_beside_the_code_are_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = Snapshot.take().files
    assert {
        "ratchet/orchestrator/reporting/page.css",
        "ratchet/recipes/published/gsm8k.yaml",
    } <= clean.keys()
    package = tmp_path / "checkout" / "ratchet"
    for name, content in {
        **clean,
        "ratchet/data/model.safetensors": b"w",
        "ratchet/models/rows.json": b"{}",
    }.items():
        (path := package.parent / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    monkeypatch.setattr(ratchet, "__file__", str(package / "__init__.py"))
    assert Snapshot.take().files == clean


@pytest.mark.slow
def test_a_worker_runs_the_snapshot_and_nothing_else(tmp_path: Path, embed: Context) -> None:
    snapshot = Snapshot.take()
    assert "ratchet/jobs/retrieval/embed.py" in snapshot.files
    assert not [name for name in snapshot.files if name.endswith((".pyc", ".nbi", ".nbc"))]
    snapshot.write(tmp_path)
    command = [sys.executable, "-c", CHECK, snapshot.digest]
    subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, check=True)
    assert find_snapshot() == ""
    with pytest.raises(
        InputError, match=r"ratchet is imported from \S+; expected the run's snapshot"
    ):
        check_worker(replace(embed, code=RequiredCode(snapshot.digest, {})), ())


def test_other_library_version_is_refused(embed: Context) -> None:
    installed = find_version("numpy")
    check_worker(replace(embed, code=RequiredCode(find_snapshot(), {"numpy": installed})), ())
    other = replace(embed, code=RequiredCode(find_snapshot(), {"numpy": "1.0.0"}))
    with pytest.raises(
        InputError, match=rf"numpy {installed} is installed; expected 1\.0\.0, as on the driver"
    ):
        check_worker(other, ())


def test_snapshot_has_imported_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "beside_snapshot").mkdir()
    (tmp_path / "beside_snapshot/inner.py").write_text("")
    (tmp_path / "large.bin").write_text("data")
    (tmp_path / "snapshot_recipe.py").write_text("import beside_snapshot.inner, torch\n")
    files = set(Snapshot.take(["snapshot_recipe"]).files)
    assert {"snapshot_recipe.py", "beside_snapshot/inner.py", "ratchet/errors.py"} <= files
    assert {name.split("/")[0] for name in files} == {
        "snapshot_recipe.py",
        "beside_snapshot",
        "ratchet",
    }


def test_worker_of_a_replaced_folder(
    embed: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another node on the same machine unpacks the snapshot anew."""
    (tmp_path / "snapshot").mkdir()
    monkeypatch.chdir(tmp_path / "snapshot")
    (tmp_path / "snapshot").rmdir()
    check_worker(embed, ())
    assert Path.cwd() == Path(ratchet.__file__).parents[1]
