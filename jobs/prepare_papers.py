"""prepare_papers: JSONL of papers with their statements -> train/, valid/, test/, split by paper.

Two passes over the files, of which a shard is in memory at a time. `valid` and `test` are Parquet shards for `embed`;
`train` is Arrow files, which training reads from the disk without holding them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.job import BadInput, Context, Job, Progress, Result

if TYPE_CHECKING:
    import numpy as np

    from data.papers import Paper


@dataclass(frozen=True)
class Config:
    test_fraction: float = 0.2
    """Share of the papers that are held out for the final numbers."""
    validation_fraction: float = 0.02
    """Share of the other papers that choose between checkpoints, so that the test split decides nothing."""
    max_papers: int | None = None
    """A sample of so many papers, drawn before the split; None: all."""
    max_statements: int | None = None
    """A sample of so many statements of each paper; None: all."""
    seed: int = 42
    """Of the samples and of the split."""
    shard_rows: int = 16_384
    """Statements per shard."""


@dataclass(frozen=True)
class Inputs:
    papers: Path
    """A .jsonl file, or a folder of them: a paper a line, with `lemmas` and `theorems`, and its `arxiv_id`."""


def check(config: Config, inputs: Inputs) -> None:
    """Reads every line: what is wrong is named with file and line before anything is started."""
    for name in ("test_fraction", "validation_fraction"):
        if not 0 < getattr(config, name) < 1:
            raise BadInput(f"prepare_papers.{name}: {getattr(config, name)} given; expected a share between 0 and 1")
    for name, least in (("max_papers", 3), ("max_statements", 2), ("shard_rows", 1)):
        value = getattr(config, name)
        if value is not None and value < least:
            raise BadInput(f"prepare_papers.{name}: {value} given; expected {least} or more")
    from data.papers import assign, read

    papers = sum(1 for _ in read(inputs.papers))
    papers = min(papers, config.max_papers or papers)
    assign(papers, config.test_fraction, config.validation_fraction, config.seed)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import numpy as np

    from data.papers import SPLITS, assign, read

    total = sum(1 for _ in read(inputs.papers))
    chosen = np.arange(total)
    if config.max_papers is not None and config.max_papers < total:
        chosen = np.sort(np.random.default_rng([config.seed, 1]).choice(total, config.max_papers, replace=False))
    split = np.full(total, -1, np.int8)
    split[chosen] = assign(len(chosen), config.test_fraction, config.validation_fraction, config.seed)
    writers = {name: _Writer(context.out / name, config.shard_rows, mapped=name == "train") for name in SPLITS}
    empty = repeated = 0
    for number, paper in enumerate(read(inputs.papers)):
        if split[number] < 0:
            continue
        empty, repeated = empty + paper.empty, repeated + paper.repeated
        writers[SPLITS[split[number]]].add(paper.id, _sample(config, number, paper))
        if number % 1000 == 999 or number + 1 == total:
            context.progress(Progress(number + 1, total, "papers"))
    for writer in writers.values():
        writer.close()
    counts = {name: np.array(writer.counts) for name, writer in writers.items()}
    return Result(
        {
            "papers": len(chosen),
            **{f"{name} statements": int(count.sum()) for name, count in counts.items()},
            "blank statements left out": empty,
            "repeated statements left out": repeated,
        },
        {"splits": [_statistics(name, count) for name, count in counts.items()]},
    )


def _sample(config: Config, number: int, paper: Paper) -> list[str]:
    import numpy as np

    most, texts = config.max_statements, paper.statements
    if most is None or len(texts) <= most:
        return list(texts)
    kept = np.random.default_rng([config.seed, 2, number]).choice(len(texts), most, replace=False)
    return [texts[i] for i in sorted(kept.tolist())]


class _Writer:
    """Shards of one split; a shard's rows are held, and the number of statements of each paper."""

    def __init__(self, folder: Path, shard_rows: int, *, mapped: bool) -> None:
        self.folder, self.shard_rows, self.mapped = folder, shard_rows, mapped
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
        import pyarrow as pa

        from data.papers import STATEMENTS
        from data.tables import write_mapped, write_table

        table = pa.Table.from_pylist(self.rows[: self.shard_rows], STATEMENTS)
        name = f"shard-{self.shards:05d}"
        if self.mapped:
            write_mapped(self.folder / f"{name}.arrow", table)
        else:
            write_table(self.folder / f"{name}.parquet", table)
        self.rows, self.shards = self.rows[self.shard_rows :], self.shards + 1


def _statistics(name: str, counts: np.ndarray) -> dict[str, float | int | str]:
    import numpy as np

    at = np.percentile(counts, [50, 90, 99]).tolist()
    return {
        "split": name,
        "papers": len(counts),
        "statements": int(counts.sum()),
        "papers with one or none": int((counts < 2).sum()),
        "statements a paper, mean": round(float(counts.mean()), 4),
        "median": at[0],
        "90%": at[1],
        "99%": at[2],
        "most": int(counts.max()),
    }


JOB = Job("prepare_papers", version=1, config=Config, inputs=Inputs, run=run, check=check)
