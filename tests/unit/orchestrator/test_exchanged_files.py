"""Files of a user that change during a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import Context, Job, Result, Source
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.step import step
from ratchet.orchestrator.store import Store


@dataclass(frozen=True)
class Config:
    pass


@dataclass(frozen=True)
class Inputs:
    data: tuple[Path, ...]
    more: Path | None = None


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    raise AssertionError


def test_two_files_of_one_input_that_are_exchanged_are_named(tmp_path: Path) -> None:
    one, two, other = (tmp_path / f"{name}.jsonl" for name in ("one", "two", "other"))
    for file in (one, two, other):
        file.write_text(file.name)
    made = step(
        "read",
        Job("read", Config, Inputs, run),
        data=(Source(one), Source(two)),
        more=Source(other),
    )
    plan = Plan([made], Store.open(tmp_path / "store"))
    plan.check_sources("read")
    one.rename(tmp_path / "aside")
    two.rename(one)
    (tmp_path / "aside").rename(two)
    with pytest.raises(InputError, match=r"one.jsonl changed during the run"):
        plan.check_sources("read")
    two.rename(tmp_path / "aside")
    one.rename(two)
    (tmp_path / "aside").rename(one)
    plan.check_sources("read")
    other.write_text("changed")
    with pytest.raises(InputError, match=r"other.jsonl changed during the run"):
        plan.check_sources("read")
