"""What a task is: how its rows are asked, what the right answer looks like, and how an answer is judged, in one object.

    file -> read -> Example (system, turns of question and target, gold) -> model -> answers -> judge -> Verdict

A target that its own judge refuses is an error before anything is trained (`verified`): a model cannot learn one format
of answers and be tested on another. Another format is another task, with a name of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from data.errors import DataError

CORRECT = "correct"


@dataclass(frozen=True)
class Example:
    """One conversation: what is asked, and what one would like to hear."""

    id: str
    group: str
    """What belongs together: questions on one passage; else the id. Splits and samples keep groups whole."""
    system: str
    """Said before the conversation; may be empty."""
    turns: tuple[tuple[str, str], ...]
    """(question, target), one after the other."""
    gold: Any
    """What the judge needs; JSON."""
    where: str = ""
    """`file:line`, for messages."""


@dataclass(frozen=True)
class Verdict:
    """On one question's answer."""

    name: str
    """`correct`, or the first failure by the task's order."""
    scores: dict[str, float] = field(default_factory=dict)
    """By the names in `Task.scores`, in [0, 1]."""


@dataclass(frozen=True)
class Task:
    """Prompt, target and judge together."""

    name: str
    read: Callable[[Path], Iterator[Example]]
    """All examples of a file. Raises DataError with file and line."""
    judge: Callable[[Any, Sequence[str]], list[Verdict]]
    """(gold, the answer of each turn) -> a verdict for each question. Never raises for what a model wrote."""
    verdicts: tuple[str, ...]
    """Names of failures, in the order in which they are looked for."""
    scores: tuple[str, ...] = ()
    """Names of further scores."""
    stop: tuple[str, ...] = ()
    """An answer is over after any of these texts."""
    key: Callable[[Example], str] = lambda example: "\n".join(question for question, _ in example.turns)
    """Examples of the same key are the same question: they never stand on both sides of a split."""


EXAMPLES = pa.schema(
    [
        ("id", pa.string()),
        ("group", pa.string()),
        ("system", pa.string()),
        ("questions", pa.list_(pa.string())),
        ("targets", pa.list_(pa.string())),
        ("gold", pa.string()),
    ]
)
"""Examples as shards: questions and targets by turn; gold as JSON."""

TASK_FILE = "task.json"
"""Beside the shards: {"task": name}. Who asks, trains or judges takes the task from there."""


def verified(task: Task, examples: Iterable[Example]) -> Iterator[Example]:
    """The examples, each one's target accepted by the judge. Raises DataError for the first that is not, or whose
    target is empty."""
    for example in examples:
        targets = [target for _, target in example.turns]
        verdicts = task.judge(example.gold, targets)
        wrong = next((verdict.name for verdict in verdicts if verdict.name != CORRECT), None)
        if wrong or not verdicts or not all(target.strip() for target in targets):
            shown = targets[0] if len(targets[0]) <= 300 else targets[0][:300] + "..."
            raise DataError(
                f"{example.where or example.id}: the judge of {task.name} says {wrong or 'nothing'} of the target"
                f" {shown!r}; expected it to accept what is trained on; mend the row, or choose another variant"
            )
        yield example


def row_of(example: Example) -> dict[str, Any]:
    """As `EXAMPLES` has it."""
    return {
        "id": example.id,
        "group": example.group,
        "system": example.system,
        "questions": [question for question, _ in example.turns],
        "targets": [target for _, target in example.turns],
        "gold": json.dumps(example.gold, ensure_ascii=False, sort_keys=True),
    }


def example_of(row: dict[str, Any]) -> Example:
    """The other way round."""
    turns = tuple(zip(row["questions"], row["targets"], strict=True))
    return Example(row["id"], row["group"], row["system"], turns, json.loads(row["gold"]))


def write_name(folder: Path, task: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TASK_FILE).write_text(json.dumps({"task": task}) + "\n")


def read_name(folder: Path) -> str:
    """Raises DataError for a folder that names no task."""
    try:
        return str(json.loads((folder / TASK_FILE).read_text())["task"])
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder}: no {TASK_FILE} with a task's name ({type(error).__name__}); expected a folder that"
            " prepare_tasks or generate wrote; make it again"
        ) from None
