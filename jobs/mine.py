"""mine: the corpus ranked for each training query -> hard negatives.

The mined shards have the columns of `data.tables.MINED`, and besides: `filled` (how many of the negatives, the last
ones, were drawn from the whole corpus), `suspects` and `suspect_scores` (documents of the window that a ceiling took
out).
"""

from __future__ import annotations

import heapq
import importlib.util
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jobs.job import BadArtifact, BadInput, Context, Job, Result
from jobs.shards import Tell, map_shards, rows_of

if TYPE_CHECKING:
    import numpy as np

BYTES_AT_ONCE = 1 << 30
"""Of the corpus' vectors that a worker holds at a time; what is larger is searched in parts and merged."""

SHOWN = 3
"""Queries shown in the report, with their negatives."""


@dataclass(frozen=True)
class Config:
    window: tuple[int, int] = (2, 200)
    """Ranks (from 0) that negatives are taken from, the end excluded; positives inside are dropped afterwards."""
    negatives: int = 15
    """Per query. Filled from the corpus where the window holds fewer."""
    order: Literal["sample", "top"] = "sample"
    """`sample`: drawn from the window by seed; `top`: the best-ranked."""
    margin: float | None = None
    """A negative's similarity is at most the best positive's minus this."""
    percent_of_positive: float | None = None
    """A negative's similarity is at most this share of the best positive's, such as 0.95."""
    max_score: float | None = None
    """A negative's similarity is at most this."""
    min_score: float | None = None
    """A negative's similarity is at least this."""
    backend: Literal["blocked", "faiss"] = "blocked"
    """Both are exact; `faiss` is a flat index."""
    seed: int = 42
    """Of the draws; a query's draw does not depend on other queries."""


@dataclass(frozen=True)
class Inputs:
    queries: Path
    """Shards of training queries with their positives."""
    corpus: Path
    query_embeddings: Path
    """Of `queries`, in the same order and shards."""
    corpus_embeddings: Path


def check(config: Config, inputs: Inputs) -> None:
    _window(config)
    for name in ("margin", "percent_of_positive"):
        value = getattr(config, name)
        if value is not None and not 0 <= value <= 2:
            raise BadInput(f"mine.{name}: {value} given; expected 0 to 1, or none")
    if config.backend == "faiss" and importlib.util.find_spec("faiss") is None:
        raise BadInput("mine.backend: 'faiss' given; expected it to be installed (faiss-cpu); or set backend=blocked")


class Worker:
    """Mines for shards of queries; holds the corpus' texts, and its vectors unless they are large."""

    def __init__(
        self, config: Config, corpus: Path, query_embeddings: Path, corpus_embeddings: Path, device: str
    ) -> None:
        from data.negatives import text_ids
        from data.tables import read_shards
        from data.vectors import blocks

        table = read_shards(corpus, ["id", "text"])
        self.config, self.window, self.corpus, self.device = config, _window(config), corpus, device
        self.ids = table["id"].to_pylist()
        self.row_of = {name: row for row, name in enumerate(self.ids)}
        self.texts, self.known = text_ids(table["text"].to_pylist())
        self.query_embeddings, self.corpus_embeddings = query_embeddings, corpus_embeddings
        self.rows_at_once = max(1, BYTES_AT_ONCE // (4 * _dim(corpus_embeddings)))
        self.held = list(blocks(corpus_embeddings, self.ids)) if len(self.ids) <= self.rows_at_once else None

    def __call__(self, source: Path, target: Path, tell: Tell) -> dict[str, int]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from data.negatives import choose
        from data.tables import MINED, write_table
        from data.vectors import matrix
        from models.ranks import Relevant

        queries = pq.read_table(source, columns=["id", "text", "positives"]).to_pylist()
        query_QD = matrix(self.query_embeddings / source.name, [query["id"] for query in queries])
        positives = Relevant.of([self._positives(source, row, query) for row, query in enumerate(queries)])
        scores_QK, rows_QK, positive_scores = self._ranked(query_QD, positives)
        chosen = []
        for q, query in enumerate(queries):
            own = [self.known[query["text"]]] if query["text"] in self.known else []
            forbidden = {*self.texts[positives.indices[positives.indptr[q] : positives.indptr[q + 1]]].tolist(), *own}
            best = float(positive_scores[q].max())
            chosen.append(
                choose(
                    self.window, rows_QK[q], scores_QK[q], best, forbidden, self.texts, self.config.seed, query["id"]
                )
            )
            tell(q + 1)
        negative_scores = self._scores(query_QD, [c.rows for c in chosen], rows_QK, scores_QK)
        suspect_scores = self._scores(query_QD, [c.suspects for c in chosen], rows_QK, scores_QK)
        rows = [
            {
                "id": query["id"],
                "text": query["text"],
                "positives": query["positives"],
                "negatives": [self.ids[row] for row in chosen[q].rows],
                "positive_scores": positive_scores[q].tolist(),
                "negative_scores": negative_scores[q],
                "filled": chosen[q].filled,
                "suspects": [self.ids[row] for row in chosen[q].suspects],
                "suspect_scores": suspect_scores[q],
            }
            for q, query in enumerate(queries)
        ]
        besides = [
            ("filled", pa.int32()),
            ("suspects", pa.list_(pa.string())),
            ("suspect_scores", pa.list_(pa.float32())),
        ]
        write_table(target, pa.Table.from_pylist(rows, schema=pa.schema([*MINED, *besides])))
        return {
            "rows": len(rows),
            "negatives": sum(len(c.rows) for c in chosen),
            "filled": sum(c.filled for c in chosen),
            "suspects": sum(len(c.suspects) for c in chosen),
        }

    def _positives(self, source: Path, row: int, query: dict[str, Any]) -> list[int]:
        where = f"{source}: row {row}, query '{query['id']}'"
        if not query["positives"]:
            raise BadInput(f"{where}: has no positive; expected at least one; leave it out of training")
        for name in query["positives"]:
            if name not in self.row_of:
                raise BadInput(f"{where}: positive '{name}' is not in {self.corpus}; expected a document's id")
        return [self.row_of[name] for name in query["positives"]]

    def _ranked(self, query_QD: np.ndarray, positives: Any) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """(scores [Q, K] and rows [Q, K] of the best documents, scores of the positives by query); one pass."""
        import numpy as np

        from models.ranks import relevant_scores
        from models.search import merge_top_k, top_k

        best, found_R = [], np.full(len(positives.indices), np.nan, np.float32)
        for group in self._groups():
            best.append(
                top_k(
                    query_QD, group, self.window.hi, backend=self.config.backend, exact_scores=True, device=self.device
                )
            )
            found_R = np.fmax(found_R, relevant_scores(query_QD, positives, group))
        return *merge_top_k(best, self.window.hi), np.split(found_R, positives.indptr[1:-1])

    def _scores(
        self, query_QD: np.ndarray, wanted: list[np.ndarray], rows_QK: np.ndarray, scores_QK: np.ndarray
    ) -> list[list[float]]:
        """Similarities of the wanted rows of each query: those of the ranking are known, others are computed."""
        import numpy as np

        from models.ranks import Relevant, relevant_scores

        known = [
            dict(zip(rows.tolist(), scores.tolist(), strict=True))
            for rows, scores in zip(rows_QK, scores_QK, strict=True)
        ]
        others = [[row for row in rows.tolist() if row not in known[q]] for q, rows in enumerate(wanted)]
        if any(others):
            pairs = Relevant.of(others)
            found_R = np.full(len(pairs.indices), np.nan, np.float32)
            for group in self._groups():
                found_R = np.fmax(found_R, relevant_scores(query_QD, pairs, group))
            for q, row, score in zip(pairs.query_R.tolist(), pairs.indices.tolist(), found_R.tolist(), strict=True):
                known[q][row] = score
        return [[known[q][row] for row in rows.tolist()] for q, rows in enumerate(wanted)]

    def _groups(self) -> Iterable[list[tuple[int, np.ndarray]]]:
        from data.vectors import blocks, grouped

        if self.held is not None:
            return [self.held]
        return grouped(blocks(self.corpus_embeddings, self.ids), self.rows_at_once)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from data.tables import read_shards, shard_paths

    shards = shard_paths(inputs.queries)
    total = rows_of(shards, ["id", "text", "positives"])
    arguments: dict[str, Any] = {
        "config": config,
        "corpus": inputs.corpus,
        "query_embeddings": inputs.query_embeddings,
        "corpus_embeddings": inputs.corpus_embeddings,
        "device": "cuda" if context.resources.gpus else "cpu",
    }
    counts = map_shards(context, shards, Worker, arguments, context.out, total_rows=total)
    if counts["rows"] != total:
        raise BadArtifact(f"step {context.step}: {counts['rows']} rows for {total} queries; expected one each")
    corpus = read_shards(inputs.corpus, ["id", "text"])
    text_of = dict(zip(corpus["id"].to_pylist(), corpus["text"].to_pylist(), strict=True))
    positive, negative, hardest = _written(context.out, text_of)
    return Result(
        {
            "queries": total,
            "negatives": counts["negatives"],
            "filled at random": counts["filled"],
            "suspected positives": counts["suspects"],
            "similarity of positives": positive,
            "similarity of negatives": negative,
        },
        examples={"negatives nearest to their query, of the queries where they beat the answer most": hardest},
    )


def _written(folder: Path, text_of: dict[str, str]) -> tuple[float, float, list[dict[str, Any]]]:
    """Writes the mined shards as FlagEmbedding's JSONL, and the suspects; (mean similarity of the positives, of the
    negatives, cards of the hardest queries)."""
    import pyarrow.parquet as pq

    from data.flag_embedding import Row, row_of, write
    from data.tables import shard_paths

    sums = [0.0, 0, 0.0, 0]
    hardest: list[tuple[float, int, dict[str, Any]]] = []
    number = 0

    def rows() -> Iterable[Row]:
        nonlocal number
        for path in shard_paths(folder):
            for row in pq.read_table(path).to_pylist():
                number += 1
                sums[0] += sum(row["positive_scores"])
                sums[1] += len(row["positive_scores"])
                sums[2] += sum(row["negative_scores"])
                sums[3] += len(row["negative_scores"])
                if row["negatives"]:
                    beaten_by = max(row["negative_scores"]) - max(row["positive_scores"])
                    heapq.heappush(hardest, (beaten_by, -number, row))
                    if len(hardest) > SHOWN:
                        heapq.heappop(hardest)
                if row["suspects"]:
                    suspects.write(json.dumps(_suspected(row, text_of), ensure_ascii=False) + "\n")
                yield row_of(row, text_of)

    with (folder / "suspects.jsonl").open("w", encoding="utf-8") as suspects:
        write(folder / "flag_embedding.jsonl", rows())
    cards = [_card(row, text_of) for _, _, row in sorted(hardest, key=lambda item: (-item[0], -item[1]))]
    return round(sums[0] / max(1, sums[1]), 6), round(sums[2] / max(1, sums[3]), 6), cards


def _suspected(row: dict[str, Any], text_of: dict[str, str]) -> dict[str, Any]:
    """A line of suspects.jsonl: documents more similar to the query than a negative may be, though not labelled."""
    return {
        "query_id": row["id"],
        "query": row["text"],
        "positives": [text_of[name] for name in row["positives"]],
        "positive_similarity": round(max(row["positive_scores"]), 6),
        "suspects": [
            {"id": name, "text": text_of[name], "similarity": round(score, 6)}
            for name, score in zip(row["suspects"], row["suspect_scores"], strict=True)
        ],
    }


def _card(row: dict[str, Any], text_of: dict[str, str]) -> dict[str, Any]:
    ranked = sorted(zip(row["negative_scores"], row["negatives"], strict=True), reverse=True)[:5]
    return {
        "title": row["text"],
        "columns": {
            "positives": [{"text": text_of[name], "good": True} for name in row["positives"]],
            "negatives": [{"text": text_of[name], "good": False} for _, name in ranked],
        },
    }


def _dim(embeddings: Path) -> int:
    import pyarrow.parquet as pq

    from data.tables import shard_paths

    return int(pq.read_schema(shard_paths(embeddings)[0]).field("embedding").type.list_size)


def _window(config: Config) -> Any:
    from data.negatives import Window

    return Window(
        *config.window,
        count=config.negatives,
        order=config.order,
        margin=config.margin,
        percent_of_positive=config.percent_of_positive,
        max_score=config.max_score,
        min_score=config.min_score,
    )


JOB = Job("mine", version=1, config=Config, inputs=Inputs, run=run, check=check)
