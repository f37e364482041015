"""prepare_papers: read papers with their statements, and split them by paper into train/, valid/ and test/.

The files are read twice, with one shard in memory at a time. A text that occurs in several papers is kept in only one.
`valid` and `test` are Parquet shards for `embed`; `train` is Arrow files that training maps into memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt, Lt

from ratchet.orchestrator.job_interface import Job, Parents, Result, Seed, Unit

LEFT_OUT = ("blank_statements", "repeated_statements", "in_other_papers")
"""Metrics: numbers of statements that are left out."""


@dataclass(frozen=True)
class Config:
    test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.2
    """Fraction of the papers in the test split, used for the final metrics only. Ignored if `test` is given."""
    validation_fraction: Annotated[float, Gt(0), Lt(1)] = 0.02
    """Fraction of the remaining papers in the valid split, which selects checkpoints. Ignored if `valid` is given."""
    max_papers: Annotated[int, Ge(3)] | None = None
    """Maximum number of papers, drawn at random from `papers` before the split. None: all papers."""
    max_statements: Annotated[int, Ge(2)] | None = None
    """Maximum number of statements per paper, drawn at random. None: all statements."""
    seed: Seed = 42
    """Seed of the samples and the split."""
    shard_rows: Annotated[int, Ge(1), Unit("rows")] = 16_384
    """Statements per shard."""


@dataclass(frozen=True)
class Inputs:
    papers: Path
    """A .jsonl file, or a folder of such files, with one paper per line: `lemmas`, `theorems` and `arxiv_id`."""
    valid: Path | None = None
    """Papers for `valid` only, instead of a part of `papers`."""
    test: Path | None = None
    """Papers for `test` only, instead of a part of `papers`."""


def predict(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Read all papers, so that a bad line is an error, with file and line, before the run starts."""
    import numpy as np

    from ratchet.data.formats.papers import SPLITS, select_statements
    from ratchet.data.pair_batches import count_pairs

    fractions = config.test_fraction, config.validation_fraction
    paths = inputs.papers, inputs.valid, inputs.test
    found = select_statements(paths, config.max_papers, *fractions, config.seed)
    train = found.count_P[found.split_P == SPLITS.index("train")]
    pairs = count_pairs(np.minimum(train, config.max_statements or train))
    tested = found.count_P[found.split_P == SPLITS.index("test")]
    statements = int(np.minimum(tested, config.max_statements or tested).sum())
    return Result({"train/pairs": pairs, "test/statements": statements}, note=found.describe())


JOB = Job(
    "prepare_papers",
    config=Config,
    inputs=Inputs,
    resources=("retries",),
    predict=predict,
    outputs=("train", "valid", "test"),
    metrics=lambda config: ("papers", "*/statements", "train/pairs", *LEFT_OUT),
)
