"""Maps over shards on a real Ray, with real processes: killed workers, damaged files, and failing work."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.data.tables import write_table
from ratchet.errors import InputError, JobError
from ratchet.jobs.distributed.piece_runner import ReportProgress
from ratchet.jobs.distributed.pieces import Piece, count_rows
from ratchet.jobs.distributed.shard_map import ModelMap, map_model, map_shards
from ratchet.orchestrator.job_interface import Context, Progress

ROOT = Path(__file__).resolve().parents[3]
MakeContext = Callable[..., Context]

pytestmark = pytest.mark.usefixtures("by_value")


@pytest.fixture(scope="module")
def by_value(local_ray: None) -> None:
    """Workers cannot import this file by the name that pytest gives it."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(params=[2, 1], ids=["actors", "this process"])
def either_context(request: pytest.FixtureRequest, context: MakeContext) -> MakeContext:
    """The context of a step with two workers, which are actors, or with one, which is this process."""
    return partial(context, workers=request.param, cpus=1.0)


class Square:
    """Squares a column; leaves a trace, and misbehaves on the piece it is told to."""

    def __init__(
        self,
        trace: Path,
        fault: str = "",
        at: str = "shard-00001",
        seconds: float = 0.0,
        workers: int = 1,
    ) -> None:
        self.trace, self.fault, self.at, self.seconds, self.workers = (
            trace,
            fault,
            at,
            seconds,
            workers,
        )
        if fault == "constructor":
            raise InputError("model /m: no config.json; expected a model folder; check the path")

    def __call__(self, piece: Piece, target: Path, tell: ReportProgress) -> dict[str, int]:
        name = piece.source.stem
        if piece.first:
            name += f"+{piece.first}"
        with self.trace.open("a") as file:
            file.write(f"{name} {os.getpid()}\n")
        end = time.monotonic() + 200
        while len({line.split()[1] for line in self.trace.read_text().splitlines()}) < self.workers:
            assert time.monotonic() < end, "the other workers did not start"
            time.sleep(0.05)
        x = piece.take(pq.read_table(piece.source))["x"].to_pylist()
        for row in range(len(x)):
            tell(row + 1, 10 * (row + 1))
            time.sleep(self.seconds)
        if name == self.at:
            self.misbehave(target)
        write_table(target, pa.table({"y": [value * value for value in x]}))
        return {"rows": len(x), "tokens": 10 * len(x)}

    def misbehave(self, target: Path) -> None:
        flag = self.trace.with_name("once")
        if self.fault == "killed" or (self.fault == "killed once" and not flag.exists()):
            flag.write_text("")
            target.write_bytes(b"half a fi")
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "bad":
            try:
                {}["x"]
            except KeyError as error:
                raise InputError(
                    "train.csv:7: no answer; expected A to D; mend the line"
                ) from error
        if self.fault == "full":
            target.write_bytes(b"what fitted")
            with open("/dev/full", "wb", buffering=0) as device:
                try:
                    device.write(b"x")
                except OSError as error:
                    raise OSError(error.errno, error.strerror) from None
        if self.fault == "strange":
            raise Strange("cannot", "travel")


class Strange(Exception):
    """Pickles, but does not unpickle."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


class Listening:
    """Progress as it would arrive at the screen."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, progress: Progress) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([progress.done, progress.total, dict(progress.numbers)]) + "\n")


def inputs(folder: Path, shards: int = 3, rows: int = 5) -> list[Path]:
    paths = [folder / "in" / f"shard-{number:05d}.parquet" for number in range(shards)]
    for number, path in enumerate(paths):
        write_table(path, pa.table({"x": list(range(number * rows, (number + 1) * rows))}))
    return paths


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def traced(trace: Path) -> list[str]:
    return [line.split()[0] for line in trace.read_text().splitlines()] if trace.exists() else []


def test_shards_keep_names_and_counts_add(tmp_path: Path, context: MakeContext) -> None:
    shards, ctx = inputs(tmp_path), context()
    counts = map_shards(ctx, shards, Square, {"trace": tmp_path / "trace"}, ctx.out)
    assert counts == {"rows": 15, "tokens": 150}
    assert sorted(contents(ctx.out)) == [path.name for path in shards]
    squares = [
        y for path in sorted(ctx.out.iterdir()) for y in pq.read_table(path)["y"].to_pylist()
    ]
    assert squares == [x * x for x in range(15)]


def test_map_inside_a_full_cluster(tmp_path: Path, context: MakeContext) -> None:
    import ray

    shards, ctx = inputs(tmp_path), context(workers=2, cpus=1.0)

    def step() -> dict[str, int]:
        return map_shards(ctx, shards, Square, {"trace": tmp_path / "trace"}, ctx.out)

    assert ray.get(ray.remote(num_cpus=0)(step).remote(), timeout=60) == {"rows": 15, "tokens": 150}


def test_two_workers_share_the_shards_and_give_the_same_bytes(
    tmp_path: Path, context: MakeContext
) -> None:
    shards, one, two = (
        inputs(tmp_path, 4),
        context(name="one"),
        context(name="two", workers=2, cpus=1.0),
    )
    map_shards(one, shards, Square, {"trace": tmp_path / "trace-1"}, one.out)
    map_shards(two, shards, Square, {"trace": tmp_path / "trace-2", "workers": 2}, two.out)
    assert contents(one.out) == contents(two.out)
    assert len({line.split()[1] for line in (tmp_path / "trace-2").read_text().splitlines()}) == 2


def test_workers_share_the_pieces_of_one_shard(tmp_path: Path, context: MakeContext) -> None:
    shards, made = inputs(tmp_path, 1, rows=300), {}
    for workers in (1, 2):
        ctx = context(name=f"with-{workers}", workers=workers, cpus=1.0)
        trace = tmp_path / f"trace-{workers}"
        arguments = {"trace": trace, "workers": workers}
        counts = map_shards(ctx, shards, Square, arguments, ctx.out, total_rows=300)
        assert counts == {"rows": 300, "tokens": 3000}
        names = ["shard-00000", *(f"shard-00000+{first}" for first in range(64, 300, 64))]
        assert sorted(traced(trace)) == sorted(names)
        made[workers] = contents(ctx.out)
        assert not list(ctx.work.glob("shards/*.pieces")), "removed when their shard is finished"
    assert made[1] == made[2]
    rows = pq.read_table(ctx.out / shards[0].name)["y"].to_pylist()
    assert rows == [x * x for x in range(300)]


def test_finished_pieces_survive(tmp_path: Path, either_context: MakeContext) -> None:
    shards, ctx, trace = inputs(tmp_path, 1, rows=200), either_context(), tmp_path / "trace"
    arguments = {"trace": trace, "fault": "bad", "at": "shard-00000+128"}
    with pytest.raises(InputError):
        map_shards(ctx, shards, Square, arguments, ctx.out)
    again = either_context(attempt=2)
    assert map_shards(again, shards, Square, {"trace": trace}, again.out)["rows"] == 200
    done = [name for name in traced(trace) if name != "shard-00000+128"]
    assert len(done) == len(set(done)), "a finished piece was done again"


class Model(Square):
    """Squares with a model. config: keyword arguments of Square."""

    def __init__(self, config: dict[str, Any], inputs: Path, device: str, batch_tokens: int):
        super().__init__(inputs, **config)


def describe(context: Context, config: dict[str, Any], trace: Path) -> ModelMap | None:
    if config.get("fault") == "nothing":
        return None
    if config.get("fault") == "unreadable":
        raise InputError("no shards")
    return ModelMap(inputs(trace.parent / context.step, 1, rows=100), Model, config, trace, 100)


def test_the_work_of_steps_that_load_the_same_is_done_together(
    tmp_path: Path, either_context: MakeContext
) -> None:
    others = {"good": {}, "bad": {"fault": "bad", "at": "shard-00000+64"}}
    others |= {name: {"fault": name} for name in ("nothing", "unreadable")}
    together = []
    for name, config in others.items():
        waiting = replace(either_context(attempt=0, name=name), step=name)
        together.append((waiting, config, tmp_path / f"trace-{name}"))
    first = replace(either_context(name="first"), step="first", together=tuple(together))
    own = describe(first, {}, tmp_path / "trace-first")
    assert own is not None
    assert map_model(first, own, describe)["rows"] == 100
    assert sorted(traced(tmp_path / "trace-good")) == ["shard-00000", "shard-00000+64"]

    broken = {"fault": "constructor"}  # nothing is loaded again
    for name, config in (("good", broken), ("bad", {}), ("nothing", {})):
        ctx = replace(either_context(name=name), step=name)
        given = replace(describe(ctx, {}, tmp_path / f"trace-{name}"), config=config)  # type: ignore[type-var]
        assert map_model(ctx, given, describe)["rows"] == 100
        assert contents(ctx.out) == contents(first.out)
    assert traced(tmp_path / "trace-bad").count("shard-00000") == 1, "done once, by the first step"
    assert traced(tmp_path / "trace-bad").count("shard-00000+64") == 2


def test_a_worker_without_room_is_not_waited_for(tmp_path: Path, context: MakeContext) -> None:
    import ray

    shards, ctx = inputs(tmp_path), context(workers=2, cpus=1.0)
    other = ray.remote(num_cpus=1)(lambda: time.sleep(300)).remote()
    assert map_shards(ctx, shards, Square, {"trace": tmp_path / "trace"}, ctx.out)["rows"] == 15
    assert not ray.wait([other], timeout=0)[0], "the other task holds its CPU to the end"
    ray.cancel(other, force=True)


def test_a_worker_killed_in_a_shard_costs_that_shard_only(
    tmp_path: Path, context: MakeContext
) -> None:
    shards, calm = inputs(tmp_path), context(name="calm")
    killed = context(name="killed", workers=2, cpus=1.0)
    map_shards(calm, shards, Square, {"trace": tmp_path / "calm"}, calm.out)
    trace = tmp_path / "trace"
    map_shards(killed, shards, Square, {"trace": trace, "fault": "killed once"}, killed.out)
    assert contents(killed.out) == contents(calm.out)
    assert sorted(traced(trace)) == sorted([*(path.stem for path in shards), "shard-00001"])


def test_killed_step_repeats_its_shard(tmp_path: Path, context: MakeContext) -> None:
    import ray
    from ray.exceptions import WorkerCrashedError

    shards, trace = inputs(tmp_path), tmp_path / "trace"

    def step(attempt: int) -> dict[str, int]:
        ctx = context(attempt=attempt)
        work = ray.remote(num_cpus=2, max_retries=0)(map_shards)
        found: dict[str, int] = ray.get(
            work.remote(ctx, shards, Square, {"trace": trace, "fault": "killed once"}, ctx.out)
        )
        return found

    with pytest.raises(WorkerCrashedError):
        step(1)
    assert step(2) == {"rows": 15, "tokens": 150}
    assert sorted(traced(trace)) == sorted([*(path.stem for path in shards), "shard-00001"])


@pytest.mark.soak
def test_a_shard_that_kills_every_worker_is_named(tmp_path: Path, context: MakeContext) -> None:
    shards, trace = inputs(tmp_path), tmp_path / "trace"
    ctx = context(retries=1, workers=2, cpus=1.0)
    with pytest.raises(
        JobError, match=r"shard-00001\.parquet: its worker was lost 2 times.*more memory"
    ):
        map_shards(ctx, shards, Square, {"trace": trace, "fault": "killed"}, ctx.out)
    assert traced(trace).count("shard-00001") == 2


def test_what_a_worker_raises_arrives_as_it_was(
    tmp_path: Path, either_context: MakeContext
) -> None:
    shards, ctx, trace = inputs(tmp_path), either_context(), tmp_path / "trace"
    with pytest.raises(InputError) as caught:
        map_shards(ctx, shards, Square, {"trace": trace, "fault": "bad"}, ctx.out)
    assert type(caught.value) is InputError
    assert str(caught.value) == "train.csv:7: no answer; expected A to D; mend the line"
    assert "misbehave" in caught.value.remote_traceback  # type: ignore[attr-defined]
    assert traced(trace).count("shard-00001") == 1, "what is wrong is not tried again"


def test_errors_of_constructors_and_strange_ones_arrive(
    tmp_path: Path, context: MakeContext
) -> None:
    shards, ctx, trace = inputs(tmp_path), context(), tmp_path / "trace"
    with pytest.raises(InputError, match="no config"):
        map_shards(ctx, shards, Square, {"trace": trace, "fault": "constructor"}, ctx.out)
    with pytest.raises(JobError, match="Strange: cannottravel"):
        map_shards(ctx, shards, Square, {"trace": trace, "fault": "strange"}, ctx.out)


def test_failure_frees_cpus_and_keeps_shards(tmp_path: Path, either_context: MakeContext) -> None:
    import ray

    shards, ctx, trace = inputs(tmp_path), either_context(), tmp_path / "trace"
    with pytest.raises(InputError):
        map_shards(
            ctx, shards, Square, {"trace": trace, "fault": "bad", "at": "shard-00002"}, ctx.out
        )
    end = time.monotonic() + 10
    while ray.available_resources().get("CPU", 0) < 2 and time.monotonic() < end:
        time.sleep(0.1)
    assert ray.available_resources()["CPU"] == 2
    done = set(traced(trace)) - {"shard-00002"}
    trace.unlink()
    again = either_context(attempt=2)
    assert map_shards(again, shards, Square, {"trace": trace}, again.out)["rows"] == 15
    assert not done & set(traced(trace))


def test_a_full_disk_is_named_and_leaves_nothing_behind(
    tmp_path: Path, either_context: MakeContext
) -> None:
    shards, ctx = inputs(tmp_path), either_context()
    with pytest.raises(OSError) as caught:
        map_shards(ctx, shards, Square, {"trace": tmp_path / "trace", "fault": "full"}, ctx.out)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(ctx.work / "shards" / "shard-00001.parquet")
    left = [
        path.name for path in (ctx.work / "shards").iterdir() if path.name.startswith("shard-00001")
    ]
    assert left == ["shard-00001.parquet.starts"]


def test_damaged_shards_and_only_those_are_done_again(tmp_path: Path, context: MakeContext) -> None:
    shards, ctx, trace = inputs(tmp_path, 7), context(), tmp_path / "trace"
    map_shards(ctx, shards, Square, {"trace": trace}, ctx.out)
    right = contents(ctx.out)
    notes = [ctx.work / "shards" / f"{path.name}.record" for path in shards]
    files = [note.with_name(json.loads(note.read_text())["file"]) for note in notes]
    data = files[1].read_bytes()
    for file in files[1:4]:
        file.unlink()  # the work folder's copy; `out` keeps its link
    files[1].write_bytes(data[:30] + bytes([data[30] ^ 1]) + data[31:])
    files[2].write_bytes(data[:-1])
    notes[4].write_text(notes[4].read_text()[:-9])
    notes[5].write_text("[]")
    write_table(shards[6], pa.table({"x": [100]}))
    trace.unlink()
    again = context(attempt=2)
    map_shards(again, shards, Square, {"trace": trace}, again.out)
    assert sorted(traced(trace)) == [path.stem for path in shards[1:]]
    made = contents(again.out)
    assert pq.read_table(again.out / shards[6].name)["y"].to_pylist() == [10000]
    del made[shards[6].name], right[shards[6].name]
    assert made == right


def test_progress_counts_rows_and_tokens_of_all_workers(
    tmp_path: Path, context: MakeContext
) -> None:
    shards, told = inputs(tmp_path, 4), tmp_path / "told"
    ctx = replace(context(workers=2, cpus=1.0), progress=Listening(told))
    map_shards(
        ctx, shards, Square, {"trace": tmp_path / "trace", "seconds": 0.1}, ctx.out, total_rows=20
    )
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    done = [line[0] for line in lines]
    assert done == sorted(done)
    assert done[-1] == 20
    assert all(line[1] == 20 for line in lines)
    assert any(0 < count < 20 for count in done)
    assert lines[-1][2]["tokens_per_s"] > 0


DRIVER = """
import logging, sys
from pathlib import Path
import ray
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
import test_shard_map
from ratchet.orchestrator.job_interface import Context, Resources
from ratchet.jobs.distributed.shard_map import map_shards
folder = Path({folder!r})
out = folder / sys.argv[1]
out.mkdir()
context = Context("step", "0" * 64, int(sys.argv[2]), out, folder / "work", Resources(1, 2.0, 0.0))
map_shards(context, sorted((folder / "in").iterdir()), test_shard_map.Square,
           {{"trace": folder / "trace", "seconds": float(sys.argv[3])}}, out)
ray.shutdown()
"""


@pytest.mark.soak
def test_killed_driver_loses_one_shard(tmp_path: Path, context: MakeContext) -> None:
    shards, calm, trace = inputs(tmp_path, 6), context(name="calm"), tmp_path / "trace"
    map_shards(calm, shards, Square, {"trace": tmp_path / "calm"}, calm.out)
    (tmp_path / "work").mkdir()
    script = DRIVER.format(folder=str(tmp_path))
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}",
        "PYTHONWARNINGS": "ignore",
    }

    def driver(out: str, attempt: int, seconds: float) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", script, out, str(attempt), str(seconds)],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    first = driver("out-1", 1, 0.1)
    while len(traced(trace)) < 4:
        assert first.poll() is None, first.communicate()[0]
        time.sleep(0.02)
    first.kill()
    first.communicate()
    before = traced(trace)
    second = driver("out-2", 2, 0.0)
    said = second.communicate(timeout=120)[0]
    assert second.returncode == 0, said
    assert contents(tmp_path / "out-2") == contents(calm.out)
    again = [name for name in traced(trace)[len(before) :] if name in before]
    assert len(again) <= 1, f"finished shards were done again: {again}"
    lines = [line for line in said.splitlines() if "core_worker.cc" not in line and line.strip()]
    assert not lines, said


def test_wrong_tables_are_named(tmp_path: Path) -> None:
    shards = inputs(tmp_path)
    assert count_rows(shards, ["x"]) == 15
    with pytest.raises(InputError, match=r"shard-00000\.parquet: has no column id"):
        count_rows(shards, ["x", "id"])
    shards[2].write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"shard-00002\.parquet: cannot be read"):
        count_rows(shards, ["x"])
