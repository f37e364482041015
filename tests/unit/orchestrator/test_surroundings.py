"""The surroundings of a run: folders of temporary files, locales, proxies."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ratchet.errors import ModelError
from ratchet.models.model_files import MINILM, resolve
from ratchet.orchestrator.execution import cluster

LONG = "/scratch/of/the/shared/cluster/users/a-rather-long-user-name/jobs"


def test_ray_gets_a_short_folder_if_tmpdir_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr(cluster.tempfile, "gettempdir", lambda: LONG)
    assert cluster.choose_ray_folder() == "/tmp/ray"
    monkeypatch.setenv("RAY_TMPDIR", "/var/tmp")
    assert cluster.choose_ray_folder() is None


class _Refusing(BaseHTTPRequestHandler):
    def do_CONNECT(self) -> None:
        self.send_error(403, "Forbidden by policy")

    def log_message(self, *args: object) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["refuses", "socks"])
def test_a_proxy_that_refuses_counts_as_no_network(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
