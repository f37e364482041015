"""prepare: retrieval data of any known format, or generated questions -> corpus/, train/, valid/, test/.

The folders hold Parquet shards. `train` also has the negatives that the data brings, and a teacher's scores if all
passages have them (FlagEmbedding's `pos_scores` and `neg_scores`), in the columns of
`ratchet.data.tables.TEACHER_SCORES`. Finetuning can start from these. `train` has the columns of
`ratchet.data.tables.GROUPED`, and `valid` and `test` those of `HELD_OUT`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import Job, Parents, Result, Seed, Unit

SplitBy = Literal["question", "document", "query"]


@dataclass(frozen=True)
class Config:
    questions: Annotated[int, Ge(1)] = 800
    """Number of multiple-choice questions to generate if no data is given."""
    split_by: SplitBy = "question"
    """What stays in one split. `question`: the queries of a question. `document`: queries that share a positive, also
    indirectly, so that no positive of `valid` and `test` is one of a training query. `query`: each query on its own."""
    test_fraction: Annotated[float, Interval(ge=0, lt=1)] = 0.2
    """Fraction of the questions (with `document`: of the queries) that is held out for the final metrics. 0: no test
    split."""
    validation_fraction: Annotated[float, Interval(ge=0, lt=1)] = 0.1
    """Fraction of the rest that selects checkpoints, so that nothing is selected on the test split. 0: no valid
    split."""
    unseen_fraction: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Least fraction of `valid` whose positives are positives of no training query, as expected in use: models that
    only learn labels by heart are then not selected. Training queries of the rarest such labels are left out."""
    folds: Annotated[int, Interval(ge=1, le=1000)] = 1
    """Parts of a cross-validation, one of which is the test split instead of `test_fraction`. 1: none."""
    fold: Annotated[int, Ge(0)] = 0
    """The part that is the test split."""
    seed: Seed = 42
    """Seed of the split and of the generated questions."""
    reading: tuple[str, ...] = ()
    """How each path of `data`, `valid` and `test` is read, in this order: what may stand behind a path, such as
    `query=title&positive=body&weight=0.5`. Empty: as is."""
    shard_rows: Annotated[int, Ge(1), Unit("rows")] = 4096
    """Rows per shard. The shard is the unit of work, and of what a lost worker repeats."""


@dataclass(frozen=True)
class Inputs:
    data: tuple[Path, ...] = ()
    """Eedi CSVs, FlagEmbedding JSONL, BEIR folders, or pairs as JSONL, CSV or Parquet. None: generated questions."""
    valid: tuple[Path, ...] = ()
    """Data for `valid` only, instead of a part of `data`."""
    test: tuple[Path, ...] = ()
    """Data for `test` only, instead of a part of `data`."""


def check(config: Config, inputs: Inputs) -> None:
    if config.fold >= config.folds:
        raise InputError(f"prepare.fold: {config.fold} given; expected less than folds, which is {config.folds}")
    if config.unseen_fraction and not config.validation_fraction:
        raise InputError(
            f"prepare.unseen_fraction: {config.unseen_fraction} given, with validation_fraction=0; expected held-out"
            " queries; raise validation_fraction, or leave it out"
        )


def list_outputs(config: Config) -> tuple[str, ...]:
    valid = ("valid",) if config.validation_fraction else ()
    return ("corpus", "train", *valid, *(("test",) if config.test_fraction or config.folds > 1 else ()))


def predict(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Read and split the data, of large files the first rows. Errors name the file and line before anything is
    started; the counts of large files are estimates."""
    from ratchet.data.retrieval import sample
    from ratchet.jobs.retrieval.splits import describe_repeated, load_data, split_data

    data = load_data(config, inputs, sampled=True)
    splits = split_data(data, config)
    counts = {f"{name}/queries": round(len(found) / data.share) for name, found in splits.items()}
    longest = max(len(one.text) for ones in (sample(data.corpus), data.queries) for one in ones)
    counts |= {"documents": len(data.corpus), "longest_text": longest, **data.notes}
    return Result(counts, note=describe_repeated(splits))


JOB = Job(
    "prepare",
    config=Config,
    inputs=Inputs,
    resources=("retries",),
    check=check,
    predict=predict,
    outputs=list_outputs,
    metrics=lambda config: (
        "documents",
        "queries",
        "*/queries",
        "queries without *",
        "longest_text",
        "tasks",
        "prompts",
    ),
)
