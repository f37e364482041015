"""Threads for the cores that other processes leave free, against a kernel that is told what to say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ratchet.models import free_cores
from ratchet.models.free_cores import FreeCores


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Machine:
    """Four cores of a machine with eight. What others do on the other four does not count."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stat, self.now, self.own, self.others, self.elsewhere = (
            folder / "stat",
            0.0,
            0.0,
            0.0,
            0.0,
        )
        self.write()
        monkeypatch.setattr(free_cores, "STAT", self.stat)
        monkeypatch.setattr(free_cores.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(free_cores.time, "process_time", lambda: self.own)
        monkeypatch.setattr(free_cores.os, "sched_getaffinity", lambda process: {0, 1, 2, 3})

    def write(self) -> None:
        lines = ["cpu  1 2 3 4 5 6 7 8 9 10"]
        ticks = os.sysconf("SC_CLK_TCK")
        for core in range(8):
            busy = (self.own + self.others) / 4 if core < 4 else self.elsewhere
            idle = self.now - busy
            lines.append(
                f"cpu{core} {busy * ticks:.0f} 0 0 {idle * ticks:.0f} 7 0 0 0 {busy * ticks:.0f} 0"
            )
        self.stat.write_text("\n".join([*lines, "intr 5"]) + "\n")

    def run(self, seconds: float, own: float, others: float) -> None:
        self.now += seconds
        self.own += seconds * own
        self.others += seconds * others
        self.elsewhere += seconds
        self.write()


def test_threads_follow_the_free_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, monkeypatch)
    cores = FreeCores(4)
    for own, others, expected in (
        (4.0, 0.0, 4),
        (3.7, 0.3, 4),
        (3.0, 1.0, 3),
        (1.0, 2.6, 1),
        (1.0, 3.0, 1),
        (0.5, 3.5, 1),
        (1.0, 0.1, 4),
    ):
        machine.run(0.2, own, others)
        before = torch.get_num_threads()
        cores.look()
        assert torch.get_num_threads() == before, "too early"
        machine.run(1.0, own, others)
        cores.look()
        assert torch.get_num_threads() == expected, (own, others)


def test_no_more_threads_than_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, monkeypatch)
    cores = FreeCores(2)
    machine.run(2.0, 0.0, 0.0)
    cores.look()
    assert torch.get_num_threads() == 2


def test_without_the_kernels_numbers_threads_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(free_cores, "STAT", tmp_path / "absent")
    cores = FreeCores(2)
    monkeypatch.setattr(free_cores, "SECONDS", 0.0)
    cores.look()
    assert torch.get_num_threads() == 2
