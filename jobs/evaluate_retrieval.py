"""evaluate_retrieval: exact metrics over the whole ranking, for vectors or for BM25, and what was retrieved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jobs.job import BadArtifact, BadInput, Context, Job, Result
from jobs.shards import Tell, map_shards, rows_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from models.rank_metrics import RankMetrics
    from models.ranks import Relevant

BYTES_AT_ONCE = 1 << 30
"""Of the corpus' vectors or of scores that a worker holds at a time."""


@dataclass(frozen=True)
class Config:
    system: Literal["dense", "bm25", "reranked"] = "dense"
    """`dense`: by the inner product of the vectors; `bm25`: by the words; `reranked`: another evaluation's best
    documents by a reranker's scores, with all others behind them where they were."""
    k: tuple[int, ...] = (1, 5, 10, 25, 50, 75, 100)
    """Cut-offs of the metrics. Ranks themselves are exact over the whole corpus."""
    top: int = 100
    """Documents per query in `run.trec` and in `ranking/`, which `score` takes."""
    examples: int = 6
    """Queries shown with what was retrieved, where there is a `before`."""
    shown: int = 5
    """Documents shown per query."""
    tag: str = "ratchet"
    """Names the system in `run.trec` and in the report."""


@dataclass(frozen=True)
class Inputs:
    queries: Path
    corpus: Path
    query_embeddings: Path | None = None
    """Of `queries`; not for BM25."""
    corpus_embeddings: Path | None = None
    before: Path | None = None
    """Another evaluation of the same queries, to compare with."""
    scored: Path | None = None
    """For `reranked`: another evaluation's `ranking/`, with the scores of a reranker."""


def check(config: Config, inputs: Inputs) -> None:
    if not config.k or min(config.k) < 1 or config.top < 1:
        raise BadInput(
            f"evaluate_retrieval.k, top: {config.k}, {config.top} given; expected whole numbers of 1 or more"
        )
    if config.shown > config.top:
        raise BadInput(f"evaluate_retrieval.shown: {config.shown} given; expected at most top, which is {config.top}")
    if not config.tag or any(letter.isspace() for letter in config.tag):
        raise BadInput(f"evaluate_retrieval.tag: '{config.tag}' given; expected one word; it is a column of run.trec")


class Worker:
    """Ranks the corpus for shards of queries; holds the corpus, or streams its vectors where they are large.

    Writes `data.tables.RANKED`; the ranks stand in the order of the query's positives."""

    def __init__(self, config: Config, inputs: Inputs, device: str) -> None:
        from data.tables import read_shards

        self.config, self.inputs, self.device = config, inputs, device
        dense = config.system == "dense"
        table = read_shards(inputs.corpus, ["id"] if dense else ["id", "text"])
        self.ids: list[str] = table["id"].to_pylist()
        self.row_of = {name: row for row, name in enumerate(self.ids)}
        self.documents: list[str] = [] if dense else table["text"].to_pylist()

    def __call__(self, source: Path, target: Path, tell: Tell) -> dict[str, int]:
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        from data.tables import RANKED, write_table
        from models.ranks import Relevant

        queries = pq.read_table(source, columns=["id", "text", "positives"]).to_pylist()
        relevant = Relevant.of([self._positives(source, row, query) for row, query in enumerate(queries)])
        rank = self._bm25 if self.config.system == "bm25" else self._dense
        ranks_R, scores_QK, rows_QK = rank(source, queries, relevant, tell)
        columns = [
            [query["id"] for query in queries],
            [query["text"] for query in queries],
            [[self.ids[row] for row in rows] for rows in rows_QK.tolist()],
            list(scores_QK),
            np.split(ranks_R, relevant.indptr[1:-1])[: len(queries)],
        ]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, RANKED, strict=True)]
        write_table(target, pa.Table.from_arrays(arrays, schema=RANKED))
        return {"rows": len(queries)}

    def _positives(self, source: Path, row: int, query: dict[str, Any]) -> list[int]:
        for name in query["positives"]:
            if name not in self.row_of:
                raise BadInput(
                    f"{source}: row {row}, query '{query['id']}': positive '{name}' is not in {self.inputs.corpus};"
                    " expected a document's id"
                )
        return [self.row_of[name] for name in query["positives"]]

    def _dense(
        self, source: Path, queries: list[dict[str, Any]], relevant: Relevant, tell: Tell
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(ranks of the relevant documents [R], scores [Q, K] and rows [Q, K] of the best)."""
        from data.vectors import blocks, grouped, matrix
        from models.ranks import ranks_of_relevant
        from models.search import merge_top_k, top_k

        query_folder, folder = self.inputs.query_embeddings, self.inputs.corpus_embeddings
        assert query_folder is not None
        assert folder is not None
        query_QD = matrix(query_folder / source.name, [query["id"] for query in queries])
        ranks_R, _ = ranks_of_relevant(query_QD, relevant, lambda: blocks(folder, self.ids), device=self.device)
        groups = grouped(blocks(folder, self.ids), max(1, BYTES_AT_ONCE // (4 * query_QD.shape[1])))
        best = [top_k(query_QD, group, self.config.top, exact_scores=True, device=self.device) for group in groups]
        return ranks_R, *merge_top_k(best, self.config.top)

    def _bm25(
        self, source: Path, queries: list[dict[str, Any]], relevant: Relevant, tell: Tell
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        import numpy as np

        from data.lexical import scores
        from models.ranks import RankCounter, Relevant

        width = min(self.config.top, len(self.ids))
        ranks = [np.zeros(0, np.int64)]
        best_scores, best_rows = [np.zeros((0, width), np.float32)], [np.zeros((0, width), np.int64)]
        block = max(1, min(256, BYTES_AT_ONCE // (16 * len(self.ids))))
        for start, scores_QN in scores(self.documents, [query["text"] for query in queries], block):
            ends = relevant.indptr[start : start + len(scores_QN) + 1]
            here = Relevant(ends - ends[0], relevant.indices[ends[0] : ends[-1]])
            # Stable, and rows ascend: equal scores stay in the order of the corpus.
            rows = np.argsort(-scores_QN, axis=1, kind="stable")[:, :width]
            best_rows.append(rows)
            best_scores.append(np.take_along_axis(scores_QN, rows, axis=1))
            counter = RankCounter(here, scores_QN[here.query_R, here.indices])
            counter.add_scores(0, scores_QN)
            ranks.append(counter.ranks())
            tell(start + len(scores_QN))
        return np.concatenate(ranks), np.concatenate(best_scores), np.concatenate(best_rows)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import numpy as np
    import pyarrow as pa

    from data.tables import read_shards, shard_paths, write_table
    from data.trec import write_qrels, write_run
    from models.rank_metrics import rank_metrics
    from models.ranks import Relevant

    if config.system == "dense" and (inputs.query_embeddings is None or inputs.corpus_embeddings is None):
        raise BadInput(
            "evaluate_retrieval: no embeddings given; expected those of queries and corpus; or set system=bm25"
        )
    queries, corpus = read_shards(inputs.queries), read_shards(inputs.corpus, ["id", "text"])
    ranking = context.out / "ranking"
    if config.system == "reranked":
        _rerank(config, inputs, queries, ranking)
    else:
        shards = shard_paths(inputs.queries)
        total = rows_of(shards, ["id", "text", "positives", "grades"])
        device = "cuda" if context.resources.gpus else "cpu"
        arguments = {"config": config, "inputs": inputs, "device": device}
        counts = map_shards(context, shards, Worker, arguments, ranking, total_rows=total)
        if counts["rows"] != total:
            raise BadArtifact(f"step {context.step}: {counts['rows']} rankings for {total} queries; expected one each")

    ranked = read_shards(ranking)
    names, positives, grades = (queries[name].to_pylist() for name in ("id", "positives", "grades"))
    row_of = {name: row for row, name in enumerate(corpus["id"].to_pylist())}
    relevant = Relevant.of([[row_of[name] for name in own] for own in positives], grades)
    ranks_R = ranked["ranks"].combine_chunks().flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    metrics = rank_metrics(ranks_R, relevant, config.k)
    top = ranked["documents"].to_pylist()
    rankings = (
        (name, list(zip(own, scores, strict=True)))
        for name, own, scores in zip(names, top, ranked["scores"].to_pylist(), strict=True)
    )
    write_run(context.out / "run.trec", rankings, config.tag)
    write_qrels(
        context.out / "qrels.trec",
        ((n, list(zip(p, g, strict=True))) for n, p, g in zip(names, positives, grades, strict=True)),
    )
    first = _first_ranks(ranks_R, relevant)
    shown = [own[: config.shown] for own in top]
    columns = {"id": names, "first_rank": pa.array(first, pa.int64()), "top": shown}
    write_table(context.out / "per_query.parquet", pa.table(columns | dict(metrics.per_query.items())))
    return Result(
        _scalars(metrics),
        {f"{config.tag}: metrics by cut-off": _by_cutoff(metrics, config.k)},
        examples=_examples(config, inputs, queries, corpus, first, shown),
    )


def _rerank(config: Config, inputs: Inputs, queries: pa.Table, target: Path) -> None:
    """Writes the ranking that a reranker's scores give."""
    import numpy as np
    import pyarrow as pa

    from data.rankings import reranked
    from data.tables import RANKED, read_shards, shard_paths, write_table

    if inputs.scored is None:
        raise BadInput("evaluate_retrieval.scored: none given; expected a scored ranking where system=reranked")
    table = read_shards(inputs.scored, [*RANKED.names, "teacher_scores"])
    if table["id"].to_pylist() != queries["id"].to_pylist():
        raise BadInput(f"{inputs.scored}: a ranking of other queries; expected the same, in the same order")
    rows = []
    for row, positives in zip(table.to_pylist(), queries["positives"].to_pylist(), strict=True):
        scores = np.array(row["teacher_scores"], np.float32)
        order, ranks = reranked(row["documents"], scores, positives, row["ranks"])
        documents = [row["documents"][i] for i in order]
        rows.append(row | {"documents": documents[: config.top], "scores": scores[order][: config.top], "ranks": ranks})
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in RANKED]
    write_table(target / shard_paths(inputs.scored)[0].name, pa.Table.from_arrays(columns, schema=RANKED))


def _first_ranks(ranks_R: np.ndarray, relevant: Relevant) -> list[int | None]:
    """The best rank of a relevant document, per query; None without one."""
    return [
        int(ranks_R[start:stop].min()) if stop > start else None
        for start, stop in zip(relevant.indptr, relevant.indptr[1:], strict=False)
    ]


def _scalars(metrics: RankMetrics) -> dict[str, float | int | str]:
    rounded = {name: round(float(value), 6) for name, value in metrics.values.items()}
    order = ["map@25", "r@25", "mrr", "map"]
    first = {name: rounded[name] for name in order if name in rounded}
    about = {"queries": metrics.queries, "queries without a relevant document": metrics.empty}
    return {
        **first,
        **rounded,
        **about,
        **{f"rank of the first relevant, {k}": round(v, 2) for k, v in metrics.ranks.items()},
    }


def _by_cutoff(metrics: RankMetrics, ks: tuple[int, ...]) -> list[dict[str, Any]]:
    kinds = ("map", "ndcg", "r", "p", "hit")
    return [{"k": k, **{kind.upper(): round(float(metrics.values[f"{kind}@{k}"]), 6) for kind in kinds}} for k in ks]


def _examples(
    config: Config,
    inputs: Inputs,
    queries: pa.Table,
    corpus: pa.Table,
    first: list[int | None],
    shown: list[list[str]],
) -> dict[str, list[dict[str, Any]]]:
    """Queries whose first relevant document rose most, and those where it fell most, before and after."""
    if inputs.before is None or not config.examples:
        return {}
    import pyarrow.parquet as pq

    before = pq.read_table(inputs.before / "per_query.parquet", columns=["id", "first_rank", "top"])
    if before["id"].to_pylist() != queries["id"].to_pylist():
        raise BadInput(f"{inputs.before}: an evaluation of other queries; expected the same, to compare with")
    ranks, tops = before["first_rank"].to_pylist(), before["top"].to_pylist()
    # By ratio, so that 40 -> 2 counts for more than 400 -> 300.
    pairs = [(a / b, q) for q, (a, b) in enumerate(zip(ranks, first, strict=True)) if a and b and a != b]
    worst = [q for ratio, q in sorted(pairs) if ratio < 1][: max(1, config.examples // 3)]
    rose = [q for ratio, q in sorted(pairs, key=lambda pair: (-pair[0], pair[1])) if ratio > 1]
    better = rose[: max(1, config.examples - len(worst))]
    text_of = dict(zip(corpus["id"].to_pylist(), corpus["text"].to_pylist(), strict=True))

    def card(q: int) -> dict[str, Any]:
        right = set(queries["positives"][q].as_py())

        def column(names: list[str]) -> list[dict[str, Any]]:
            return [{"text": text_of[name], "good": name in right} for name in names]

        return {
            "title": queries["text"][q].as_py(),
            "columns": {
                f"before: the answer is number {ranks[q]}": column(tops[q][: config.shown]),
                f"{config.tag}: it is number {first[q]}": column(shown[q]),
            },
        }

    found = {"where the answer rose most": [card(q) for q in better], "where it fell most": [card(q) for q in worst]}
    return {title: cards for title, cards in found.items() if cards}


JOB = Job("evaluate_retrieval", version=1, config=Config, inputs=Inputs, run=run, check=check)
