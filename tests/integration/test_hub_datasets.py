"""Data sets of the hub, downloaded by the library `datasets` from a server that answers as the hub does."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("datasets")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILE = "data/train-00000-of-00001.parquet"


class Hub(http.server.BaseHTTPRequestHandler):
    """The hub's API for one data set, owner/toy, with one file."""

    protocol_version = "HTTP/1.1"
    content = b""
    requests: list[str]

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(self.path.partition("?")[0])
        self.requests.append(path)
        oid = hashlib.sha1(self.content).hexdigest()
        entry = {"type": "file", "path": FILE, "size": len(self.content), "oid": oid}
        if path.startswith("/api/datasets/owner/toy/tree/"):
            folder = {"type": "directory", "path": "data", "oid": "1" * 40}
            return self.send(200, json.dumps([entry] if path.endswith("/data") else [entry, folder]).encode())
        if path in {f"/api/datasets/owner/toy{end}" for end in ("", "/revision/main", f"/revision/{COMMIT}")}:
            siblings = [{"rfilename": FILE}]
            return self.send(200, json.dumps({"id": "owner/toy", "sha": COMMIT, "siblings": siblings}).encode())
        if path.startswith("/datasets/owner/toy/resolve/") and path.endswith(FILE):
            return self.send(200, self.content, {"ETag": f'"{oid}"', "X-Repo-Commit": COMMIT})
        code = "EntryNotFound" if path.startswith("/datasets/owner/toy/") else "RepoNotFound"
        return self.send(404, b"{}", {"X-Error-Code": code, "X-Repo-Commit": COMMIT})

    do_GET = do_HEAD = do_POST = answer

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    """The address of the server, and the paths that were asked for."""
    file = io.BytesIO()
    columns = {"question": [f"q {i}" for i in range(30)], "answer": [f"about {i}" for i in range(30)]}
    pq.write_table(pa.table(columns), file)
    requests: list[str] = []
    handler = type("Handler", (Hub,), {"content": file.getvalue(), "requests": requests})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", requests
    server.shutdown()


def plan(folder: Path, endpoint: str, data: str) -> subprocess.CompletedProcess[str]:
    """Plan in a process of its own: the libraries read their environment once."""
    env = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "0"}
    code = (
        "import sys; sys.path.insert(0, 'tests/support'); import read_data;"
        "from ratchet.orchestrator.cli.main import main; import shlex;"
        f"sys.exit(main([*shlex.split(read_data.COMMAND + 'retrieval'), '--set', 'data={data}',"
        f" '--store', {str(folder / 'store')!r}]))"
    )
    root = Path(__file__).resolve().parents[2]
    return subprocess.run([sys.executable, "-c", code], env=env, cwd=root, capture_output=True, text=True, timeout=120)


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
    assert "data: hf://owner/other: Couldn't find cache for owner/other; expected a data set with" in missing.stderr


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("hf://owner/none", "data: hf://owner/none: Dataset 'owner/none' doesn't exist on the Hub"),
        ("hf://owner/toy?split=dev", 'data: hf://owner/toy: Unknown split "dev"'),
    ],
)
def test_what_the_hub_does_not_have_is_named(hub: tuple[str, list[str]], tmp_path: Path, data: str, said: str) -> None:
    done = plan(tmp_path, hub[0], data)
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert "expected a data set with the split" in done.stderr
