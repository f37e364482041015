"""Tasks that are answered in words: each one's prompt, target and judge in one object (data.tasks.task)."""

from __future__ import annotations

from data.errors import DataError
from data.tasks import countdown, gsm8k, squad
from data.tasks.task import Task

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        countdown.TASK,
        gsm8k.TASK,
        gsm8k.BOXED,
        squad.BATCH,
        squad.SEQUENTIAL,
        squad.SQUAD_TOGETHER,
    )
}


def named(name: str) -> Task:
    """Raises DataError for a name that is none."""
    if name not in TASKS:
        raise DataError(f"task: '{name}' given; expected one of {', '.join(TASKS)}")
    return TASKS[name]
