"""Real drivers on real Ray: killed, run side by side, and given damaged stores. The jobs are small, and real."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kept import addresses

ROOT = Path(__file__).resolve().parents[2]

RECIPE = '''
import os, time
from dataclasses import dataclass
from pathlib import Path
from jobs.job import Job, Progress, Result
from orchestrator.step import Row, Summary, step

TRACE = Path(os.environ["TOY_TRACE"])

def trace(text):
    with TRACE.open("a") as file:
        file.write(text + "\\n")

@dataclass(frozen=True)
class Config:
    size: int = 8
    seconds: float = 0.0
    fault: str = ""

@dataclass(frozen=True)
class Inputs:
    before: Path | None = None
    data: Path | None = None

def run(context, config, inputs):
    trace(f"run {context.step}")
    flag = TRACE.with_name("fault")
    if config.fault == "value":
        raise ValueError("seven is not a colour")
    if config.fault == "full":
        with open("/dev/full", "w") as device:
            device.write("x")
    if config.fault == "worker" and not flag.exists():
        flag.write_text("")
        os.kill(os.getpid(), 9)
    base = sum(int(p.read_text()) for p in sorted(inputs.before.glob("*.txt"))) if inputs.before else 0
    for i in range(config.size):
        kept = context.work / f"{i}.txt"
        if not kept.exists():
            time.sleep(config.seconds)
            fresh = context.work / f".{i}.{context.attempt}"
            fresh.write_text(str(base + i))
            fresh.replace(kept)
            trace(f"shard {context.step} {i}")
        context.progress(Progress(i + 1, config.size))
        (context.out / f"{i}.txt").write_text(kept.read_text())
    return Result({"total": base * config.size + sum(range(config.size))})

JOB = Job("count", version=1, config=Config, inputs=Inputs, run=run)

def toy(*, seconds: float = 0.0, fault: str = "", size: int = 8) -> Summary:
    """A chain of three, and one beside it."""
    a = step("a", JOB, seconds=seconds, size=size)
    b = step("b", JOB, before=a, seconds=seconds, fault=fault, size=size)
    c = step("c", JOB, before=b, seconds=seconds, size=size)
    other = step("other", JOB, seconds=seconds, size=size + 1)
    return Summary([Row("chain", {"total": c.metric("total")}, [a, b, c])], goals=[other])
'''


class Toy:
    """A recipe, a store, and a trace of what its jobs really did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.trace = folder / "trace"
        (folder / "toy.py").write_text(RECIPE)

    def start(self, *options: str, room: int | None = None) -> subprocess.Popen[str]:
        """room: bytes that the kernel lets a file have."""
        command = [sys.executable, "-m", "orchestrator", "run", str(self.folder / "toy.py"), "--store", str(self.store)]
        environment = {**os.environ, "TOY_TRACE": str(self.trace), "PYTHONPATH": str(ROOT)}
        environment.pop("RAY_ADDRESS", None)
        return subprocess.Popen(
            [*command, *options],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=None if room is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
        )

    def run(self, *options: str, room: int | None = None) -> tuple[int, str]:
        process = self.start(*options, room=room)
        output, _ = process.communicate(timeout=120)
        return process.returncode, output

    def done(self) -> list[str]:
        return self.trace.read_text().splitlines() if self.trace.exists() else []


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    toy = Toy(tmp_path_factory.mktemp("undisturbed"))
    status, output = toy.run()
    assert status == 0, output
    return addresses(toy.store)


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.02)


def test_a_second_run_starts_nothing_and_shows_the_same_table(toy: Toy) -> None:
    status, first = toy.run()
    assert status == 0, first
    count = len(toy.done())
    status, second = toy.run()
    assert status == 0, second
    assert "starting Ray" in first
    assert "starting Ray" not in second
    assert len(toy.done()) == count
    assert [line for line in first.splitlines() if line.startswith("chain")] == [
        line for line in second.splitlines() if line.startswith("chain")
    ]


@pytest.mark.slow
def test_a_changed_setting_runs_only_what_it_reaches(toy: Toy) -> None:
    assert toy.run()[0] == 0
    assert toy.run("--set", "c.size=9")[0] == 0
    assert [line for line in toy.done() if line.startswith("run")].count("run c") == 2
    assert [line for line in toy.done() if line.startswith("run")].count("run a") == 1


def test_a_killed_driver_goes_on_where_it_was(toy: Toy, undisturbed: dict[str, str]) -> None:
    process = toy.start("--set", "seconds=0.3")
    wait_for(lambda: "shard b 2" in toy.done())
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = toy.done()
    # Without the delay it is another step by its settings; so the same command:
    status, output = toy.run("--set", "seconds=0.3")
    assert status == 0, output
    after = toy.done()[len(before) :]
    assert "run a" not in after
    assert not {"shard b 0", "shard b 1", "shard b 2"} & set(after), "finished shards were done again"
    assert addresses(toy.store) == undisturbed, "other bytes than an undisturbed run"


@pytest.mark.soak
def test_kills_at_any_moment_change_no_byte(toy: Toy, undisturbed: dict[str, str]) -> None:
    draw = random.Random(0)
    for _ in range(4):
        process = toy.start("--set", "seconds=0.2")
        time.sleep(draw.uniform(0.3, 12.0))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    status, output = toy.run("--set", "seconds=0.2")
    assert status == 0, output
    assert addresses(toy.store) == undisturbed
    shards = [line for line in toy.done() if line.startswith("shard")]
    assert len(shards) <= len(set(shards)) + 8, "more was done again than one shard per step and kill"


@pytest.mark.slow
def test_two_drivers_do_each_step_once_and_the_other_says_on_whom_it_waits(
    toy: Toy, undisturbed: dict[str, str]
) -> None:
    # Long enough that the second has Ray up, on a busy machine, before the first is through.
    first = toy.start("--set", "seconds=1.2")
    wait_for(lambda: "run a" in toy.done())
    second = toy.start("--set", "seconds=1.2")
    outputs = [process.communicate(timeout=200)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert sorted(line for line in toy.done() if line.startswith("run")) == ["run a", "run b", "run c", "run other"]
    assert f"process {first.pid}" in outputs[1]
    assert addresses(toy.store) == undisturbed


def test_a_lost_worker_is_tried_again_and_the_report_says_so(toy: Toy) -> None:
    status, output = toy.run("--set", "fault=worker")
    assert status == 0, output
    assert toy.done().count("run b") == 2
    (events,) = toy.store.glob("runs/*/events.jsonl")
    kinds = [json.loads(line)["event"] for line in events.read_text().splitlines()]
    assert kinds.count("retry") == 1


def test_a_wrong_value_is_not_tried_again_and_what_does_not_need_it_goes_on(toy: Toy) -> None:
    status, output = toy.run("--set", "fault=value")
    assert status == 1
    assert toy.done().count("run b") == 1
    assert "seven is not a colour" in output
    assert {"a", "other"} == set(addresses(toy.store))
    assert "run c" not in toy.done()


def test_a_full_disk_in_a_job_is_named_and_not_tried_again(toy: Toy) -> None:
    status, output = toy.run("--set", "fault=full")
    assert status == 1
    assert toy.done().count("run b") == 1
    assert "No space left on device" in output
    assert "make some" in output
    assert {"a", "other"} == set(addresses(toy.store))


def test_a_disk_without_room_for_the_runs_own_files_is_named(toy: Toy) -> None:
    assert toy.run()[0] == 0
    before = addresses(toy.store)
    status, output = toy.run(room=10)
    assert status == 1
    assert "Traceback" not in output
    assert "File too large; expected room" in output
    assert str(toy.store) in output
    assert toy.run()[0] == 0
    assert addresses(toy.store) == before


def test_an_interrupt_leaves_the_finished_and_the_same_command_goes_on(toy: Toy, undisturbed: dict[str, str]) -> None:
    process = toy.start("--set", "seconds=0.3")
    wait_for(lambda: "shard b 1" in toy.done())
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert toy.run("--set", "seconds=0.3")[0] == 0
    assert addresses(toy.store) == undisturbed


@pytest.mark.slow
def test_code_that_is_edited_under_way_makes_no_result(toy: Toy, undisturbed: dict[str, str]) -> None:
    process = toy.start("--set", "seconds=0.2")
    wait_for(lambda: "shard a 1" in toy.done())
    recipe = toy.folder / "toy.py"
    recipe.write_text(RECIPE.replace("str(base + i)", "str(base + i + 1)"))
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert "toy.run" in output
    assert "changed since the run was planned" in output
    assert not addresses(toy.store)
    recipe.write_text(RECIPE)
    status, output = toy.run("--set", "seconds=0.2")
    assert status == 0, output
    assert addresses(toy.store) == undisturbed


@pytest.mark.parametrize(
    "damage",
    [pytest.param("deleted", marks=pytest.mark.soak), pytest.param("changed", marks=pytest.mark.slow)],
)
def test_a_damaged_result_is_named_never_served_and_repaired_on_request(toy: Toy, damage: str) -> None:
    assert toy.run()[0] == 0
    before = addresses(toy.store)
    file = toy.store / "objects" / before["a"] / "3.txt"
    if damage == "deleted":
        file.unlink()
    else:
        file.write_text("9")
    # A changed byte is seen when the file is read: by a step that needs it.
    options = ["--set", "b.size=9"] if damage == "changed" else []
    status, output = toy.run(*options)
    assert status != 0
    assert str(file) in output.replace("\n", "")
    assert "--repair" in output
    status, output = toy.run("--repair")
    assert status == 0, output
    assert {name: addresses(toy.store)[name] for name in before} == before
