"""Processes of steps that use a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STEPS = """
import functools, os, sys, threading
from dataclasses import dataclass
from pathlib import Path
import ray
from ratchet.orchestrator.execution.cluster import Cluster
from ratchet.orchestrator.job_interface import Context, Job, Resources, Result
from ratchet.orchestrator.execution.needs import count_cpus
from ratchet.orchestrator.store import Store

ray.init = functools.partial(ray.init, num_gpus=int(sys.argv[1]))

@dataclass(frozen=True)
class Config: ...

@dataclass(frozen=True)
class Inputs: ...

def run(*given):
    return Result({"process": os.getpid()})

run.__module__ = sys.argv[3]
job = Job("where", Config, Inputs, run)
cluster = Cluster()
cluster.start()
place = Path(sys.argv[2])
store = Store.open(place / "store")
for number, gpus in enumerate((1.0, 0.0, 1.0, 0.0)):
    out = place / str(number)
    context = Context("step", "0" * 64, 1, out, place, Resources(1, cpus=float(count_cpus()), gpus=gpus))
    made = cluster.run(job, {}, context, Config(), Inputs(), store, threading.Event())
    print(made.result["metrics"]["process"])
"""


def list_processes(gpus: int, folder: Path, module: str) -> list[str]:
    """Run four steps, of which the first and the third use a GPU. Return their processes."""
    command = [sys.executable, "-c", STEPS, str(gpus), str(folder), module]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.soak
@pytest.mark.parametrize("gpus", [1, 2])
def test_a_process_is_used_again_where_its_gpu_is_the_only_one(gpus: int, tmp_path: Path) -> None:
    processes = list_processes(gpus, tmp_path, "ratchet.where")
    assert len(set(processes[::2])) == gpus
    assert len(set(processes[1::2])) == 1


@pytest.mark.slow
def test_the_process_of_a_users_job_ends_with_it(tmp_path: Path) -> None:
    """What the job changes there, such as the defaults of torch, would change the next step."""
    assert len(set(list_processes(1, tmp_path, "mine"))) == 4


MAPS = """
import os, sys
from pathlib import Path
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ratchet.data.tables import write_table
from ratchet.jobs.distributed.shard_map import map_shards
from ratchet.orchestrator.job_interface import Context, Resources

class Worker:
    def __call__(self, piece, target, report):
        write_table(target, pa.table({"process": [os.getpid()]}))
        return {"rows": 1}

ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
place = Path(sys.argv[1])
shards = [place / f"{number}.parquet" for number in range(4)]
for shard in shards:
    write_table(shard, pa.table({"x": [1]}))
for name in ("one", "two"):
    out, work = place / name, place / f"{name}-work"
    out.mkdir()
    work.mkdir()
    context = Context("step", "0" * 64, 1, out, work, Resources(2, cpus=1.0, gpus=1.0))
    map_shards(context, shards, Worker, {}, out)
    print(*{pq.read_table(path)["process"][0] for path in out.iterdir()})
"""


@pytest.mark.soak
def test_a_process_of_a_map_with_a_gpu_is_not_used_again(tmp_path: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MAPS, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    one, two = (set(line.split()) for line in done.stdout.splitlines())
    assert one
    assert not one & two


PIECES = """
import sys, time
from pathlib import Path
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ratchet.data.tables import write_table
from ratchet.jobs.distributed.shard_map import map_shards
from ratchet.orchestrator.job_interface import Context, Resources

class Worker:
    def __init__(self, place):
        self.place = place

    def __call__(self, piece, target, report):
        (self.place / f"gpu-{ray.get_gpu_ids()[0]}").touch()
        end = time.monotonic() + 200
        while len(list(self.place.glob("gpu-*"))) < 8 and time.monotonic() < end:
            time.sleep(0.1)
        write_table(target, piece.take(pq.read_table(piece.source)))
        return {"rows": piece.rows}

ray.init(address="local", num_cpus=9, num_gpus=8, include_dashboard=False, log_to_driver=False)
place = Path(sys.argv[1])
shard = place / "shard-00000.parquet"
write_table(shard, pa.table({"x": list(range(1000))}))
for name in ("out", "work"):
    (place / name).mkdir()
context = Context(
    "step", "0" * 64, 1, place / "out", place / "work", Resources(8, cpus=1.0, gpus=1.0)
)
map_shards(context, [shard], Worker, {"place": place}, place / "out")
assert pq.read_table(place / "out" / shard.name) == pq.read_table(shard)
print(*sorted(path.name for path in place.glob("gpu-*")))
"""


@pytest.mark.soak
def test_eight_gpus_share_a_thousand_rows(tmp_path: Path) -> None:
    """Takes half a minute: eight processes start on pretended GPUs."""
    done = subprocess.run(
        [sys.executable, "-c", PIECES, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"gpu-{number}" for number in range(8)]
