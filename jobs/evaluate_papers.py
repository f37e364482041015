"""evaluate_papers: how well a statement finds the others of its paper; exact, over the ranking of all statements.

Each statement is a query and, but for itself, every statement is ranked. Shards are dealt to workers; ranks are
counted, never sorted (models.ranks), and where all ask, one product of two statements counts for both
(models.all_against_all). Statements without another of their paper are ranked against, but ask nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jobs.job import BadArtifact, BadInput, Context, Job, Progress, Result
from jobs.shards import Tell, map_shards, rows_of

if TYPE_CHECKING:
    import numpy as np

    from models.rank_metrics import RankMetrics
    from models.ranks import Relevant

BYTES_AT_ONCE = 1 << 28
"""Of the words' scores that a worker holds at a time."""


@dataclass(frozen=True)
class Config:
    system: Literal["dense", "bm25", "jaccard"] = "dense"
    """`dense`: by the inner product of the vectors; `bm25`, `jaccard`: by the words, slow for some 100,000 and more."""
    k: tuple[int, ...] = (1, 5, 10, 50, 100, 1000)
    """Cut-offs of the metrics."""
    max_queries: int | None = None
    """Ask only a sample of so many statements, still against all; None: all."""
    seed: int = 42
    """Of that sample."""


@dataclass(frozen=True)
class Inputs:
    statements: Path
    """As `prepare_papers` writes them."""
    embeddings: Path | None = None
    """Of the statements, by `embed`; not for words."""


def check(config: Config, inputs: Inputs) -> None:
    if not config.k or min(config.k) < 1:
        raise BadInput(f"evaluate_papers.k: {config.k} given; expected whole numbers of 1 or more")
    if config.max_queries is not None and config.max_queries < 1:
        raise BadInput(f"evaluate_papers.max_queries: {config.max_queries} given; expected 1 or more, or none")


class Worker:
    """Ranks for shards of statements. Writes id, and `ranks` of the others of its paper, for those that ask."""

    def __init__(
        self, config: Config, inputs: Inputs, starts: dict[str, int], vectors: Path | None, device: str
    ) -> None:
        import numpy as np

        from data.papers import numbers
        from data.tables import read_shards

        self.config, self.starts, self.device = config, starts, device
        table = read_shards(inputs.statements, ["paper"] if vectors else ["paper", "text"])
        self.paper_S = numbers(table)
        self.texts: list[str] = [] if vectors else table["text"].to_pylist()
        self.vectors_SD = None if vectors is None else np.load(vectors, mmap_mode="r")
        self.asking_S = _asking(config, self.paper_S)

    def __call__(self, source: Path, target: Path, tell: Tell) -> dict[str, int]:
        import numpy as np

        from data.papers import others
        from models.ranks import Relevant

        start = self.starts[source.name]
        row_Q = start + np.flatnonzero(self.asking_S[start : start + rows_of([source], ["id"])])
        relevant = Relevant(*others(self.paper_S, row_Q))
        ranks_R = self._dense(row_Q, relevant) if self.vectors_SD is not None else self._words(row_Q, relevant, tell)
        rows = _write_ranks(source, target, row_Q - start, relevant.indptr, ranks_R)
        return {"rows": rows, "queries": len(row_Q)}

    def _dense(self, row_Q: np.ndarray, relevant: Relevant) -> np.ndarray:
        from models.ranks import RankCounter, relevant_scores

        vectors_SD = self.vectors_SD
        assert vectors_SD is not None
        query_QD = vectors_SD[row_Q]
        # A paper's statements are neighbours: the others' scores need a stretch of the corpus only.
        first, stop = (int(relevant.indices.min()), int(relevant.indices.max()) + 1) if len(row_Q) else (0, 0)
        scores_R = relevant_scores(query_QD, relevant, [(first, vectors_SD[first:stop])])
        counter = RankCounter(relevant, scores_R, query_QD=query_QD, exclude_Q=row_Q, device=self.device)
        counter.add(0, vectors_SD)
        return counter.ranks()

    def _words(self, row_Q: np.ndarray, relevant: Relevant, tell: Tell) -> np.ndarray:
        import numpy as np

        from data import lexical
        from models.ranks import RankCounter, Relevant

        scores = lexical.jaccard if self.config.system == "jaccard" else lexical.scores
        block = max(1, min(256, BYTES_AT_ONCE // (16 * len(self.texts))))
        ranks = [np.zeros(0, np.int64)]
        for start, scores_QS in scores(self.texts, [self.texts[row] for row in row_Q], block):
            ends = relevant.indptr[start : start + len(scores_QS) + 1]
            here = Relevant(ends - ends[0], relevant.indices[ends[0] : ends[-1]])
            own = row_Q[start : start + len(scores_QS)]
            counter = RankCounter(here, scores_QS[here.query_R, here.indices], exclude_Q=own)
            counter.add_scores(0, scores_QS)
            ranks.append(counter.ranks())
            tell(start + len(scores_QS))
        return np.concatenate(ranks)


class AllWorker:
    """What the groups of statements that begin in a shard count, for all statements (models.all_against_all): int64 [R]
    as a .npy file, to be added to what the other shards count."""

    def __init__(self, inputs: Inputs, starts: dict[str, int], vectors: Path, device: str) -> None:
        import numpy as np

        from data.papers import numbers, others
        from data.tables import read_shards
        from models.all_against_all import AllAgainstAll
        from models.ranks import Relevant

        self.starts = starts
        paper_S = numbers(read_shards(inputs.statements, ["paper"]))
        relevant = Relevant(*others(paper_S, np.arange(len(paper_S))))
        self.every = AllAgainstAll(np.load(vectors, mmap_mode="r"), relevant, device=device)

    def __call__(self, source: Path, target: Path, tell: Tell) -> dict[str, int]:
        import numpy as np

        start, rows = self.starts[source.name], rows_of([source], ["id"])
        np.save(target, self.every.count(start, start + rows, lambda row: tell(row - start)))
        return {"rows": rows}


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import numpy as np

    from data.papers import numbers
    from data.tables import read_shards, shard_paths
    from models.rank_metrics import rank_metrics
    from models.ranks import Relevant

    shards = shard_paths(inputs.statements)
    total = rows_of(shards, ["id", "text", "paper"])
    starts = dict(zip([path.name for path in shards], _starts(shards), strict=True))
    vectors = _vectors(context, config, inputs)
    device = "cuda" if context.resources.gpus and config.system == "dense" else "cpu"
    arguments = {"inputs": inputs, "starts": starts, "vectors": vectors, "device": device}
    paper_S = numbers(read_shards(inputs.statements, ["paper"]))
    if vectors is not None and config.max_queries is None:
        counts = context.work / "counts"
        map_shards(context, shards, AllWorker, arguments, counts, suffix=".npy", total_rows=total)
        _add_up(context, shards, starts, counts, paper_S)
    else:
        map_shards(context, shards, Worker, {"config": config, **arguments}, context.out / "ranks", total_rows=total)

    ranks = read_shards(context.out / "ranks")["ranks"].combine_chunks()
    flat_R = ranks.flatten().to_numpy(zero_copy_only=False)
    ends = np.r_[0, np.cumsum(ranks.value_lengths().to_numpy(zero_copy_only=False))]
    if len(ranks) != int(_asking(config, paper_S).sum()):
        raise BadArtifact(f"step {context.step}: ranks of {len(ranks)} statements; expected of each that asks")
    # Which rows are relevant does not matter here: only how many, and their ranks.
    relevant = Relevant(ends, np.arange(len(flat_R)) - np.repeat(ends[:-1], np.diff(ends)))
    metrics = rank_metrics(flat_R, relevant, config.k)
    return Result(
        _scalars(metrics, config.k, total),
        {
            "metrics by cut-off": _by_cutoff(metrics, config.k),
            "true positives within the first k": _true_positives(metrics, config.k),
            "queries": [_queries(metrics, total)],
        },
    )


def _add_up(context: Context, shards: list[Path], starts: dict[str, int], counts: Path, paper_S: np.ndarray) -> None:
    """Ranks, shard by shard as `Worker` writes them, of what `AllWorker` counted."""
    import numpy as np

    from data.papers import others

    indptr, _ = others(paper_S, np.arange(len(paper_S)))
    ranks_R = np.ones(indptr[-1], np.int64)
    for path in sorted(counts.glob("*.npy")):
        ranks_R += np.load(path, mmap_mode="r")
    (context.out / "ranks").mkdir(exist_ok=True)
    for path in shards:
        start = starts[path.name]
        ends = indptr[start : start + rows_of([path], ["id"]) + 1]
        asking_q = np.flatnonzero(np.diff(ends))
        own = ends[np.r_[asking_q, len(ends) - 1]] - ends[0]
        _write_ranks(path, context.out / "ranks" / path.name, asking_q, own, ranks_R[ends[0] : ends[-1]])


def _write_ranks(source: Path, target: Path, asking_q: np.ndarray, ends: np.ndarray, ranks_R: np.ndarray) -> int:
    """One row per statement that asks, from a shard of statements; returns how many statements that has."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from data.tables import write_table

    names = pq.read_table(source, columns=["id"])["id"]
    lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(ranks_R, pa.int64()))
    write_table(target, pa.table({"id": names.take(pa.array(asking_q)).combine_chunks(), "ranks": lists}))
    return len(names)


def _asking(config: Config, paper_S: np.ndarray) -> np.ndarray:
    """bool [S]: which statements are queries."""
    import numpy as np

    asking_S = np.bincount(paper_S)[paper_S] >= 2 if len(paper_S) else np.zeros(0, bool)
    if config.max_queries is not None and config.max_queries < asking_S.sum():
        rows = np.flatnonzero(asking_S)
        asking_S = np.zeros_like(asking_S)
        asking_S[np.random.default_rng(config.seed).choice(rows, config.max_queries, replace=False)] = True
    return asking_S


def _starts(shards: list[Path]) -> list[int]:
    import pyarrow.parquet as pq

    starts = [0]
    for path in shards:
        starts.append(starts[-1] + pq.read_metadata(path).num_rows)
    return starts[:-1]


def _vectors(context: Context, config: Config, inputs: Inputs) -> Path | None:
    """All vectors as one file, which workers map into memory: each reads all of it, for every shard."""
    if config.system != "dense":
        return None
    if inputs.embeddings is None:
        raise BadInput("evaluate_papers: no embeddings given; expected those of the statements; or set system=bm25")
    import numpy as np

    from data.tables import read_shards
    from data.vectors import blocks

    names = read_shards(inputs.statements, ["id"])["id"].to_pylist()
    target, fresh = context.work / "vectors.npy", context.work / f"vectors-{context.attempt}.npy"
    if target.exists():  # an earlier attempt's: it is there whole or not at all
        return target
    all_SD: Any = None
    for start, block_ND in blocks(inputs.embeddings, names):
        if all_SD is None:
            shape = (len(names), block_ND.shape[1])
            all_SD = np.lib.format.open_memmap(fresh, mode="w+", dtype=np.float32, shape=shape)
        all_SD[start : start + len(block_ND)] = block_ND
        context.progress(Progress(start + len(block_ND), len(names), "vectors", "laying out"))
    all_SD.flush()
    del all_SD
    fresh.replace(target)
    return target


def _scalars(metrics: RankMetrics, ks: tuple[int, ...], statements: int) -> dict[str, float | int | str]:
    names = ["mrr", "map", *(f"p@{k}" for k in ks), *(f"r@{k}" for k in ks)]
    found = {name: round(metrics.values[name], 6) for name in names}
    return {**found, "statements": statements, "queries": metrics.queries}


def _by_cutoff(metrics: RankMetrics, ks: tuple[int, ...]) -> list[dict[str, Any]]:
    return [{"k": k, "P": round(metrics.values[f"p@{k}"], 6), "R": round(metrics.values[f"r@{k}"], 6)} for k in ks]


def _true_positives(metrics: RankMetrics, ks: tuple[int, ...]) -> list[dict[str, Any]]:
    """Found relevant statements per query."""
    import numpy as np

    rows = []
    for k in ks:
        found_Q = metrics.per_query[f"p@{k}"] * k
        spread = np.percentile(found_Q, [10, 25, 50, 75, 90, 99]) if len(found_Q) else np.zeros(6)
        names = ("10%", "25%", "median", "75%", "90%", "99%")
        mean = round(float(found_Q.mean()), 4) if len(found_Q) else 0.0
        rows.append({"k": k, "mean": mean, **dict(zip(names, spread.round(4).tolist(), strict=True))})
    return rows


def _queries(metrics: RankMetrics, statements: int) -> dict[str, float | int | str]:
    relevant = {f"relevant, {name}": round(value, 4) for name, value in metrics.relevant.items()}
    first = {f"rank of the first, {name}": round(value, 4) for name, value in metrics.ranks.items()}
    return {"statements": statements, "queries": metrics.queries, **relevant, **first}


JOB = Job("evaluate_papers", version=1, config=Config, inputs=Inputs, run=run, check=check)
