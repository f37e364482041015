"""Finetune several embedders on the same data, and compare their quality, time and size."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import MinLen

from ratchet.errors import InputError
from ratchet.jobs.comparison import measure_speed
from ratchet.jobs.retrieval import prepare
from ratchet.jobs.retrieval.datasets import find_datasets, find_size
from ratchet.orchestrator.step import Row, Seed, Summary, step
from ratchet.recipes.parts.models import choose_model
from ratchet.recipes.parts.retrieval_loop import INNER_FOLDS, RetrievalLoop

TIME = "ms per query"
SIZE = "MB"


def compare(
    *,
    models: Annotated[tuple[str, ...], MinLen(1)],
    data: str,
    valid: str = "",
    test: str = "",
    method: Literal["lora", "full"] = "lora",
    seed: Seed = 42,
) -> Summary:
    """Finetune each base in one iteration of `retriever`, on the same splits: MAP, milliseconds per query, megabytes.

    The rows of the models rank by their vectors alone. Below stands what each becomes when it is fused with BM25. The
    time is that of one query on the machine that embeds it.

    models      the embedders to finetune: folders, hub ids, or models of runs
    data        the data to train on, in any format of `retriever`
    valid       data that selects checkpoints; empty: a part of data
    test        data that is only evaluated; empty: a part of data
    method      lora (train LoRA adapters), or full (train all weights)
    seed        seed of the split, mining and training"""
    labels = [re.sub(r"[^\w.-]", "_", Path(name).name) for name in models]
    if len(set(labels)) < len(labels):
        raise InputError(
            f"models: {','.join(models)} given; expected models with different names; leave one out, or rename it"
        )
    datasets = find_datasets(data, valid, test)
    size, groups = find_size(datasets)
    split: dict[str, Any] = {}
    folds = 0
    notes = []
    if size == "few":
        folds = INNER_FOLDS
        split = {"test_fraction": 0.0, "validation_fraction": 0.0}
        notes.append(f"{groups}: a cross-validation with {folds} folds evaluates and decides")
    prepared = step("prepare", prepare.JOB, **datasets, **split, seed=seed)
    bases = [choose_model(name) for name in models]
    texts = prepared["train"]
    measured = step("measure_speed", measure_speed.JOB, models=tuple(bases), texts=texts)
    words: list[Row] = []
    dense: list[Row] = []
    fused: list[Row] = []
    best = {}
    for number, (base, label) in enumerate(zip(bases, labels, strict=True)):
        loop = RetrievalLoop(
            prepared=prepared,
            embedder=base,
            method=method,
            bm25=size != "many",
            knn=False,
            many_documents=size == "many",
            folds=folds,
            seed=seed,
            folder=f"{label}/",
        )
        summary = loop.build_summary(base, iterations=1)
        best[label] = summary.best["embedder"]
        cost = {
            TIME: measured.metric(f"{number}/latency"),
            SIZE: measured.metric(f"{number}/megabytes"),
        }
        for row in summary.rows:
            kind = row.label.replace("iteration 0", "finetuned")
            own = replace(row, label=f"{label}, {kind}")
            if row.label == "BM25":
                words = [row]  # the same for all
            elif kind.endswith("fused"):
                fused.append(own)
            else:
                dense.append(replace(own, columns={**row.columns, **cost}))
    quality = next(iter(dense[0].columns))
    plots = [(TIME, quality), (SIZE, quality)]
    return Summary([*words, *dense, *fused], best=best, notes=notes, plots=plots)
