"""Task: how rows become prompts, what the target is and how an answer is verified, in one object.

    file -> read -> Sample (system, turns of question and target, gold) -> model -> answers -> verify -> Verification

A target that the task's own verifier rejects is an error before any training (`verify_samples`), so that a model cannot
learn one answer format and be tested on another. Another format is another task with its own name.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from ratchet.errors import DataError

CORRECT = "correct"


@dataclass(frozen=True)
class Sample:
    """One conversation with its reference answers."""

    id: str
    group: str
    """Samples that splits and subsets keep together, such as the questions on a passage. Without a group, the id."""
    system: str
    """The system message. May be empty."""
    turns: tuple[tuple[str, str], ...]
    """(question, target) of each turn."""
    gold: Any
    """Reference answer for the verifier; JSON."""
    where: str = ""
    """`file:line`, for messages."""
    document: str = ""
    """Groups of one document are on the same side of a split. Empty: the group is its own document."""


def join_questions(sample: Sample) -> str:
    """Return the questions of a sample."""
    questions = [question for question, _ in sample.turns]
    return "\n".join(questions)


@dataclass(frozen=True)
class Verification:
    """The verification of the answer to one question."""

    label: str
    """`correct`, or the first failure in the order of `Task.failures`."""
    scores: dict[str, float] = field(default_factory=dict)
    """Scores in [0, 1] by the names in `Task.scores`."""


@dataclass(frozen=True)
class Task:
    """Prompt, target and verifier of a task."""

    name: str
    read: Callable[[Path], Iterator[Sample]]
    """Read all samples of a file. Raises DataError with file and line."""
    verify: Callable[[Any, Sequence[str]], list[Verification]]
    """(gold, the answer of each turn) -> a verification per question. Never raises for what a model wrote."""
    failures: tuple[str, ...]
    """Failure labels, in the order in which they are checked."""
    scores: tuple[str, ...] = ()
    """Names of the scores beside the label."""
    stop: tuple[str, ...] = ()
    """Stop strings: an answer ends after any of them."""
    key: Callable[[Sample], str] = join_questions
    """The identity of a question. Samples with the same key are never on both sides of a split."""
    has_repeats: bool = False
    """Whether a question may be given again with other targets. Otherwise the first sample with a key is kept."""
    source: Mapping[str, str] = field(default_factory=dict)
    """Further content of `task.json`, which identifies the verifier of `chat`: its name, and the digest of its file or
    the versions of its libraries."""


SAMPLES = pa.schema(
    {
        "id": pa.string(),
        "group": pa.string(),
        "system": pa.string(),
        "questions": pa.list_(pa.string()),
        "targets": pa.list_(pa.string()),
        "gold": pa.string(),
    }
)
"""Shards of samples: questions and targets by turn; gold as JSON."""

TASK_FILE = "task.json"
"""A file beside the shards, {"task": name, **source}. Generation, training and evaluation read the task from it."""


def verify_samples(task: Task, samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield the samples after verifying each target. Raises DataError for the first target that is empty or that the
    task's verifier rejects, and for one that a stop string cuts."""
    for sample in samples:
        targets = [target for _, target in sample.turns]
        where = sample.where or sample.id
        for stop in task.stop:
            if any(stop in target.removesuffix(stop) for target in targets):
                raise DataError(
                    f"{where}: its target goes on after the stop string {stop!r}; expected it to end there"
                )
        failures = ["an empty target" for target in targets if not target.strip()]
        if task.source.get("verifier") != "none":
            for one in task.verify(sample.gold, targets):
                if one.label != CORRECT:
                    failures.append(one.label)
        if failures:
            raise DataError(
                f"{where}: the verifier of {task.name} returns {failures[0]} for the target {targets[0][:300]!r};"
                f" expected {CORRECT}, since the model is trained on it; correct the row, or choose another variant of"
                " the task"
            )
        yield sample


def sample_to_row(sample: Sample) -> dict[str, Any]:
    """Return the sample as a row of `SAMPLES`."""
    questions = []
    targets = []
    for question, target in sample.turns:
        questions.append(question)
        targets.append(target)
    return {
        "id": sample.id,
        "group": sample.group,
        "system": sample.system,
        "questions": questions,
        "targets": targets,
        "gold": json.dumps(sample.gold, ensure_ascii=False, sort_keys=True),
    }


def row_to_sample(row: dict[str, Any]) -> Sample:
    """Return the sample of a row of `SAMPLES`."""
    turns = tuple(zip(row["questions"], row["targets"], strict=True))
    gold = json.loads(row["gold"])
    return Sample(row["id"], row["group"], row["system"], turns, gold)


def write_task_name(folder: Path, task: str, **source: str) -> None:
    """Write `task.json` with the name of a task and its `Task.source`, into a folder that may be new."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TASK_FILE).write_text(json.dumps({"task": task, **source}) + "\n")


def read_task_name(folder: Path) -> str:
    """Return the name of the task in `task.json`. Raises DataError where there is none."""
    return read_task_file(folder)["task"]


def read_task_file(folder: Path) -> dict[str, str]:
    """Return the content of `task.json`, the keywords of `write_task_name`. Raises DataError where there is none."""
    try:
        found = json.loads((folder / TASK_FILE).read_text())
        return found | {"task": str(found["task"])}
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder}: no {TASK_FILE} with the name of a task ({type(error).__name__}); expected a folder that"
            " prepare_tasks or generate wrote; run that step again"
        ) from None
