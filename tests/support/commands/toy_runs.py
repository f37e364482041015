"""A recipe of small steps that leave a trace, run by the command in a process of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import ClassVar

import command

HEAD = """
import os, time
from dataclasses import dataclass
from pathlib import Path
from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import Job, Progress, Result
from ratchet.orchestrator.step import Row, Summary, step

TRACE = Path("TRACE_FILE")

def trace(text):
    with TRACE.open("a") as file:
        file.write(text + "\\n")
"""

RECIPE = (
    HEAD
    + '''
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
)


class Toy:
    """A recipe, a store, and a trace of the work that its jobs did."""

    recipe: ClassVar[str] = RECIPE

    def __init__(self, folder: Path) -> None:
        self.folder, self.store, self.trace = folder, folder / "store", folder / "trace"
        self.path = folder / "toy.py"
        # Not a variable of the environment, which the processes of another Ray do not have.
        self.path.write_text(self.recipe.replace("TRACE_FILE", str(self.trace)))

    def start_command(
        self, verb: str, *options: str, file_limit: int | None = None
    ) -> subprocess.Popen[str]:
        arguments = (verb, str(self.path), "--store", str(self.store), *options)
        return command.start(*arguments, file_limit=file_limit)

    def start(self, *options: str, file_limit: int | None = None) -> subprocess.Popen[str]:
        return self.start_command("run", *options, file_limit=file_limit)

    def run(
        self, *options: str, file_limit: int | None = None, timeout: float = 120
    ) -> tuple[int, str]:
        process = self.start(*options, file_limit=file_limit)
        output, _ = process.communicate(timeout=timeout)
        return process.returncode, output

    def done(self) -> list[str]:
        return self.trace.read_text().splitlines() if self.trace.exists() else []
