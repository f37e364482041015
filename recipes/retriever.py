"""Finetune a retriever on your own data: mine hard negatives, finetune, mine again; optionally with a reranker."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import Interval

from ratchet.errors import InputError
from ratchet.jobs.retrieval import prepare
from ratchet.jobs.retrieval.datasets import find_datasets, find_size
from ratchet.jobs.training.config import Distillation
from ratchet.orchestrator.step import FractionBelowOne, Output, Seed, Source, Summary, average, step
from ratchet.recipes.parts.models import Model, choose_model, choose_model_or_url
from ratchet.recipes.parts.predictions import prepare_new_queries
from ratchet.recipes.parts.retrieval_loop import INNER_FOLDS, Mining, RetrievalLoop
from ratchet.recipes.parts.synthetic_queries import add_synthetic_queries, choose_generator
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
    keep: Literal["best", "last", "all"] = "best",
    iterations: Annotated[int, Interval(ge=0, le=1000)] | None = None,
    mining: Mining = "each",
    distillation: Distillation = "kl_div",
    teacher: str = "",
    examples: str = "",
    num_examples: Annotated[int, Interval(ge=0, le=1000)] = 0,
    generator: str = "",
    queries_per_document: Annotated[int, Interval(ge=1, le=1000)] = 4,
    bm25: bool | None = None,
    knn: bool | None = None,
    predict: str = "",
    split_by: prepare.SplitBy = "question",
    folds: Annotated[int, Interval(ge=1, le=100)] | None = None,
    test_fraction: FractionBelowOne | None = None,
    validation_fraction: FractionBelowOne | None = None,
    seed: Seed = 42,
) -> Summary:
    """Iterate mining and finetuning on your own data, with defaults for small encoders.

    A model with a hidden size of 1024 or more is trained with a tenth of the learning rate of a small encoder.

    data        the data to train on: pairs as JSONL, CSV, Parquet or a workbook (pairs.csv?query=title&positive=body),
                files of other libraries, a BEIR or MS MARCO folder, Eedi's CSVs, or hf://owner/name?split=train;
                commas separate several data sets
    valid       data that selects checkpoints, in any of these formats; empty: a part of data
    test        data that is only evaluated, in any of these formats; empty: a part of data
    base        the embedder to finetune: a folder (of a model, or of an adapter in PEFT's format) or a hub id
    bootstrap   the model that mines negatives in the first iteration: a model, or the URL of an OpenAI-compatible API
                (http://localhost:8000/v1; embed_api.model is the model's name there, and OPENAI_API_KEY the key).
                Empty: the base
    reranker    none, or the model to finetune as a reranker: a decoder (answers Yes or No), an encoder (becomes a
                cross-encoder), or `embedder` (the embedder of the first iteration). A reranker helps most where the
                documents contain the answers
    method      lora (train LoRA adapters), or full (train all weights, with a lower default learning rate)
    keep        the epoch that each finetuning returns: best, or last. all: keep every epoch, and choose with
                --set iter0/choose_reranker.checkpoint=3 (choose_embedder likewise), which trains nothing again
    iterations  number of iterations of mining and finetuning; 0: only evaluate. none: 2, or 1 where a cross-validation
                takes the place of held-out queries
    mining      source of the negatives: each (mined in each iteration), given (the negatives in the data), or
                given_scored (the negatives in the data, with the data's teacher scores)
    distillation  loss on the teacher's scores, see the setting finetune_embedder.distillation; none: no teacher
    teacher     the teacher in all iterations, a reranker: a folder, a hub id, or the URL of a rerank API
                (http://localhost:8000/v1/rerank; rerank_api.model is the model's name there). Empty: the reranker of
                the previous iteration, if it significantly improves the held-out lists
    examples    few-shot examples to put before every query: JSON Lines with `query` and `answer`
    num_examples  number of few-shot examples before each query, drawn from the training queries of other questions (of
                Eedi's with the same construct, if possible); in training a random number of them. 0: none
    generator   a causal language model, or the URL of an OpenAI-compatible API, that writes training queries for
                documents that have none. A generated query is kept if a search with it ranks its document first (also
                after reranking by `teacher`). Empty: none
    queries_per_document  number of queries that the generator writes for each of these documents
    bm25        whether to rank with BM25 too, and fuse it with the models, in additional rows. The fusion weights are
                chosen on the held-out queries. BM25 holds all documents in memory, about 3 KB each. none: yes for up
                to a million documents
    knn         whether to rank the documents of the nearest training queries too, and fuse them likewise. This helps
                most where many queries have the same positives, such as labels. none: yes if iterations > 0, for up to
                a million documents
    predict     new queries without labels. The last models rank documents for them; the best documents are written to
                predictions.csv, .jsonl and .trec (settings: write_predictions.top and .columns)
    split_by    queries that stay in one split: those of a question (question), those that share a positive (document:
                no positive of a test query is a positive of a training query), or no others (query)
    folds       number of folds of a cross-validation of the whole loop; the table then shows means and standard
                deviations. 1: none. none: 1; with fewer than 200 groups of queries and up to 5,000 documents, the
                finetuning is cross-validated with 3 folds: each query is ranked by a model that was not trained on it,
                nothing is held out, and the last model is trained on all queries
    test_fraction  fraction of the questions in the test split; 0: no test split. none: 0.2. Not used with several folds
    validation_fraction  fraction of the other questions that selects checkpoints; 0: no such split, the last epoch is
                kept. none: 0.1
    seed        seed of the split, mining and training"""
    datasets = find_datasets(data, valid, test)
    model = choose_model(base)
    miner: Model | str = model
    if bootstrap not in ("", base):
        miner = choose_model_or_url(bootstrap)
    if generator and mining != "each":
        raise InputError(
            f"generator: {generator} given, with mining={mining}; expected mining=each, since generated queries have no"
            " negatives; leave one of them out"
        )
    if predict and folds and folds > 1:
        raise InputError(
            f"predict: {predict} given, with {folds} folds; expected one model; set folds=1"
        )
    if examples and num_examples:
        raise InputError(
            f"examples: {examples} given, with num_examples={num_examples}; expected one of both; leave one out"
        )
    size, groups = find_size(datasets)
    asked = (predict, generator, examples, num_examples, knn, reranker != "none", mining != "each")
    chosen = (folds, test_fraction, validation_fraction)
    few = size == "few" and not any(asked) and all(one is None for one in chosen)
    few = few and iterations in (None, 1) and split_by == "question" and keep == "best"
    notes = []
    if few:
        iterations = 1
        knn = False
        test_fraction = validation_fraction = 0.0
        notes.append(
            f"{groups}: a cross-validation with {INNER_FOLDS} folds evaluates and decides, and the last model is"
            " trained on all (folds=1 holds some out instead)"
        )
    folds = folds or 1
    iterations = 2 if iterations is None else iterations
    split: dict[str, Any] = {
        "split_by": split_by,
        "folds": folds,
        "test_fraction": 0.2 if test_fraction is None else test_fraction,
        "validation_fraction": 0.1 if validation_fraction is None else validation_fraction,
        "num_examples": num_examples,
        "seed": seed,
        "needs_negatives": mining != "each",
    }
    many = size == "many"
    if many:
        notes.append(
            f"{data}: more than a million documents: batches of 512 queries, and no rows of BM25 and of nearest"
            " training queries unless bm25=true and knn=true"
        )
    summaries = []
    for fold in range(folds):
        folder = f"fold{fold}/" if folds > 1 else ""
        prepared = step(f"{folder}prepare", prepare.JOB, **datasets, fold=fold, **split)
        shown: Source | Output | None = Source.find(examples, "examples") if examples else None
        if num_examples:
            shown = prepared[prepare.EXAMPLES]
        one = RetrievalLoop(
            prepared=prepared,
            embedder=model,
            reranker=choose_reranker(reranker),
            method=method,
            keep=keep,
            mining=mining,
            distillation=distillation,
            teacher=choose_teacher(teacher),
            examples=shown,
            num_examples=num_examples,
            new_queries=prepare_new_queries(predict, "predict", datasets["reading"])
            if predict
            else None,
            bm25=not many if bm25 is None else bm25,
            knn=iterations > 0 and not many if knn is None else knn,
            many_documents=many,
            folds=INNER_FOLDS if few else 0,
            seed=seed,
            folder=folder,
        )
        if generator:
            one = replace(
                one,
                train=add_synthetic_queries(
                    one, miner, choose_generator(generator), queries_per_document
                ),
            )
        summaries.append(one.build_summary(miner, iterations))
    whole = average(summaries) if folds > 1 else summaries[0]
    return replace(whole, notes=[*whole.notes, *notes])
