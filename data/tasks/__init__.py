"""Tasks with free-text answers. Each is one object with prompt, target and verifier (ratchet.data.tasks.task)."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from ratchet.data.tasks import chat, countdown, gsm8k, judgement, query_generation, squad
from ratchet.data.tasks.task import Sample, Task, read_task_file, verify_samples
from ratchet.errors import DataError, InputError

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        countdown.TASK,
        gsm8k.TASK,
        gsm8k.ANNOTATED,
        gsm8k.BOXED,
        *map(squad.make_task, squad.READERS),
        chat.TASK,
        query_generation.TASK,
        judgement.TASK,
    )
}


def get_task(name: str) -> Task:
    """Return the task with this name. Raises DataError for an unknown one."""
    if name not in TASKS:
        raise DataError(f"task: '{name}' given; expected one of {', '.join(TASKS)}")
    return TASKS[name]


def read_task(folder: Path, verifier_file: Path | None = None) -> Task:
    """Return the task of the samples or answers in a folder, with its verifier. verifier_file: the user's file with the
    verifier that the samples were prepared with, if it was a function of one.

    Raises InputError for another verifier than that of the samples."""
    source = read_task_file(folder)
    name = source.pop("task")
    if verifier_file is None and "sha256" in source:
        raise InputError(
            f"{folder}: the function {source['verifier']} of a Python file verifies these answers, and no file was"
            " given; expected the file that prepare_tasks got, since stored results contain no code; give it as"
            " verifier_file"
        )
    task = get_task(name)
    if name == chat.TASK.name:
        task = chat.make_task(source.get("verifier", "none"), verifier_file)
    elif verifier_file is not None:
        raise InputError(
            f"{verifier_file}: given as verifier_file, for task {name}; expected none, since it has its own verifier"
        )
    if task.source != source:
        raise InputError(
            f"{folder}: prepared with {_show(source)}; {_show(task.source)} given; expected the same, or"
            " the numbers could not be compared; give the same file and libraries, or prepare the samples again"
        )
    return task


def _show(source: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value[:12]}" for name, value in source.items())


def read_samples(task: Task, path: Path) -> Iterator[Sample]:
    """Yield the verified samples of a file, or of the only file in a folder. Raises DataError with file and line."""
    yield from verify_samples(task, task.read(find_file(path)))


def find_file(path: Path) -> Path:
    """Return a file, or the only data file of a folder. Raises DataError for several."""
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
