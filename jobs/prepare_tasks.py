"""prepare_tasks: a task's official file -> train/, valid/, test/, each target accepted by the task's own judge.

What belongs together (the questions on a passage) stays on one side of the split, and no question stands on both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.job import BadInput, Context, Job, Progress, Result

if TYPE_CHECKING:
    from data.tasks.task import Example


@dataclass(frozen=True)
class Config:
    task: str
    """countdown, gsm8k, gsm8k-boxed, squad-batch, squad-sequential or squad-together: prompt, target and judge."""
    test_fraction: float = 0.1
    """Share of the groups that are held out for the final numbers, where no test file is given."""
    validation_fraction: float = 0.02
    """Share of the other groups that choose between checkpoints, so that the test split decides nothing."""
    max_train: int | None = None
    """A sample of so many groups to train on; None: all. A group is a passage with its questions, or one problem."""
    max_test: int | None = None
    """The same of the test split."""
    seed: int = 42
    """Of split and samples."""
    shard_rows: int = 128
    """Examples per shard: the unit of generation, and of what a kill can lose."""


@dataclass(frozen=True)
class Inputs:
    data: Path
    """The official file: SQuAD's JSON, GSM8K's JSONL, or JSONL or Parquet with `nums` and `target`."""
    test: Path | None = None
    """The official test file, if there is one."""


def check(config: Config, inputs: Inputs) -> None:
    """Reads every row and judges every target, before anything is started."""
    from data.tasks import named
    from data.tasks.task import verified

    task = named(config.task)
    for name in ("test_fraction", "validation_fraction"):
        if not 0 < getattr(config, name) < 1:
            raise BadInput(f"prepare_tasks.{name}: {getattr(config, name)} given; expected a share between 0 and 1")
    for name in ("max_train", "max_test", "shard_rows"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise BadInput(f"prepare_tasks.{name}: {value} given; expected 1 or more")
    for path in (inputs.data, inputs.test):
        if path is not None and not sum(1 for _ in verified(task, task.read(_file(path)))):
            raise BadInput(f"{path}: no examples; expected some; give another file")


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import numpy as np

    from data.tables import write_shards
    from data.tasks import named
    from data.tasks.task import EXAMPLES, row_of, write_name

    task = named(config.task)
    groups = _groups(context, config, inputs.data)
    random = np.random.default_rng(config.seed)
    order = [groups[i] for i in random.permutation(len(groups))]
    if inputs.test is not None:
        held = _groups(context, config, inputs.test)
        test = [held[i] for i in random.permutation(len(held))]
    else:
        cut = max(1, round(config.test_fraction * len(order)))
        test, order = order[:cut], order[cut:]
    test = test[: config.max_test]
    known = {task.key(example) for group in test for example in group}
    fresh = [group for group in order if not any(task.key(example) in known for example in group)]
    cut = max(1, round(config.validation_fraction * len(fresh)))
    splits = {"train": fresh[cut:][: config.max_train], "valid": fresh[:cut], "test": test}
    if not splits["train"]:
        raise BadInput(f"{inputs.data}: {len(groups)} groups; expected at least three, for a split; give more")
    for name, chosen in splits.items():
        rows = [row_of(example) for group in chosen for example in group]
        write_shards(context.out / name, rows, EXAMPLES, config.shard_rows)
        write_name(context.out / name, config.task)
    counts = {name: sum(map(len, chosen)) for name, chosen in splits.items()}
    return Result(
        {
            "task": config.task,
            **counts,
            "also in test, left out": len(order) - len(fresh),
        },
        {"splits": [_statistics(name, chosen) for name, chosen in splits.items()]},
        examples={"examples": [_card(example) for example in splits["train"][0][:1]]},
    )


def _groups(context: Context, config: Config, path: Path) -> list[list[Example]]:
    """Examples by group, each question once."""
    from data.tasks import named
    from data.tasks.task import verified

    task = named(config.task)
    groups: dict[str, list[Example]] = {}
    seen: set[str] = set()
    for number, example in enumerate(verified(task, task.read(_file(path))), 1):
        if (key := task.key(example)) not in seen:
            seen.add(key)
            groups.setdefault(example.group, []).append(example)
        if number % 1000 == 0:
            context.progress(Progress(number, None, "examples"))
    return list(groups.values())


def _file(path: Path) -> Path:
    """The path, or the one file of examples in the folder."""
    if not path.is_dir():
        return path
    found = [file for suffix in ("jsonl", "json", "parquet") for file in sorted(path.glob(f"*.{suffix}"))]
    if len(found) != 1:
        names = ", ".join(file.name for file in found[:5]) or "nothing"
        raise BadInput(f"{path}: {names}; expected one .jsonl, .json or .parquet file; give the file itself")
    return found[0]


def _statistics(name: str, groups: list[list[Example]]) -> dict[str, Any]:
    examples = [example for group in groups for example in group]
    turns = sum(len(example.turns) for example in examples)
    letters = [len(target) for target in _targets(examples)]
    return {
        "split": name,
        "groups": len(groups),
        "examples": len(examples),
        "turns": turns,
        "characters of a target, mean": round(sum(letters) / max(1, len(letters)), 1),
        "most": max(letters, default=0),
    }


def _targets(examples: list[Example]) -> Iterator[str]:
    return (target for example in examples for _, target in example.turns)


def _card(example: Example) -> dict[str, Any]:
    question, target = example.turns[0]
    columns = {"asked": [{"text": question, "good": False}], "target": [{"text": target, "good": True}]}
    return {"title": f"example {example.id}", "columns": columns}


JOB = Job("prepare_tasks", version=1, config=Config, inputs=Inputs, run=run, check=check)
