"""The surroundings of a run: folders of temporary files, locales, proxies."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ratchet.errors import InputError, ModelError, StoreError
from ratchet.models.model_files import MINILM, resolve
from ratchet.orchestrator.execution import cluster
from ratchet.orchestrator.store import Store

LONG = "/scratch/of/the/shared/cluster/users/a-rather-long-user-name/jobs"


def test_ray_gets_a_short_folder_if_tmpdir_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr(cluster.tempfile, "gettempdir", lambda: LONG)
    assert cluster.choose_ray_folder() == "/tmp/ray"
    monkeypatch.setattr(cluster, "SYSTEM_TEMPORARY", "/nowhere")
    with pytest.raises(InputError, match=r"TMPDIR: .* expected at most 40, .*; set RAY_TMPDIR to a shorter path"):
        cluster.choose_ray_folder()
    monkeypatch.setenv("RAY_TMPDIR", "/var/tmp")
    assert cluster.choose_ray_folder() is None
    monkeypatch.setenv("RAY_TMPDIR", LONG)
    with pytest.raises(InputError, match="RAY_TMPDIR: "):
        cluster.choose_ray_folder()


def test_an_unusable_folder_of_ray_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("/proc/r", "/etc/passwd"):
        monkeypatch.setenv("RAY_TMPDIR", folder)
        with pytest.raises(InputError, match=r"RAY_TMPDIR: .* given \(.*\); expected a folder that can be written"):
            cluster.choose_ray_folder()


def test_the_path_of_a_store_has_a_limit(tmp_path: Path) -> None:
    assert Store.open(tmp_path / "ü ö" / ("x" * 200)).root.is_dir()
    with pytest.raises(StoreError, match=r"a path of 4,0\d\d bytes given; expected at most 3,000"):
        Store.open("/tmp/" + "/".join(["x" * 200] * 20))


@pytest.mark.parametrize("variable", ["TMPDIR", "RAY_TMPDIR", "RATCHET_STORE"])
def test_a_locale_that_cannot_write_a_folder_of_the_environment_is_named(variable: str, tmp_path: Path) -> None:
    (tmp_path / "ü").mkdir()
    environment = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    environment[variable] = str(tmp_path / "ü")
    command = [sys.executable, "-m", "ratchet.orchestrator", "plan", "quickstart"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot write this path" in done.stderr, done.stderr


@pytest.mark.parametrize("utf8", ["0", "1"])
def test_a_locale_that_cannot_write_a_path_is_named(utf8: str, tmp_path: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": utf8}
    command = [sys.executable, "-m", "ratchet.orchestrator", "plan", "retriever", "--set", "data=pärs.jsonl"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert ("set PYTHONUTF8=1" in done.stderr) == (utf8 == "0"), done.stderr


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Prüfung", "unknown; expected one of"),
        ("Prüfung.py", "cannot write this path"),
        ("./Prüfung", "cannot write this path"),
        ("Folder-ü", "cannot write this path"),
    ],
)
def test_a_name_of_a_recipe_is_no_path(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "Folder-ü").mkdir()
    environment = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "ratchet.orchestrator", "plan", name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr, done.stderr


class _Refusing(BaseHTTPRequestHandler):
    def do_CONNECT(self) -> None:
        self.send_error(403, "Forbidden by policy")

    def log_message(self, *args: object) -> None:
        pass


@pytest.mark.parametrize("kind", ["refuses", "socks"])
def test_a_proxy_that_refuses_counts_as_no_network(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, address)
    if kind == "socks":
        monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    from huggingface_hub.utils import close_session

    close_session()  # its client knows the proxies of its start
    try:
        assert resolve(MINILM).is_dir()
        with pytest.raises(ModelError, match="check the name, the network and its proxy"):
            resolve("someone/else")
    finally:
        close_session()
        server.shutdown()


@pytest.mark.slow
def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": "/proc/1"}
    environment.pop("RAY_AUTH_MODE", None)
    command = [sys.executable, "-m", "ratchet.orchestrator", "run", "jobs/prepare", "--store", str(tmp_path / "store")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "/proc/1/.ray: No such file or directory; expected a folder that can be written" in done.stderr
