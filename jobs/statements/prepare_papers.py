"""prepare_papers: read papers with their statements, and split them by paper into train/, valid/ and test/.

The files are read twice, with one shard in memory at a time. A text that occurs in several papers is kept in only one.
`valid` and `test` are Parquet shards for `embed`; `train` is Arrow files that training maps into memory.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Gt, Lt

from ratchet.orchestrator.job_interface import Context, Job, Parents, Progress, Result, Seed, Unit

if TYPE_CHECKING:
    import numpy as np

    from ratchet.data.formats.papers import Selection

LEFT_OUT = ("blank_statements", "repeated_statements", "in_other_papers")
"""Metrics: numbers of statements that are left out."""


@dataclass(frozen=True)
class Config:
    test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.2
    """Fraction of the papers in the test split, used for the final metrics only. Ignored if `test` is given."""
    validation_fraction: Annotated[float, Gt(0), Lt(1)] = 0.02
    """Fraction of the remaining papers in the valid split, which selects checkpoints. Ignored if `valid` is given."""
    seed: Seed = 42
    """Seed of the split."""
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


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Read all papers, so that a bad line is an error, with file and line, before the run starts."""
    from ratchet.data.formats.papers import SPLITS
    from ratchet.data.pair_batches import count_pairs

    found = select(config, inputs)
    pairs = count_pairs(found.count_P[found.split_P == SPLITS.index("train")])
    statements = int(found.count_P[found.split_P == SPLITS.index("test")].sum())
    return Result({"train/pairs": pairs, "test/statements": statements}, note=found.describe())


def select(config: Config, inputs: Inputs) -> Selection:
    """Read all papers and split them."""
    from ratchet.data.formats.papers import select_statements

    fractions = config.test_fraction, config.validation_fraction
    paths = inputs.papers, inputs.valid, inputs.test
    return select_statements(paths, *fractions, config.seed)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import numpy as np

    from ratchet.data.formats.papers import SPLITS, read_papers
    from ratchet.data.pair_batches import count_pairs

    found = select(config, inputs)
    ends_P = found.ends_P
    total = len(found.split_P)
    writers = {}
    for name in SPLITS:
        writers[name] = SplitWriter(context.out / name, config.shard_rows, mapped=name == "train")
    empty = repeated = 0
    for number, paper in enumerate(read_papers(inputs.papers, inputs.valid, inputs.test)):
        empty += paper.empty
        repeated += paper.repeated
        kept = found.kept_S[ends_P[number] : ends_P[number + 1]]
        texts = list(itertools.compress(paper.statements, kept))
        writers[SPLITS[found.split_P[number]]].add(paper.id, texts)
        if number % 1000 == 999 or number + 1 == total:
            context.progress(Progress(number + 1, total, "papers"))
    for writer in writers.values():
        writer.close()
    counts = {name: np.array(writer.counts) for name, writer in writers.items()}
    return Result(
        {
            "papers": total,
            **{f"{name}/statements": int(count.sum()) for name, count in counts.items()},
            "train/pairs": count_pairs(counts["train"]),
            "blank_statements": empty,
            "repeated_statements": repeated,
            "in_other_papers": found.dropped,
        },
        {"splits": [_summarize(name, count) for name, count in counts.items()]},
        note=found.describe(),
    )


class SplitWriter:
    """Writes the shards of one split. Holds the rows of one shard and the number of statements of each paper."""

    def __init__(self, folder: Path, shard_rows: int, *, mapped: bool) -> None:
        self.folder = folder
        self.shard_rows = shard_rows
        self.mapped = mapped
        self.rows: list[dict[str, Any]] = []
        self.shards = 0
        self.counts: list[int] = []

    def add(self, paper: str, texts: list[str]) -> None:
        self.counts.append(len(texts))
        self.rows += [
            {"id": f"{paper}#{n}", "text": text, "paper": paper} for n, text in enumerate(texts)
        ]
        while len(self.rows) >= self.shard_rows:
            self._write()

    def close(self) -> None:
        if self.rows or not self.shards:
            self._write()

    def _write(self) -> None:
        import pyarrow as pa

        from ratchet.data.formats.papers import STATEMENTS
        from ratchet.data.tables import write_mapped, write_table

        table = pa.Table.from_pylist(self.rows[: self.shard_rows], STATEMENTS)
        file = self.folder / f"shard-{self.shards:05d}"
        if self.mapped:
            write_mapped(file.with_suffix(".arrow"), table)
        else:
            write_table(file.with_suffix(".parquet"), table)
        self.rows = self.rows[self.shard_rows :]
        self.shards += 1


def _summarize(name: str, counts: np.ndarray) -> dict[str, float | int | str]:
    return {
        "split": name,
        "papers": len(counts),
        "statements": int(counts.sum()),
        "papers with fewer than 2": int((counts < 2).sum()),
        "statements per paper, mean": round(float(counts.mean()), 4),
        "most": int(counts.max()),
    }


JOB = Job(
    "prepare_papers",
    config=Config,
    inputs=Inputs,
    run=run,
    resources=("retries",),
    check=check,
    outputs=("train", "valid", "test"),
    metrics=lambda config: ("papers", "*/statements", "train/pairs", *LEFT_OUT),
)
