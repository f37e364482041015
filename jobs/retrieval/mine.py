"""mine: rank the corpus for each training query, and draw hard negatives from the ranking.

The mined shards have the columns of `ratchet.data.tables.MINED` and three more: `random_fill` (the number of negatives,
at the end of the list, that were drawn at random from all candidates), `suspects` and `suspect_scores` (suspected false
negatives: documents of the window that are too similar to the query, and their similarities).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ratchet.data.negative_settings import NegativeSettings
from ratchet.errors import InputError
from ratchet.jobs import planned_rows
from ratchet.jobs.distributed.piece_size import divide_search
from ratchet.orchestrator.job_interface import (
    MAP_RESOURCES,
    Context,
    Job,
    Needs,
    Parents,
    Resources,
    Result,
    Seed,
)

SMALL = 3
"""In a smaller corpus the default window may be empty: all negatives are then drawn at random."""


@dataclass(frozen=True)
class Config(NegativeSettings):
    candidates: Literal["auto", "corpus", "labelled"] = "corpus"
    """Documents that may be negatives. `corpus`: all. `labelled`: only positives of training queries. Documents without
    training queries can only be negatives: a model that learns to push them away does not find them when a new query
    needs them. `auto`: `labelled` if at least a quarter of the corpus is labelled, else `corpus`."""
    seed: Seed = 42
    """Seed of the random draws. The draw for a query does not depend on the other queries."""


@dataclass(frozen=True)
class Inputs:
    queries: Path
    """Shards of training queries with their positives."""
    corpus: Path
    """Shards of documents."""
    query_embeddings: Path
    """Vectors of `queries`, in the same order and shards."""
    corpus_embeddings: Path
    """Vectors of `corpus`, in the same order."""


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Return the counts of the queries. Raises InputError for a window that begins behind the corpus."""
    start, end = config.window
    if not 0 <= start < end:
        raise InputError(
            f"mine.window: {start},{end} given; expected 0 <= first < second, such as 2,200"
        )
    if (
        config.min_score is not None
        and config.max_score is not None
        and config.min_score > config.max_score
    ):
        raise InputError(
            f"mine.min_score: {config.min_score:g} given, with max_score={config.max_score:g}; expected at most"
            " max_score, since no document has both; correct one"
        )
    known = parents.get("corpus", Result()).metrics.get("documents")
    if isinstance(known, int) and start >= max(known, SMALL):
        raise InputError(
            f"mine.window: {start},{end} given, for {known:,} documents; expected ranks in the corpus, since all"
            " negatives would be drawn at random; lower it"
        )
    return Result(parents.get("queries", Result()).metrics)


def estimate_needs(
    config: Config, inputs: Inputs, resources: Resources, parents: Parents
) -> Needs | None:
    """The step holds the texts of the corpus while it writes those of all positives and negatives."""
    documents = planned_rows.count_rows(parents, "corpus")
    queries = planned_rows.count_rows(parents, "queries")
    characters = planned_rows.count(parents, "corpus", "characters") or 0
    disk = queries * (1 + config.num_negatives) * characters / max(1, documents)
    return planned_rows.estimate_search(documents + queries, texts=2 * characters, disk=disk)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.data.scored_lists import write_flag_embedding
    from ratchet.jobs.distributed.shard_map import map_queries
    from ratchet.jobs.retrieval.mining import Worker, average_scores, write_suspects

    columns = ["id", "text", "positives"]
    counts = map_queries(context, Worker, config, inputs, inputs.queries, columns, context.out)
    total = counts["rows"]
    if not counts["negatives"]:
        raise InputError(
            f"step {context.step}: no query of {total:,} got a negative; expected documents that are no positives of a"
            " query; add documents, or set mine.candidates=corpus, or relax the limits of mine"
        )
    write_flag_embedding(context.out, inputs.corpus)
    write_suspects(context.out, inputs.corpus)
    return Result(
        {
            "queries": total,
            "candidates": counts["candidates"] // total,  # all queries have the same
            "negatives": counts["negatives"],
            "random_fill": counts["random_fill"],
            "suspected_false_negatives": counts["suspects"],
            **average_scores(context.out),
        }
    )


JOB = Job(
    "mine",
    Config,
    Inputs,
    run,
    divide=lambda config, inputs: divide_search(inputs.queries, inputs.corpus),
    resources=MAP_RESOURCES,
    check=check,
    needs=estimate_needs,
    metrics=(
        "queries",
        "candidates",
        "negatives",
        "random_fill",
        "suspected_false_negatives",
        "positive_similarity",
        "negative_similarity",
    ),
)
