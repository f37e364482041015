"""make_countdown: new Countdown tasks with their solutions, all different, as `tasks/tasks.jsonl`."""

from __future__ import annotations

import json
from dataclasses import dataclass

from jobs.job import BadInput, Context, Job, Result


@dataclass(frozen=True)
class Config:
    tasks: int = 10_000
    """How many."""
    sizes: tuple[int, ...] = (3, 4)
    """How many numbers a task has, drawn evenly."""
    largest: int = 99
    """Numbers are drawn from 1 up to this."""
    targets: tuple[int, int] = (10, 99)
    """The smallest and the largest target."""
    seed: int = 42
    """Of the tasks."""


@dataclass(frozen=True)
class Inputs:
    pass


def check(config: Config, inputs: Inputs) -> None:
    rules = [
        ("tasks", config.tasks >= 3, "3 or more"),
        ("sizes", bool(config.sizes) and all(1 <= size <= 5 for size in config.sizes), "1 to 5 numbers"),
        ("largest", config.largest >= 1, "1 or more"),
        ("targets", 0 <= config.targets[0] <= config.targets[1], "a smallest and a largest, from 0"),
    ]
    for name, holds, expected in rules:
        if not holds:
            raise BadInput(f"make_countdown.{name}: {getattr(config, name)} given; expected {expected}")


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from data.tasks.solver import generate

    try:
        made = generate(config.tasks, config.sizes, config.largest, config.targets, config.seed)
    except ValueError as error:
        raise BadInput(f"make_countdown: {error}") from None
    rows = ({"nums": list(numbers), "target": target, "solution": text} for numbers, target, text in made)
    (context.out / "tasks").mkdir()
    (context.out / "tasks" / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Result({"tasks": len(made)})


JOB = Job("make_countdown", version=1, config=Config, inputs=Inputs, run=run, check=check)
