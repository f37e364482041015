"""Compare any embedders, and BM25, on data that none of them was trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from annotated_types import Ge, MinLen

from ratchet.errors import InputError
from ratchet.jobs.comparison import compare_systems, measure_embedders
from ratchet.jobs.retrieval import embed, evaluate_retrieval, prepare
from ratchet.jobs.retrieval.datasets import find_datasets
from ratchet.orchestrator.step import Metric, Output, Row, Source, Step, Summary, step
from ratchet.recipes.parts.models import find_model
from ratchet.recipes.parts.predictions import score_lists
from ratchet.recipes.parts.teachers import choose_teacher

BM25 = "bm25"
METRICS = ("map@25", "ndcg@10", "r@25")


def evaluate(
    *,
    models: Annotated[tuple[str, ...], MinLen(1)],
    data: str,
    reranker: str = "",
    depth: Annotated[int, Ge(1)] = 25,
) -> Summary:
    """Rank a corpus by several models: exact metrics, and the differences from the first one with intervals.

    Vectors are kept by content: a model that was evaluated on the data before is not run again.

    models      embedders: folders, hub ids, models of runs (`ratchet models` lists them), or bm25. The others are
                compared with the first, query by query
    data        queries with their documents, in any format (docs/data.md): BEIR and NanoBEIR folders, pairs, ...; of
                data with splits the test split, else all of it
    reranker    a model, or the address of an API, that orders each model's first documents, in rows of their own
    depth       documents that are reranked
    """
    if len(set(models)) < len(models):
        raise InputError(f"models: {','.join(models)} given; expected each once; leave one out")
    prepared = step("prepare", prepare.JOB, **find_datasets("", test=data), validation_fraction=0.0)
    asked = {"queries": prepared["test"], "corpus": prepared["corpus"]}
    folders = {name: find_model(name) for name in models if name != BM25}
    found: dict[str, Step] = {}
    for name, ranked in evaluate_all(models, folders, asked):
        found[name] = ranked
        if teacher := choose_teacher(reranker):
            own = ranked.name.partition("/")[0]
            scored = score_lists(f"{own}/rerank", teacher.models[0], ranked["ranking"], asked["corpus"], depth=depth)
            given: dict[str, Any] = {**asked, "scored": scored, "before": ranked, "system": "reranked"}
            found[f"{name}, reranked"] = step(f"{own}/evaluate_reranked", evaluate_retrieval.JOB, **given)
    columns: dict[str, dict[str, Metric]] = {
        name: {metric.upper(): ranked.metric(metric) for metric in METRICS} for name, ranked in found.items()
    }
    if len(found) > 1:
        given = {"queries": asked["queries"], "evaluations": tuple(found.values()), "names": tuple(found)}
        compared = step("compare", compare_systems.JOB, **given)
        for number, name in enumerate(list(found)[1:], 1):
            columns[name][f"difference of {METRICS[0].upper()}"] = compared.metric(f"{number}/{METRICS[0]}")
            columns[name] |= {f"queries {end}": compared.metric(f"{number}/{end}") for end in ("won", "lost")}
    if folders:
        given = {"models": tuple(folders.values()), "queries": asked["queries"]}
        measured = step("measure", measure_embedders.JOB, **given)
        for number, name in enumerate(folders):
            columns[name] |= {"ms per query": measured.metric(f"{number}/milliseconds", count=f"{number}/queries")}
            columns[name] |= {"MB": measured.metric(f"{number}/megabytes")}
    return Summary([Row(name, columns[name], steps=[*own.parents, own]) for name, own in found.items()])


def evaluate_all(
    models: tuple[str, ...], folders: Mapping[str, Source | Output], asked: Mapping[str, Output]
) -> Iterator[tuple[str, Step]]:
    """Yield (name, evaluation) of each model. asked: queries and corpus."""
    first: Step | None = None
    for number, model in enumerate(models):
        name = BM25 if model == BM25 else f"model{number}"
        given: dict[str, Any] = {**asked, "before": first, "tag": name, "system": BM25}
        if model != BM25:
            for texts, role in (("queries", "query"), ("corpus", "passage")):
                vectors = step(f"{name}/embed_{texts}", embed.JOB, model=folders[model], texts=asked[texts], role=role)
                given["query_embeddings" if role == "query" else "corpus_embeddings"] = vectors
            given["system"] = "dense"
        ranked = step(f"{name}/evaluate", evaluate_retrieval.JOB, **given)
        first = first or ranked
        yield model, ranked
