"""filter_queries: keep synthetic queries that find their document again, or that a judge accepts.

Round-trip consistency (Alberti et al. 2019; for retrieval Promptagator, Dai et al. 2023, with rank 1): a query is kept
if an exact search of the corpus ranks its document at the top. Optionally, a reranker must also rank it at the top, as
in InPars-v2 (Jeronymo et al. 2023). The judge is a language model that answers the prompts of `prepare_judgement`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Interval

from ratchet.errors import ArtifactError
from ratchet.jobs.synthetic.clean_queries import SHARD_ROWS
from ratchet.orchestrator.job_interface import Context, Job, Parents, PositiveInt, Result

FAILURES = ("failed_round_trip", "failed_reranker", "failed_judge")


@dataclass(frozen=True)
class Config:
    round_trip_rank: PositiveInt = 1
    """A query is kept if the embedder ranks one of its documents at this rank or better."""
    reranker_rank: PositiveInt = 1
    """With `reranked`: a query is kept if a document of it is at this rank or better after reranking, too."""
    least_score: Annotated[int, Interval(ge=1, le=5)] = 3
    """With `judged`: a query is kept if the judge gives it at least this score, of 1 to 5."""


@dataclass(frozen=True)
class Inputs:
    queries: Path
    """The output of `clean_queries`, or training queries."""
    train: Path | None = None
    """Shards of training queries. The output contains them first, unchanged."""
    ranking: Path | None = None
    """The `ranking/` of an `evaluate_retrieval` of these queries."""
    reranked: Path | None = None
    """The `ranking/` of an `evaluate_retrieval` of these queries with `system=reranked`."""
    judged: Path | None = None
    """The answers of a judge to the prompts of `prepare_judgement` for these queries."""


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Return the metrics of the training data, except the longest text: synthetic queries may be longer."""
    known = dict(parents.get("train", Result()).metrics)
    known.pop("longest_text", None)
    return Result(known)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.data.tables import check_queries, read_shards, write_shards
    from ratchet.data.tasks.judgement import read_score

    table = read_shards(inputs.queries)
    kept = table.to_pylist()
    counts = {}
    limits = (config.round_trip_rank, config.reranker_rank)
    for name, folder, limit in zip(
        FAILURES, (inputs.ranking, inputs.reranked), limits, strict=False
    ):
        if folder is None:
            continue
        ranking = read_shards(folder, ["id", "ranks"])
        check_queries(folder, ranking, table, inputs.queries)
        best = {row["id"]: min(row["ranks"]) for row in ranking.to_pylist()}
        passed = [query for query in kept if best[query["id"]] <= limit]
        counts[name] = len(kept) - len(passed)
        kept = passed
    if inputs.judged is not None:
        answers = read_shards(inputs.judged, ["id", "answers"]).to_pylist()
        scores = {row["id"]: read_score(row["answers"][0][0]) for row in answers}
        passed = [query for query in kept if scores[query["id"]] >= config.least_score]
        counts["failed_judge"] = len(kept) - len(passed)
        kept = passed
    rows = kept
    schema = table.schema
    if inputs.train is not None:
        train = read_shards(inputs.train)
        rows = [*train.to_pylist(), *kept]
        schema = train.schema
    if not rows:
        raise ArtifactError(
            f"step {context.step}: no query is left ({counts}); expected at least one; use another generator or judge"
        )
    write_shards(context.out, rows, schema, SHARD_ROWS)
    named = {query["positives"][0] for query in kept}
    made = {"queries": len(rows), "documents_with_queries": len(named)}
    return Result({"kept": len(kept), **counts, **made})


JOB = Job(
    "filter_queries",
    Config,
    Inputs,
    run,
    resources=("retries",),
    check=check,
    metrics=("kept", *FAILURES, "queries", "documents_with_queries"),
)
