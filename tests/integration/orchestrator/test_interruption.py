"""Drivers that are killed, interrupted or run side by side, and damaged stores, on a real Ray with small jobs."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import damage
import psutil
import pytest
from store_contents import addresses, events, list_running_attempts
from toy_runs import Toy
from waiting import wait_for

from ratchet.orchestrator.store import Store


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, shared_ray: tuple[str, ...]
) -> dict[str, str]:
    toy = Toy(tmp_path_factory.mktemp("undisturbed"))
    status, output = toy.run(*shared_ray)
    assert status == 0, output
    return addresses(toy.store)


@pytest.mark.soak
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


@pytest.mark.soak
def test_changed_setting_runs_what_it_reaches(toy: Toy) -> None:
    assert toy.run("--set", "count.cpus=1", "--set", "seconds=0.2")[0] == 0
    order = [(event["event"], event["step"]) for event in events(toy.store)]
    for one, other in (("a", "other"), ("other", "a")):
        assert order.index(("started", one)) < order.index(("done", other))
    assert toy.run("--set", "seconds=0.2", "--set", "c.size=9")[0] == 0
    assert [line for line in toy.done() if line.startswith("run")].count("run c") == 2
    assert [line for line in toy.done() if line.startswith("run")].count("run a") == 1


def test_a_killed_driver_goes_on_where_it_was(
    toy: Toy, undisturbed: dict[str, str], shared_ray: tuple[str, ...]
) -> None:
    process = toy.start("--set", "seconds=0.3")
    wait_for(lambda: "shard b 2" in toy.done(), "shard b 2: never done")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = toy.done()
    # Without the delay it is another step by its settings; so the same command:
    status, output = toy.run("--set", "seconds=0.3", *shared_ray)
    assert status == 0, output
    after = toy.done()[len(before) :]
    assert "run a" not in after
    assert not {"shard b 0", "shard b 1", "shard b 2"} & set(after), (
        "finished shards were done again"
    )
    assert addresses(toy.store) == undisturbed, "other bytes than an undisturbed run"


@pytest.mark.soak
def test_a_killed_ray_is_named_and_the_same_command_goes_on(toy: Toy) -> None:
    process = toy.start("--set", "seconds=0.3")
    wait_for(lambda: "shard a 2" in toy.done(), "shard a 2: never done")
    (raylet,) = (
        one
        for one in psutil.Process(process.pid).children(recursive=True)
        if one.name() == "raylet"
    )
    raylet.kill()
    output = process.communicate(timeout=200)[0]
    assert process.returncode == 1, output
    (said,) = re.findall(
        r"^ratchet: Ray: its processes on this machine have ended .*", output, re.MULTILINE
    )
    assert said.endswith(
        "give the same command again: finished steps, shards and checkpoints are kept"
    )
    assert "internal error" not in output
    status, output = toy.run("--set", "seconds=0.3")
    assert status == 0, output
    assert toy.done().count("shard a 0") == 1


def test_two_drivers_do_each_step_once(
    toy: Toy, undisturbed: dict[str, str], shared_ray: tuple[str, ...]
) -> None:
    # Long enough that the second is up, on a busy machine, before the first is through.
    first = toy.start("--set", "a.seconds=2", *shared_ray)
    wait_for(lambda: "run a" in toy.done(), "run a: never done")
    second = toy.start("--set", "a.seconds=2", *shared_ray)
    outputs = [process.communicate(timeout=200)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert sorted(line for line in toy.done() if line.startswith("run")) == [
        "run a",
        "run b",
        "run c",
        "run other",
    ]
    assert f"process {first.pid}" in outputs[1]
    assert addresses(toy.store) == undisturbed


def test_a_lost_worker_is_tried_again_and_the_report_says_so(
    toy: Toy, shared_ray: tuple[str, ...]
) -> None:
    status, output = toy.run("--set", "fault=worker", *shared_ray)
    assert status == 0, output
    assert toy.done().count("run b") == 2
    (events,) = toy.store.glob("runs/*/events.jsonl")
    kinds = [json.loads(line)["event"] for line in events.read_text().splitlines()]
    assert kinds.count("retry") == 1


@pytest.mark.soak
def test_wrong_value_is_not_retried(toy: Toy) -> None:
    status, output = toy.run("--set", "fault=value")
    assert status == 1
    assert toy.done().count("run b") == 1
    assert re.search(r"b: toy\.py:\d+ in run: ValueError: seven is not a colour", output), output
    assert {"a", "other"} == set(addresses(toy.store))
    assert "run c" not in toy.done()


@pytest.mark.soak
def test_a_full_disk_in_a_job_is_named_and_not_tried_again(toy: Toy) -> None:
    status, output = toy.run("--set", "fault=full")
    assert status == 1
    assert toy.done().count("run b") == 1
    assert "No space left on device" in output
    assert "free some" in output
    assert {"a", "other"} == set(addresses(toy.store))


@pytest.mark.soak
def test_a_disk_without_room_for_the_runs_own_files_is_named(toy: Toy) -> None:
    assert toy.run()[0] == 0
    before = addresses(toy.store)
    status, output = toy.run(file_limit=10)
    assert status == 1
    assert "Traceback" not in output
    assert "File too large; expected free space" in output
    assert str(toy.store) in output
    assert toy.run()[0] == 0
    assert addresses(toy.store) == before


@pytest.mark.parametrize(
    ("send", "number", "expected"),
    [
        pytest.param(os.kill, signal.SIGINT, 130, marks=pytest.mark.soak),  # ctrl-C
        (os.kill, signal.SIGTERM, 143),  # Kubernetes, `ray job stop`
        # Slurm and systemd, which end the processes of Ray too:
        pytest.param(os.killpg, signal.SIGTERM, 143, marks=pytest.mark.soak),
    ],
)
def test_interrupt_keeps_the_finished(
    toy: Toy,
    undisturbed: dict[str, str],
    shared_ray: tuple[str, ...],
    send: Callable[[int, int], None],
    number: int,
    expected: int,
) -> None:
    process = toy.start("--set", "seconds=0.3")
    wait_for(lambda: "shard b 1" in toy.done(), "shard b 1: never done")
    send(process.pid, number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == expected, output
    assert "stopping: finished steps" in output
    assert "give the same command again to continue" in output
    assert "***" not in output, "no stack of Ray's signal handler"
    assert list_running_attempts(Store.open(toy.store)) == []
    assert [event["interrupted"] for event in events(toy.store) if event["event"] == "end"] == [
        True
    ]
    assert len(list(toy.store.glob("runs/*/report.html"))) == 1
    assert toy.run("--set", "seconds=0.3", *shared_ray)[0] == 0
    assert addresses(toy.store) == undisturbed


@pytest.mark.soak
def test_changed_result_is_named_and_repaired(toy: Toy) -> None:
    """Takes half a minute: Ray starts three times."""
    assert toy.run()[0] == 0
    before = addresses(toy.store)
    file = toy.store / "objects" / before["a"] / "3.txt"
    damage.change(file, "9")
    # A changed byte is detected when a step reads the file.
    status, output = toy.run("--set", "b.size=9")
    assert status != 0
    assert str(file) in output.replace("\n", "")
    assert "--repair" in output
    status, output = toy.run("--repair")
    assert status == 0, output
    assert {name: addresses(toy.store)[name] for name in before} == before
