"""Data sets of the hub, downloaded by the library `datasets` from a server that answers as the hub does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hub_server import COMMIT, serve_hub

pytest.importorskip("datasets")
FILE = "data/train-00000-of-00001.parquet"


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    """The address of the server, and the paths that were asked for."""
    columns = {
        "question": [f"q {i}" for i in range(30)],
        "answer": [f"about {i}" for i in range(30)],
    }
    with serve_hub("owner/toy", FILE, pa.table(columns)) as found:
        yield found


def plan(folder: Path, endpoint: str, data: str) -> subprocess.CompletedProcess[str]:
    """Plan in a process of its own: the libraries read their environment once."""
    env = os.environ | {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "0",
    }
    code = (
        "import sys; sys.path.insert(0, 'tests/support/commands'); import read_data;"
        "from ratchet.orchestrator.cli.main import main; import shlex;"
        f"sys.exit(main([*shlex.split(read_data.COMMAND + 'retrieval'), '--set', 'data={data}',"
        f" '--store', {str(folder / 'store')!r}]))"
    )
    root = Path(__file__).resolve().parents[2]
    return subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=root, capture_output=True, text=True, timeout=120
    )


def test_a_data_set_is_downloaded_once(hub: tuple[str, list[str]], tmp_path: Path) -> None:
    endpoint, requests = hub
    done = plan(tmp_path, endpoint, "hf://owner/toy")
    assert done.returncode == 0, done.stderr
    assert any(path.endswith(FILE) for path in requests)
    (file,) = (tmp_path / "home/datasets").rglob("*.arrow")
    assert file.parent.name == COMMIT
    requests.clear()
    again = plan(tmp_path, endpoint, "hf://owner/toy")
    assert again.returncode == 0
    assert again.stdout == done.stdout, "the same fingerprint"
    assert not requests
    without = plan(tmp_path, "http://127.0.0.1:9", f"hf://owner/toy?revision={COMMIT}")
    assert without.stdout == done.stdout, without.stderr
    missing = plan(tmp_path, "http://127.0.0.1:9", "hf://owner/other")
    assert missing.returncode == 2
    assert (
        "data: hf://owner/other: Couldn't find cache for owner/other; expected a data set with"
        in missing.stderr
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("hf://owner/none", "data: hf://owner/none: Dataset 'owner/none' doesn't exist on the Hub"),
        ("hf://owner/toy?split=dev", 'data: hf://owner/toy: Unknown split "dev"'),
    ],
)
def test_what_the_hub_does_not_have_is_named(
    hub: tuple[str, list[str]], tmp_path: Path, data: str, said: str
) -> None:
    done = plan(tmp_path, hub[0], data)
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert "expected a data set with the split" in done.stderr
