"""prepare: retrieval data of any known format, or generated questions -> corpus/, train/, valid/, test/.

The folders hold Parquet shards. `train` also has the negatives that the data brings, and a teacher's scores if all
passages have them (FlagEmbedding's `pos_scores` and `neg_scores`), in the columns of
`ratchet.data.tables.TEACHER_SCORES`. Finetuning can start from these.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt, Lt

from ratchet.orchestrator.job_interface import Job, Parents, Result, Seed, Unit


@dataclass(frozen=True)
class Config:
    questions: Annotated[int, Ge(1)] = 800
    """Number of multiple-choice questions to generate if no data is given."""
    test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.2
    """Fraction of the questions that is held out for the final metrics."""
    validation_fraction: Annotated[float, Gt(0), Lt(1)] = 0.1
    """Fraction of the remaining questions that selects checkpoints, so that nothing is selected on the test split."""
    seed: Seed = 42
    """Seed of the split and of the generated questions."""
    shard_rows: Annotated[int, Ge(1), Unit("rows")] = 4096
    """Rows per shard. The shard is the unit of work, and of what a lost worker repeats."""


@dataclass(frozen=True)
class Inputs:
    data: Path | None = None
    """Eedi CSVs, FlagEmbedding JSONL or a BEIR folder. None: generated questions."""


def predict(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Read and split all data. Errors name the file and line before anything is started."""
    from ratchet.jobs.retrieval.splits import describe_repeated, load_data, split_data

    data = load_data(inputs.data, config.questions, config.seed)
    splits = split_data(data, config)
    counts = {f"{name}/queries": len(found) for name, found in splits.items()}
    counts |= {"documents": len(data.corpus), "longest_text": data.longest_text}
    return Result(counts, note=describe_repeated(splits))


JOB = Job(
    "prepare",
    version=1,
    config=Config,
    inputs=Inputs,
    run="ratchet.jobs.retrieval.implementation.prepare:run",
    resources=("retries",),
    predict=predict,
    outputs=("corpus", "train", "valid", "test"),
    metrics=lambda config: ("documents", "queries", "*/queries", "queries without *", "longest_text"),
)
