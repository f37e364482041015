"""`ratchet submit` against a real cluster's Jobs API, with a token, over a connection that breaks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from nodes import Nodes, environment_of, free_port

from ratchet.errors import InputError
from ratchet.orchestrator.execution.submit import collect_upload
from ratchet.orchestrator.job_interface.snapshot import DIGEST_FILE, Snapshot
from ratchet.orchestrator.secrets import is_secret_variable

ROOT = Path(__file__).resolve().parents[3]

RECIPE = '''
import os, time
from dataclasses import dataclass
from pathlib import Path
from ratchet.orchestrator.job_interface import Job, Result
from ratchet.orchestrator.step import Row, Summary, step
import beside

@dataclass(frozen=True)
class Config:
    seconds: float = 0.0
    fault: bool = False
    metric: str = "value"

@dataclass(frozen=True)
class Inputs:
    pass

def run(context, config, inputs):
    time.sleep(config.seconds)
    if config.fault:
        raise ValueError("seven is not a colour")
    (context.out / "found.txt").write_text(os.environ.get("GREETING", "none"))
    return Result({"value": beside.VALUE, "valid/value": config.seconds})

JOB = Job("fit", version=1, config=Config, inputs=Inputs, run=run)

def toy() -> Summary:
    """A step."""
    return Summary([Row("fit", {"value": step("fit", JOB).metric("value")})])
'''


class Proxy:
    """Hands on connections to a port, until they are cut."""

    def __init__(self, target: int) -> None:
        self.target, self.pairs = target, list[socket.socket]()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.server.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            self.pairs += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65_536):
                other.sendall(data)
        except OSError:
            pass
        finally:
            for end in (one, other):
                end.close()

    def cut(self) -> None:
        for end in self.pairs:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.pairs.clear()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, dict[str, str]]]:
    """(the dashboard's port, the environment to reach it) of a head node of its own, which asks for a token."""
    home = tmp_path_factory.mktemp("home")
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("a" * 64)
    environment = environment_of(home, RAY_AUTH_MODE="token", PYTHONPATH="")
    dashboard = free_port()
    nodes = Nodes(home, environment, f"--dashboard-port={dashboard}", "--num-cpus=2")
    try:
        until = time.monotonic() + 90
        while time.monotonic() < until:
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", dashboard)) == 0:
                    break
            time.sleep(0.5)
        yield dashboard, environment
    finally:
        nodes.end()


def command(
    cluster: tuple[int, dict[str, str]], folder: Path, *more: str, port: int | None = None
) -> list[str]:
    (folder / "toy.py").write_text(RECIPE)
    (folder / "beside.py").write_text("VALUE = 42\n")
    address = f"http://127.0.0.1:{port or cluster[0]}"
    start = [sys.executable, "-m", "orchestrator", "submit", str(folder / "toy.py")]
    return [*start, "--store", str(folder / "store"), "--address", address, *more]


def submit(
    cluster: tuple[int, dict[str, str]], folder: Path, *more: str, **changes: str
) -> tuple[int, str]:
    environment = cluster[1] | changes
    done = subprocess.run(
        command(cluster, folder, *more),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_run_is_followed_to_its_end_and_its_status_is_ours(
    cluster: tuple[int, dict[str, str]], tmp_path: Path
) -> None:
    """Takes half a minute or more: the first job of a cluster, which starts its own driver."""
    status, shown = submit(cluster, tmp_path, "--env", "GREETING", GREETING="good morning")
    assert status == 0, shown
    assert "orchestrator" in shown
    assert "kB" in shown
    assert "42" in shown, "the job's own table"
    assert "succeeded" in shown
    assert "good morning" not in shown
    assert [path.read_text() for path in tmp_path.glob("store/objects/*/found.txt")] == [
        "good morning"
    ]
    status, shown = submit(cluster, tmp_path, "--env", "GREETING", GREETING="good morning")
    assert status == 0, shown
    assert "-2: started" in shown, "a job that ended is not followed again"
    assert "1 reused" in shown

    status, shown = submit(cluster, tmp_path, "--set", "fit.fault=true", "--set", "fit.retries=0")
    assert status == 1, shown
    assert "seven is not a colour" in shown
    assert "failed with exit status 1" in shown
    status, shown = submit(cluster, tmp_path, "--set", "fit.colour=7")
    assert status == 2, "bad input, as of `ratchet run`"
    assert "colour" in shown


@pytest.mark.soak
def test_submit_joins_again(cluster: tuple[int, dict[str, str]], tmp_path: Path) -> None:
    """Takes half a minute: a job is followed by three commands, one of which loses its connection."""
    slow = ("--set", "fit.seconds=20")
    status, shown = submit(cluster, tmp_path, *slow, "--no-wait")
    assert status == 0, shown
    assert "started" in shown
    proxy = Proxy(cluster[0])
    joined = subprocess.Popen(
        command(cluster, tmp_path, *slow, port=proxy.port),
        cwd=ROOT,
        env=cluster[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    time.sleep(12)
    proxy.cut()
    shown, _ = joined.communicate(timeout=120)
    assert joined.returncode == 1, shown
    assert "is running already" in shown
    assert "connection lost" in shown
    status, shown = submit(cluster, tmp_path, *slow)
    assert status == 0, shown
    assert shown.count("finished  1/1 steps") == 1


@pytest.mark.soak
def test_a_sweep_runs_as_a_job_of_rays_own_command(
    cluster: tuple[int, dict[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "toy.py").write_text(
        RECIPE.replace("beside.VALUE", "42").replace("import beside\n", "")
    )
    (tmp_path / "space.yaml").write_text("fit.seconds: choice(0.1, 0.2, 0.3)\n")
    collect_upload(Snapshot.take(), [tmp_path / "toy.py", tmp_path / "space.yaml"]).write(
        tmp_path / "job"
    )
    (
        tmp_path / "job" / DIGEST_FILE
    ).unlink()  # the folder of somebody who does not know of snapshots
    sweep = [
        "python",
        "-m",
        "ratchet.orchestrator",
        "sweep",
        "./toy.py",
        "--space",
        "space.yaml",
        "--metric",
        "value",
    ]
    asked = [*sweep, "--trials", "3", "--store", str(tmp_path / "store")]
    ray = [
        Path(sys.executable).parent / "ray",
        "job",
        "submit",
        "--address",
        f"http://127.0.0.1:{cluster[0]}",
    ]
    done = subprocess.run(
        [*ray, "--working-dir", str(tmp_path / "job"), "--", *asked],
        env=cluster[1],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "winner: ratchet run" in done.stdout
    assert list(tmp_path.glob("store/sweeps/*/report.html"))


def test_what_cannot_be_uploaded_is_refused(
    cluster: tuple[int, dict[str, str]], tmp_path: Path
) -> None:
    settings = tmp_path / "cluster.yaml"
    settings.write_text("embed.workers: 4  # hf_" + "a" * 34)
    status, shown = submit(cluster, tmp_path, "--settings", str(settings))
    assert status == 2
    assert "looks like a secret" in shown
    assert str(settings) in shown
    status, shown = submit(cluster, tmp_path, "--env", "NOT_THERE")
    assert status == 2
    assert "NOT_THERE: not set" in shown
    for name, value in (("HF_TOKEN", "mine"), ("GREETING", "hf_" + "a" * 34)):
        status, shown = submit(cluster, tmp_path, "--env", name, **{name: value})
        assert status == 2
        assert f"--env {name}: looks like a secret" in shown
        assert value not in shown
    (tmp_path / "server.pem").write_text("x")
    with pytest.raises(InputError, match=r"server\.pem: looks like a secret"):
        collect_upload(Snapshot({}), [tmp_path / "server.pem"])
    with pytest.raises(InputError, match="no such file"):
        collect_upload(Snapshot({}), [tmp_path / "missing.py"])


def test_variables_are_told_by_their_names() -> None:
    secret = (
        "HF_TOKEN WANDB_API_KEY AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID"
        " AZURE_STORAGE_ACCOUNT_KEY TOKEN DB_PASSWORD"
    )
    plain = "HF_HOME HF_TOKEN_PATH TOKENIZERS_PARALLELISM NETRC GOOGLE_APPLICATION_CREDENTIALS AWS_REGION KEYBOARD"
    assert all(is_secret_variable(name) for name in secret.split())
    assert not any(is_secret_variable(name) for name in plain.split())


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    status, shown = submit((free_port(), environment), tmp_path)
    assert status == 2
    assert "expected the address of a cluster's dashboard" in shown
