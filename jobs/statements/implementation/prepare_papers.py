"""Implementation of `prepare_papers`: splits papers, and writes their statements as shards."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ratchet.data.formats.papers import SPLITS, STATEMENTS, read_papers, select_statements
from ratchet.data.pair_batches import count_pairs
from ratchet.data.rankings import summarize_counts
from ratchet.data.tables import write_mapped, write_table
from ratchet.jobs.statements.prepare_papers import Config, Inputs
from ratchet.orchestrator.job_interface import Context, Progress, Result


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    fractions = config.test_fraction, config.validation_fraction
    paths = inputs.papers, inputs.valid, inputs.test
    found = select_statements(paths, config.max_papers, *fractions, config.seed)
    split = found.split_P
    ends_P = found.ends_P
    total = len(split)
    writers = {}
    for name in SPLITS:
        writers[name] = SplitWriter(context.out / name, config.shard_rows, mapped=name == "train")
    empty = repeated = 0
    for number, paper in enumerate(read_papers(*paths)):
        if split[number] < 0:
            continue
        empty = empty + paper.empty
        repeated = repeated + paper.repeated
        kept = found.kept_S[ends_P[number] : ends_P[number + 1]]
        texts = list(itertools.compress(paper.statements, kept))
        writers[SPLITS[split[number]]].add(paper.id, _sample(config, number, texts))
        if number % 1000 == 999 or number + 1 == total:
            context.progress(Progress(number + 1, total, "papers"))
    for writer in writers.values():
        writer.close()
    counts = {name: np.array(writer.counts) for name, writer in writers.items()}
    return Result(
        {
            "papers": int((split >= 0).sum()),
            **{f"{name}/statements": int(count.sum()) for name, count in counts.items()},
            "train/pairs": count_pairs(counts["train"]),
            "blank_statements": empty,
            "repeated_statements": repeated,
            "in_other_papers": found.dropped,
        },
        {"splits": [_statistics(name, count) for name, count in counts.items()]},
        note=found.describe(),
    )


def _sample(config: Config, number: int, texts: list[str]) -> list[str]:
    most = config.max_statements
    if most is None or len(texts) <= most:
        return texts
    chosen = np.random.default_rng([config.seed, 2, number]).choice(len(texts), most, replace=False)
    return [texts[i] for i in sorted(chosen.tolist())]


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
        self.rows += [{"id": f"{paper}#{n}", "text": text, "paper": paper} for n, text in enumerate(texts)]
        while len(self.rows) >= self.shard_rows:
            self._write()

    def close(self) -> None:
        if self.rows or not self.shards:
            self._write()

    def _write(self) -> None:
        table = pa.Table.from_pylist(self.rows[: self.shard_rows], STATEMENTS)
        if self.mapped:
            write = write_mapped
            suffix = "arrow"
        else:
            write = write_table
            suffix = "parquet"
        write(self.folder / f"shard-{self.shards:05d}.{suffix}", table)
        self.rows = self.rows[self.shard_rows :]
        self.shards = self.shards + 1


def _statistics(name: str, counts: np.ndarray) -> dict[str, float | int | str]:
    relevant = summarize_counts(np.repeat(counts - 1, counts))  # for each statement, the other statements of its paper
    return {
        "split": name,
        "papers": len(counts),
        "statements": int(counts.sum()),
        "papers with fewer than 2": int((counts < 2).sum()),
        "statements per paper, mean": round(float(counts.mean()), 4),
        "most": int(counts.max()),
        **{f"relevant per statement, {name}": value for name, value in relevant.items()},
    }
