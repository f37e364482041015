"""Tasks with free-text answers. Each is one object with prompt, target and verifier (ratchet.data.tasks.task)."""

from collections.abc import Iterator
from pathlib import Path

from ratchet.data.tasks import chat, countdown, gsm8k, query_generation, squad
from ratchet.data.tasks.task import Sample, Task, read_task_file, verify_samples
from ratchet.errors import DataError

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        countdown.TASK,
        gsm8k.TASK,
        gsm8k.BOXED,
        squad.BATCH,
        squad.SEQUENTIAL,
        chat.TASK,
        query_generation.TASK,
    )
}


def get_task(name: str) -> Task:
    """Return the task with this name. Raises DataError for an unknown one."""
    if name not in TASKS:
        raise DataError(f"task: '{name}' given; expected one of {', '.join(TASKS)}")
    return TASKS[name]


def read_task(folder: Path) -> Task:
    """Return the task of the samples or answers in a folder, with its verifier."""
    source = read_task_file(folder)
    name = source.pop("task")
    if source:
        return chat.make_task(**source)
    return get_task(name)


def read_samples(task: Task, path: Path) -> Iterator[Sample]:
    """Yield the verified samples of a file, or of the only file in a folder. Raises DataError with file and line."""
    yield from verify_samples(task, task.read(_find_file(path)))


def _find_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    found: list[Path] = []
    for suffix in ("jsonl", "json", "parquet"):
        found += path.glob(f"[!.]*.{suffix}")
    if len(found) != 1:
        raise DataError(
            f"{path}: {len(found)} data files; expected one .jsonl, .json or .parquet file; give the file itself"
        )
    return found[0]
