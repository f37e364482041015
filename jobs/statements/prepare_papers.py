"""prepare_papers: read papers with their statements, and split them by paper into train/, valid/ and test/.

The files are read to choose the statements, and again to write them, with a shard of each split in memory. `valid`
and `test` are Parquet shards for `embed`; `train` is Arrow files that training maps into memory.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_types import Gt, Lt

from ratchet.orchestrator.job_interface import (
    Context,
    FractionBelowOne,
    Job,
    Parents,
    PositiveInt,
    Progress,
    Result,
    Seed,
    Unit,
)

if TYPE_CHECKING:
    from ratchet.data.formats.papers import Selection

LEFT_OUT = ("blank_statements", "repeated_statements", "in_other_papers")
"""Metrics: numbers of statements that are left out."""


@dataclass(frozen=True)
class Config:
    test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.2
    """Fraction of the papers in the test split, used for the final metrics only. Ignored if `test` is given."""
    validation_fraction: FractionBelowOne = 0.02
    """Fraction of the remaining papers in the valid split, which selects checkpoints. Ignored if `valid` is given."""
    deduplicate: bool = True
    """Keep a text that occurs in several papers, or several times in one, only once."""
    max_papers: Annotated[PositiveInt, Unit("papers")] | None = None
    """Number of papers to read, from the start of `papers`. None: all."""
    seed: Seed = 42
    """Seed of the split."""
    shard_rows: Annotated[PositiveInt, Unit("rows")] = 16_384
    """Statements per shard."""


@dataclass(frozen=True)
class Inputs:
    papers: Path
    """A .jsonl file, or a folder of such files, with one paper per line: `lemmas`, `theorems` and `arxiv_id`."""
    valid: Path | None = None
    """Papers for `valid` only, instead of a part of `papers`."""
    test: Path | None = None
    """Papers for `test` only, instead of a part of `papers`."""


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Read all papers, so that a bad line is an error, with file and line, before the run starts."""
    from ratchet.data.pair_batches import count_pairs

    found = select(config, inputs)
    metrics = {"train/pairs": count_pairs(found.count_kept("train"))}
    for name in ("valid", "test"):
        metrics[f"{name}/statements"] = int(found.count_kept(name).sum())
    return Result(metrics, note=found.describe())


def select(config: Config, inputs: Inputs) -> "Selection":
    """Read all papers and split them."""
    from ratchet.data.formats.papers import select_statements

    fractions = config.test_fraction, config.validation_fraction
    paths = inputs.papers, inputs.valid, inputs.test
    return select_statements(
        paths, *fractions, config.seed, deduplicate=config.deduplicate, max_papers=config.max_papers
    )


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.data.formats.papers import SPLITS, STATEMENTS, read_papers
    from ratchet.data.pair_batches import count_pairs
    from ratchet.data.tables import ShardWriter

    found = select(config, inputs)
    papers = len(found.split_P)
    writers = []
    for name in SPLITS:
        # Training maps its statements into memory.
        writers.append(
            ShardWriter(context.out / name, STATEMENTS, config.shard_rows, name == "train")
        )
    own = read_papers(
        inputs.papers,
        inputs.valid,
        inputs.test,
        deduplicate=config.deduplicate,
        max_papers=config.max_papers,
    )
    for number, paper in enumerate(own):
        writer = writers[found.split_P[number]]
        kept = found.kept_S[found.ends_P[number] : found.ends_P[number + 1]]
        for n, text in enumerate(itertools.compress(paper.statements, kept)):
            writer.add({"id": f"{paper.id}#{n}", "text": text, "paper": paper.id})
        context.progress(Progress(number + 1, papers, "papers"))
    metrics = {"papers": papers}
    statistics = []
    for name, writer in zip(SPLITS, writers, strict=True):
        writer.close()
        count_P = found.count_kept(name)
        statements = int(count_P.sum())
        metrics[f"{name}/statements"] = statements
        if not statements:
            continue
        statistics.append(
            {
                "split": name,
                "papers": len(count_P),
                "pairs": count_pairs(count_P),
                "statements": statements,
                "papers with fewer than 2": int((count_P < 2).sum()),
                "statements per paper, mean": round(float(count_P.mean()), 4),
                "most": int(count_P.max()),
            }
        )
    metrics |= {
        "train/pairs": count_pairs(found.count_kept("train")),
        "blank_statements": found.empty,
        "repeated_statements": found.repeated,
        "in_other_papers": found.dropped,
    }
    return Result(metrics, {"splits": statistics}, note=found.describe())


JOB = Job(
    "prepare_papers",
    Config,
    Inputs,
    run,
    resources=("retries",),
    check=check,
    outputs=("train", "valid", "test"),
    metrics=("papers", "*/statements", "train/pairs", *LEFT_OUT),
)
