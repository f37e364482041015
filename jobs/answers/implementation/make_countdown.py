"""Implementation of `make_countdown`: writes generated tasks as JSON Lines."""

from __future__ import annotations

import json

from ratchet.data.tasks.solver import generate_tasks
from ratchet.errors import InputError
from ratchet.jobs.answers.make_countdown import Config, Inputs
from ratchet.orchestrator.job_interface import Context, Result


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    try:
        tasks = generate_tasks(config.tasks, config.sizes, config.largest, config.targets, config.seed)
    except ValueError as error:
        raise InputError(f"make_countdown: {error}") from None
    rows = ({"nums": list(numbers), "target": target, "solution": text} for numbers, target, text in tasks)
    (context.out / "tasks").mkdir()
    (context.out / "tasks" / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Result({"tasks": len(tasks)})
