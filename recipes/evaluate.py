"""Compare embedders, BM25 and a reranker on one data set."""

from typing import Annotated, Any

from annotated_types import MinLen

from ratchet.errors import InputError
from ratchet.jobs.retrieval import evaluate_retrieval
from ratchet.orchestrator.step import PositiveInt, Row, Step, Summary, step
from ratchet.recipes.parts.comparison import (
    compare_with_first,
    evaluate_embedder,
    prepare_evaluation,
)
from ratchet.recipes.parts.models import choose_model
from ratchet.recipes.parts.predictions import score_lists
from ratchet.recipes.parts.teachers import choose_teacher

BM25 = "bm25"


def evaluate(
    *,
    models: Annotated[tuple[str, ...], MinLen(1)],
    data: str,
    reranker: str = "",
    depth: PositiveInt = 25,
) -> Summary:
    """Rank a corpus with several models: exact metrics, and paired differences from the first model with intervals.

    Vectors are stored and reused: a model is not run again on data that it was evaluated on before.

    models      embedders: folders, hub ids, models of runs (`ratchet models` lists them), or bm25. Each further one
                is compared with the first, query by query
    data        queries with their documents, in any format (docs/data.md): BEIR and NanoBEIR folders, pairs, ... If
                the data has splits, its test split is used, else all of it
    reranker    a model, or the URL of a rerank API, that reranks the top documents of each model, in additional rows
    depth       number of documents per query that are reranked"""
    if len(set(models)) < len(models):
        raise InputError(f"models: {','.join(models)} given; expected each once; leave one out")
    asked = prepare_evaluation(data)
    folders = {name: choose_model(name) for name in models if name != BM25}
    found = {}
    first: Step | None = None
    for number, name in enumerate(models):
        own = BM25 if name == BM25 else f"model{number}"
        if name == BM25:
            ranked = step(
                f"{own}/evaluate",
                evaluate_retrieval.JOB,
                **asked,
                before=first,
                tag=own,
                system=BM25,
            )
        else:
            ranked = evaluate_embedder(own, folders[name], asked, first)
        found[name], first = ranked, first or ranked
        teacher = choose_teacher(reranker)
        if teacher:
            scored = score_lists(
                f"{own}/rerank", teacher.model, ranked["ranking"], asked["corpus"], depth=depth
            )
            given: dict[str, Any] = {
                **asked,
                "scored": scored,
                "before": ranked,
                "system": "reranked",
            }
            found[f"{name}, reranked"] = step(
                f"{own}/evaluate_reranked", evaluate_retrieval.JOB, **given
            )
    columns = compare_with_first(found, asked["queries"])
    return Summary(
        [Row(name, columns[name], steps=[*own.parents, own]) for name, own in found.items()]
    )
