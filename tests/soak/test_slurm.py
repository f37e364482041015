"""`slurm.sbatch` on a Slurm of two nodes on this machine. Needs Slurm and MUNGE (Debian: slurm-wlm), as root."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes import free_port
from toy_runs import Toy
from waiting import wait_for

SCRIPT = Path(__file__).resolve().parents[2] / "slurm.sbatch"

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmctldPort={ports[0]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
KillWait=20
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1
PartitionName=all Nodes=n1,n2 Default=YES
"""

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not all(map(shutil.which, ("sbatch", "slurmctld", "slurmd", "munged"))),
        reason="without Slurm",
    ),
]


@pytest.fixture(scope="module")
def slurm() -> Iterator[None]:
    """Start the daemons of two nodes with one CPU each."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)  # MUNGE refuses others
    (folder / "state").mkdir()
    key, socket = folder / "key", folder / "munge.sock"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    config = folder / "slurm.conf"
    host = os.uname().nodename.partition(".")[0]
    config.write_text(
        CONFIG.format(host=host, folder=folder, ports=[free_port() for _ in range(3)])
    )
    names = {
        "key-file": key,
        "socket": socket,
        "pid-file": folder / "munged.pid",
        "seed-file": folder / "seed",
    }
    options = [f"--{name}={path}" for name, path in names.items()]
    subprocess.run(["munged", "--force", *options, f"--log-file={folder}/munged.log"], check=True)
    os.environ["SLURM_CONF"] = str(config)
    try:
        for command in (["slurmctld"], ["slurmd", "-N", "n1"], ["slurmd", "-N", "n2"]):
            subprocess.run([*command, "-f", str(config)], check=True)
        wait_for(
            lambda: "2 idle" in tell("sinfo", "--noheader", "--format=%D %t"),
            "the nodes are not idle",
            60,
        )
        yield
    finally:
        del os.environ["SLURM_CONF"]
        for path in folder.glob("*.pid"):
            os.kill(int(path.read_text()), signal.SIGTERM)
        shutil.rmtree(folder, ignore_errors=True)


def tell(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Job:
    """The toy recipe as a job of Slurm, in a folder with an environment."""

    def __init__(self, folder: Path) -> None:
        self.toy, self.folder, self.id = Toy(folder), folder, ""
        (folder / ".venv").symlink_to(sys.prefix)

    def submit(self, *options: str, seconds: float) -> None:
        run = (
            "run",
            str(self.toy.path),
            "--store",
            str(self.toy.store),
            "--set",
            f"seconds={seconds}",
        )
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.id = subprocess.run(
            ["sbatch", "--parsable", *options, str(SCRIPT), *run],
            cwd=self.folder,
            env=kept | {"HOME": str(self.folder)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    def find(self, name: str) -> str:
        """Return a field of the job, such as JobState."""
        found = re.search(rf"\b{name}=(\S+)", tell("scontrol", "show", "job", self.id))
        assert found
        return found[1]

    def wait(self, *states: str) -> str:
        """Wait for one of the states, and return the log."""
        wait_for(lambda: self.find("JobState") in states, f"it is not {states}:\n{self.log}", 600)
        return self.log

    @property
    def log(self) -> str:
        path = self.folder / f"slurm-{self.id}.out"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def job(slurm: None, tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    subprocess.run(["scancel", "--quiet", job.id], check=False)


def count_repeated(job: Job) -> int:
    """Return how many of the toy's shards were done more than once."""
    shards = [line for line in job.toy.done() if line.startswith("shard")]
    assert len(set(shards)) == 4 * 8 + 1
    return len(shards) - len(set(shards))


def test_a_cancelled_job_is_continued_by_the_same_command(job: Job) -> None:
    job.submit(seconds=1)
    wait_for(lambda: "shard b 1" in job.toy.done(), f"it does not run:\n{job.log}")
    tell("scancel", job.id)
    job.wait("CANCELLED")
    job.submit(seconds=1)
    log = job.wait("COMPLETED", "FAILED")
    assert job.find("JobState") == "COMPLETED", log
    assert re.search(r"^chain ", log, re.MULTILINE)
    assert count_repeated(job) <= 2, "more than the shards that were running"


@pytest.mark.parametrize("limit", [True, False])
def test_a_job_that_slurm_takes_back_continues(job: Job, limit: bool) -> None:
    """limit: at the time limit, which the script notices; else requeued from outside, as a preempted job is."""
    job.submit(*(["--time=3", "--signal=B:USR1@60"] if limit else []), seconds=5)
    wait_for(lambda: "shard a 1" in job.toy.done(), f"it does not run:\n{job.log}")
    if not limit:
        tell("scontrol", "requeue", job.id)
    job.wait("PENDING")
    log = job.wait("COMPLETED", "FAILED", "TIMEOUT")
    assert (job.find("JobState"), job.find("Restarts")) == ("COMPLETED", "1"), log
    assert re.search(r"^chain ", log, re.MULTILINE)
    assert count_repeated(job) <= 2, "more than the shards that were running"
