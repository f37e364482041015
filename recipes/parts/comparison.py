"""Comparison of systems on one data set: evaluations, and the differences from the first system."""

from collections.abc import Mapping
from typing import Any

from ratchet.jobs.comparison import compare_systems
from ratchet.jobs.retrieval import embed, evaluate_retrieval, prepare
from ratchet.jobs.retrieval.datasets import find_datasets
from ratchet.orchestrator.step import Metric, Output, Source, Step, step

METRICS = ("map@25", "ndcg@10", "r@25")


def prepare_evaluation(data: str) -> dict[str, Any]:
    """Return the queries and the corpus of a data set: the test split, or all queries if the data has no splits."""
    prepared = step("prepare", prepare.JOB, **find_datasets("", test=data), validation_fraction=0.0)
    return {"queries": prepared["test"], "corpus": prepared["corpus"]}


def evaluate_embedder(
    name: str,
    model: Source | Output,
    asked: Mapping[str, Any],
    before: Step | None = None,
    **settings: Any,
) -> Step:
    """Return the evaluation of an embedder. asked: inputs `queries` and `corpus`. before: the evaluation to compare
    with. settings: settings and inputs of the two `embed` steps."""
    settings["model"] = model
    queries = step(
        f"{name}/embed_queries", embed.JOB, texts=asked["queries"], role="query", **settings
    )
    corpus = step(
        f"{name}/embed_corpus", embed.JOB, texts=asked["corpus"], role="passage", **settings
    )
    vectors: dict[str, Any] = {"query_embeddings": queries, "corpus_embeddings": corpus}
    return step(
        f"{name}/evaluate", evaluate_retrieval.JOB, **asked, **vectors, before=before, tag=name
    )


def compare_with_first(found: Mapping[str, Step], queries: Output) -> dict[str, dict[str, Metric]]:
    """Return system -> columns of the table: metrics, and paired differences from the first system."""
    columns = {
        name: {metric.upper(): ranked.metric(metric) for metric in METRICS}
        for name, ranked in found.items()
    }
    if len(found) > 1:
        given: dict[str, Any] = {
            "queries": queries,
            "evaluations": tuple(found.values()),
            "names": tuple(found),
        }
        compared = step("compare", compare_systems.JOB, **given)
        for number, name in enumerate(list(found)[1:], 1):
            columns[name][f"difference of {METRICS[0].upper()}"] = compared.metric(
                f"{number}/{METRICS[0]}"
            )
            columns[name] |= {
                f"queries {end}": compared.metric(f"{number}/{end}") for end in ("won", "lost")
            }
    return columns
