"""Machines that share no folder, with a store in a bucket: work in progress goes through the bucket."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command
import pytest
from command import sets
from node_runs import ONE, SPREAD, TRAINED, run_undisturbed, working
from nodes import Nodes, environment_of, kill
from s3_server import KEYS, serve_s3
from store_contents import results
from waiting import wait_for

from ratchet.models.model_files import MINILM, resolve
from ratchet.orchestrator.store import Store

pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0,
        reason="a folder cannot be hidden from a process here",
    ),
]

URL = "s3://kept/team"


class Machines:
    """The driver's machine, and two others, on which the folder `private` is empty. All see the bucket."""

    def __init__(self, home: Path, port: int) -> None:
        self.private = home / "private"
        self.private.mkdir()
        bucket = {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true"}
        self.environment = bucket | {"RATCHET_CACHE": str(self.private / "cache")}
        environment = environment_of(home, RAY_worker_niceness="0", **self.environment)
        self.nodes = Nodes(home, environment, "--num-cpus=0", "--include-dashboard=false")
        self.others = [self.add(), self.add()]

    def add(self) -> subprocess.Popen[bytes]:
        return self.nodes.add(without=self.private)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        options = ("--store", URL, "--address", self.nodes.address)
        log = (self.private / f"driver-{time.monotonic_ns()}.log").open("w")
        return command.start(*arguments, *options, environment=self.nodes.environment, output=log)

    def wait(self, run: subprocess.Popen[str]) -> None:
        try:
            run.wait(900)
        finally:
            kill(run)
        said = "".join(log.read_text() for log in sorted(self.private.glob("driver-*.log")))
        assert run.returncode == 0, said[-6000:]


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    with serve_s3() as port:
        made = Machines(tmp_path, port)
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        try:
            yield made
        finally:
            made.nodes.end()


def test_a_run_on_machines_without_a_common_folder(machines: Machines, tmp_path: Path) -> None:
    """Takes minutes: embedding, mining and training on both machines, one of which is lost in the training."""
    base = machines.private / "base"
    shutil.copytree(resolve(MINILM), base)
    settings = sets("finetune_embedder.epochs=3", f"base={base}")
    run = machines.start(*ONE, *SPREAD, *settings, *sets("finetune_embedder.save_steps=1"))
    store = Store.open(URL)
    wait_for(lambda: find_checkpoints(store), "no checkpoint was made", 600)
    kill(machines.others.pop())
    machines.others.append(machines.add())
    wait_for(lambda: any(map(has_resumed, find_checkpoints(store))), "it did not go on", 200)
    machines.wait(run)
    undisturbed = results(run_undisturbed(tmp_path / "store", *settings))
    found = results(URL)
    assert found.keys() == undisturbed.keys()
    for name, commit in undisturbed.items():
        if not name.startswith(TRAINED):
            assert found[name].manifest == commit.manifest, name
    assert not find_checkpoints(store)
    assert not any(working(node) for node in machines.others)


def find_checkpoints(store: Store) -> list[dict[str, Any]]:
    """Return the histories in the complete checkpoints in the bucket."""
    found = []
    for step in store.list_names("steps"):
        for run in store.list_names(f"steps/{step}/work/train"):
            folder = f"steps/{step}/work/train/{run}"
            for name in store.list_names(folder):
                if store.read(f"{folder}/{name}/DIGESTS.json"):
                    found.append(store.read(f"{folder}/{name}/history.json"))
    return found


def has_resumed(history: dict[str, Any]) -> bool:
    return bool(history["resumed"])
