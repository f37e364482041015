"""accept: a teacher's answers that the judge accepts, as examples to train on. Any teacher can teach so, whatever its
vocabulary."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.job import BadArtifact, BadInput, Context, Job, Result


@dataclass(frozen=True)
class Config:
    most: int = 1
    """Accepted answers that are kept of each example, different ones, the earliest first."""


@dataclass(frozen=True)
class Inputs:
    completions: Path
    """A teacher's answers to `examples`, as `generate` writes them."""
    examples: Path
    """What it was asked, as `prepare_tasks` writes it."""


def check(config: Config, inputs: Inputs) -> None:
    if config.most < 1:
        raise BadInput(f"accept.most: {config.most} given; expected 1 or more")


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from data.tables import shard_paths, write_table
    from data.tasks import named
    from data.tasks.task import EXAMPLES, read_name, write_name

    name = read_name(inputs.completions)
    if name != read_name(inputs.examples):
        raise BadInput(
            f"accept: answers of task {name}, examples of {read_name(inputs.examples)}; expected the same;"
            " give the examples that were asked"
        )
    asked = without = kept = 0
    answered = {path.name: path for path in shard_paths(inputs.completions)}
    for path in shard_paths(inputs.examples):
        rows: list[dict[str, Any]] = []
        examples, completions = (pq.read_table(one).to_pylist() for one in (path, answered[path.name]))
        for example, completion in zip(examples, completions, strict=True):
            gold = json.loads(completion["gold"])
            good = {
                tuple(answers): None
                for answers in completion["answers"]
                if all(answers) and all(verdict.name == "correct" for verdict in named(name).judge(gold, answers))
            }
            for number, answers in enumerate(list(good)[: config.most]):
                rows.append(example | {"id": f"{example['id']}~{number}", "targets": list(answers)})
            asked, without = asked + 1, without + (not good)
        kept += len(rows)
        write_table(context.out / path.name, pa.Table.from_pylist(rows, EXAMPLES))
    if not kept:
        raise BadArtifact(
            f"step {context.step}: the judge accepts none of the teacher's answers; expected some to train on"
        )
    write_name(context.out, name)
    return Result({"examples": asked, "without an accepted answer": without, "kept": kept})


JOB = Job("accept", version=1, config=Config, inputs=Inputs, run=run, check=check)
