"""`ratchet export --push`: the commit that a server with the hub's interface gets."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command
import pytest
from flask import Flask, request
from werkzeug.serving import make_server

from ratchet.models.model_files import MINILM

pytestmark = pytest.mark.soak

TOKEN = "hf_of-this-test"


class Hub:
    """Takes repositories and commits of small files, as https://huggingface.co does."""

    def __init__(self) -> None:
        self.repositories: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        app = Flask("hub")
        app.post("/api/repos/create")(self.create)
        app.post("/api/validate-yaml")(lambda: {"errors": [], "warnings": []})
        app.post("/api/models/<owner>/<name>/preupload/main")(self.preupload)
        app.post("/api/models/<owner>/<name>/commit/main")(self.commit)
        self.server = make_server("127.0.0.1", 0, app, threaded=True)
        self.url = f"http://127.0.0.1:{self.server.port}"

    def create(self) -> Any:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return {"error": "Invalid username or password."}, 401
        self.repositories.append(request.get_json())
        asked = self.repositories[-1]
        return {"url": f"{self.url}/{asked['organization']}/{asked['name']}"}

    def preupload(self, owner: str, name: str) -> Any:
        paths = [one["path"] for one in request.get_json()["files"]]
        return {
            "files": [
                {"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths
            ]
        }

    def commit(self, owner: str, name: str) -> Any:
        for line in request.get_data().splitlines():
            row = json.loads(line)
            if row["key"] == "file":
                self.files[row["value"]["path"]] = base64.b64decode(row["value"]["content"])
        return {
            "success": True,
            "commitOid": "0" * 40,
            "commitUrl": f"{self.url}/{owner}/{name}/commit/0",
        }


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("user") / "store")


def push(hub: Hub, store: str, target: Path, token: str, **environment: str) -> tuple[int, str]:
    words = ("export", MINILM, str(target), "--push", "me/mine", "--store", store)
    return command.run(
        *words, environment={"HF_ENDPOINT": hub.url, "HF_TOKEN": token, **environment}
    )


def test_the_exported_folder_is_the_commit(hub: Hub, store: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    status, output = push(hub, store, folder, TOKEN)
    assert status == 0, output
    assert f"pushed: {hub.url}/me/mine/commit/0" in output
    (repository,) = hub.repositories
    assert (repository["organization"], repository["name"], repository["visibility"]) == (
        "me",
        "mine",
        "private",
    )
    written = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert hub.files == written


@pytest.mark.parametrize("fault", ["another token", "not reachable", "offline"])
def test_a_failed_push_leaves_the_export(hub: Hub, store: str, tmp_path: Path, fault: str) -> None:
    if fault == "not reachable":
        hub.url = "http://127.0.0.1:9"
    offline = {"HF_HUB_OFFLINE": "1"} if fault == "offline" else {}
    status, output = push(hub, store, tmp_path / "model", "hf_another", **offline)
    assert status == 2, output
    assert "export --push me/mine: " in output
    assert (tmp_path / "model" / "config.json").exists()
    assert not hub.files
