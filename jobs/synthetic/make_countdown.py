"""make_countdown: generate distinct Countdown tasks with solutions, written as `tasks/tasks.jsonl`."""

import json
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Interval, MinLen

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import (
    Context,
    Job,
    NonNegativeInt,
    Parents,
    PositiveInt,
    Result,
    Seed,
)


@dataclass(frozen=True)
class Config:
    tasks: Annotated[int, Ge(3)] = 10_000
    """Number of tasks."""
    sizes: Annotated[tuple[Annotated[int, Interval(ge=1, le=5)], ...], MinLen(1)] = (3, 4)
    """How many numbers a task has, drawn uniformly from these sizes."""
    largest: PositiveInt = 99
    """Numbers are drawn from 1 to this."""
    targets: tuple[NonNegativeInt, NonNegativeInt] = (10, 99)
    """Smallest and largest target."""
    seed: Seed = 42
    """Seed of the tasks."""


@dataclass(frozen=True)
class Inputs:
    pass


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    if config.targets[0] > config.targets[1]:
        raise InputError(
            f"make_countdown.targets: {config.targets} given; expected the smallest target first"
        )
    return Result({"tasks": config.tasks})


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.data.tasks.solver import generate_tasks

    try:
        tasks = generate_tasks(
            config.tasks, config.sizes, config.largest, config.targets, config.seed
        )
    except ValueError as error:
        raise InputError(f"make_countdown: {error}") from None
    rows = (
        {"nums": list(numbers), "target": target, "solution": text}
        for numbers, target, text in tasks
    )
    (context.out / "tasks").mkdir()
    (context.out / "tasks" / "tasks.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows)
    )
    return Result({"tasks": len(tasks)})


JOB = Job(
    "make_countdown",
    Config,
    Inputs,
    run,
    resources=("retries",),
    check=check,
    outputs=("tasks",),
    metrics=("tasks",),
)
