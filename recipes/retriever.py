"""Finetune a retriever on your own data: mine hard negatives, finetune, mine again; optionally with a reranker."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import Interval

from ratchet.errors import InputError
from ratchet.jobs.retrieval import prepare
from ratchet.jobs.retrieval.datasets import find_datasets
from ratchet.jobs.training.config import Distillation
from ratchet.orchestrator.step import Seed, Source, Summary, average, step
from ratchet.recipes.parts.models import find_model
from ratchet.recipes.parts.predictions import prepare_new_queries
from ratchet.recipes.parts.retrieval_loop import Mining, RetrievalLoop
from ratchet.recipes.parts.synthetic_queries import add_synthetic_queries
from ratchet.recipes.parts.teachers import choose_reranker, choose_teacher


def retriever(
    *,
    data: str = "",
    valid: str = "",
    test: str = "",
    base: str = "sentence-transformers/all-MiniLM-L6-v2",
    bootstrap: str = "",
    reranker: str = "none",
    method: Literal["lora", "full"] = "lora",
    iterations: Annotated[int, Interval(ge=0, le=1000)] = 2,
    mining: Mining = "each",
    distillation: Distillation = "kl_div",
    teacher: str = "",
    cross_fit: bool = False,
    guided: bool = False,
    examples: str = "",
    generator: str = "",
    queries_per_document: Annotated[int, Interval(ge=1, le=1000)] = 4,
    bm25: bool = True,
    knn: bool | None = None,
    ablations: bool = False,
    predict: str = "",
    split_by: prepare.SplitBy = "question",
    folds: Annotated[int, Interval(ge=1, le=100)] = 1,
    test_fraction: Annotated[float, Interval(ge=0, lt=1)] = 0.2,
    validation_fraction: Annotated[float, Interval(ge=0, lt=1)] = 0.1,
    seed: Seed = 42,
) -> Summary:
    """Iterate mining and finetuning on your own data, with defaults for small encoders.

    A large model needs a lower rate: --set finetune_embedder.learning_rate=1e-4

    data        the data to train on: pairs as JSONL, CSV or Parquet (pairs.parquet?query=title&positive=body),
                FlagEmbedding JSONL, a BEIR folder, Eedi's CSVs, hf://owner/name?split=train, or a .yaml list of these
    valid       data that selects checkpoints, in any of these formats; empty: a part of data
    test        data that is only evaluated, in any of these formats; empty: a part of data
    base        the embedder to finetune: a folder or a hub id
    bootstrap   the model that mines first; empty: the base
    reranker    none, or the model to finetune as a reranker (a decoder answers Yes or No, an encoder becomes a
                cross-encoder); `embedder`: that of the first iteration; it gains most where documents hold answers
    method      what is finetuned: lora, an adapter, or full, all weights, at a lower learning rate
    iterations  number of iterations
    mining      where negatives come from: mined in each iteration (each), given by the data (given), or given with a
                teacher's scores (given_scored)
    distillation  how the reranker of one iteration teaches the finetunes of the next
    teacher     a reranker that scores the mined negatives from the first iteration on: a folder, a hub id, or the
                address of an API (http://localhost:8000/v1/rerank; rerank_api.model names its model); empty: the
                reranker of the iteration before
    cross_fit   whether each half of the training queries is scored by a reranker that was trained on the other half,
                since a teacher is too sure of what it was trained on; twice the rerankers are trained
    guided      whether negatives that the model which mined finds nearer to a query than its positive are masked in
                training (GISTEmbed)
    examples    few-shot examples in front of every query: JSON Lines with `query` and `answer`
    generator   a causal language model that writes training queries for documents without any; those that find their
                document again (and pass the teacher, if there is one) are added; empty: none
    queries_per_document  queries that the generator writes for each of these documents
    bm25        whether BM25 ranks too, and is fused with the models by the weights that are best on the held-out
                queries, in rows of their own; it holds all documents in memory, about 3 KB each
    knn         whether the documents of the nearest training queries are ranked too, and fused likewise; it gains most
                where the same documents are wanted again, as labels are; none: where there are iterations
    ablations   also iterate without a teacher and without mining, in the same table
    predict     new queries without labels, for which the last models rank documents; the best are written as
                predictions.csv, .jsonl and .trec (settings: write_predictions.top and .columns)
    split_by    what stays in one split: the queries of a question, those that share a document (then no label of the
                test split is seen in training), or each query on its own (query)
    folds       parts of a cross-validation over the test split; the table then shows means and standard deviations
    test_fraction  fraction of the questions that is held out for the table; 0: none (with folds, it is not used)
    validation_fraction  fraction of the rest that selects checkpoints; 0: none, and the last epoch is kept
    seed        of the split, of mining and of training
    """
    datasets, model, miner = find_datasets(data, valid, test), find_model(base), find_model(bootstrap or base)
    if generator and mining != "each":
        raise InputError(
            f"generator: {generator} given, with mining={mining}; expected mining=each, since generated queries have no"
            " negatives; leave one of them out"
        )
    if predict and folds > 1:
        raise InputError(f"predict: {predict} given, with {folds} folds; expected one model; set folds=1")
    split: dict[str, Any] = {"split_by": split_by, "test_fraction": test_fraction, "folds": folds}
    split |= {"validation_fraction": validation_fraction, "seed": seed}
    summaries = []
    for fold in range(folds):
        folder = f"fold{fold}/" if folds > 1 else ""
        prepared = step(f"{folder}prepare", prepare.JOB, **datasets, fold=fold, **split)
        one = RetrievalLoop(
            prepared,
            embedder=model,
            reranker=choose_reranker(reranker),
            method=method,
            mining=mining,
            distillation=distillation,
            teacher=choose_teacher(teacher),
            cross_fit=cross_fit,
            guided=guided,
            examples=Source.find(examples, "examples") if examples else None,
            new_queries=prepare_new_queries(predict, "predict", datasets["reading"]) if predict else None,
            bm25=bm25,
            knn=iterations > 0 if knn is None else knn,
            seed=seed,
            folder=folder,
        )
        if generator:
            one = replace(one, train=add_synthetic_queries(one, miner, find_model(generator), queries_per_document))
        summaries.append(one.build_summary(miner, iterations, ablations=ablations))
    return average(summaries) if folds > 1 else summaries[0]
