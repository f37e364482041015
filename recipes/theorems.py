"""Retrieve statements of the same paper: contrastive finetuning with a large global batch, and exact metrics."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from ratchet.errors import InputError
from ratchet.jobs.retrieval import embed, merge
from ratchet.jobs.statements import evaluate_papers, finetune_embedder_pairs, prepare_papers
from ratchet.orchestrator.step import (
    FractionBelowOne,
    Output,
    Row,
    Seed,
    Source,
    Step,
    Summary,
    step,
)
from ratchet.recipes.parts.models import Adapted, Model, choose_model, list_inputs


def theorems(
    *,
    data: str,
    valid: str = "",
    test: str = "",
    validation_fraction: FractionBelowOne = 0.02,
    base: str = "sentence-transformers/all-MiniLM-L6-v2",
    adapter: str = "",
    projection: str = "",
    max_length: Annotated[int, Ge(4)] = 256,
    bm25: bool = True,
    seed: Seed = 42,
) -> Summary:
    """Split papers, finetune on pairs of statements of one paper, then rank all test statements for each of them.

    The published run: --settings published/theorems

    data        JSONL with one paper per line (`lemmas`, `theorems`, `arxiv_id`), or a folder of such files
    valid       papers that select checkpoints, in the same format; empty: a part of data
    test        papers that are only evaluated, in the same format; empty: a part of data
    validation_fraction  part of the papers of data that selects checkpoints, without valid. 0: none; nothing is
                evaluated during training, and the model of the last epoch is kept
    base        the embedder to finetune: a folder or a hub id
    adapter     a LoRA adapter of the base in PEFT's format; it is merged into the base, and training starts from there
    projection  the linear layer (.pt) that the theorem scripts of CITER save beside an adapter; the model then pools
                as these scripts do. Empty: NAME_projection.pt for an adapter named NAME_lora_adapters, else none
    max_length  maximum tokens per statement, in training and for the zero-shot baseline
    bm25        whether to rank with BM25 too
    seed        seed of the samples, the split and training"""
    papers = find_given(valid=valid, test=test)
    prepared = step(
        "prepare",
        prepare_papers.JOB,
        papers=Source.find(data),
        validation_fraction=validation_fraction,
        seed=seed,
        **papers,
    )
    model: Source | Output = choose_model(base)
    folder = Path(adapter)
    if not projection and "_lora_adapters" in folder.name:
        projection = str(
            folder.with_name(folder.name.replace("_lora_adapters", "_projection") + ".pt")
        )
    if projection and not adapter:
        raise InputError(
            f"projection: {projection} given, without adapter; expected both; set adapter=FOLDER too"
        )
    start = find_given(adapter=adapter, projection=projection)
    if start:
        model = step("start/merge", merge.JOB, base=model, corpus=prepared["test"], **start)[
            "model"
        ]
    sampled: dict[str, Any] = {"statements": prepared["test"], "max_queries": 5000, "seed": seed}
    rows = []
    if bm25:
        rows.append(
            make_row("BM25", step("bm25/evaluate", evaluate_papers.JOB, system="bm25", **sampled))
        )
    if start:
        label = "given adapter"
        name = "start"
    else:
        label = "zero-shot"
        name = "zero_shot"
    rows.append(make_row(label, evaluate(name, prepared["test"], model, max_length)))
    finetuned = step(
        "finetune_embedder_pairs",
        finetune_embedder_pairs.JOB,
        base=model,
        train=prepared["train"],
        valid=prepared["valid"] if valid or validation_fraction else None,
        epochs=10,
        learning_rate=1e-3,
        lora_r=8,
        lora_alpha=16.0,
        max_length=max_length,
        seed=seed,
    )
    merged = step(
        "merge",
        merge.JOB,
        base=model,
        adapter=finetuned["adapter"],
        corpus=prepared["test"],
        allow_unchanged=True,
    )["model"]
    adapted = Adapted(model, finetuned["adapter"], merged)
    last = make_row("finetuned", evaluate("finetuned", prepared["test"], adapted, None), finetuned)
    return Summary(
        [*rows, replace(last, model=merged)],
        best={"embedder": merged},
        comparisons=[(label, last.label)],
    )


def find_given(**paths: str) -> dict[str, Any]:
    """Return parameter -> Source for the paths that are not empty."""
    return {name: Source.find(path, name) for name, path in paths.items() if path}


def evaluate(name: str, statements: Output, model: Model, max_length: int | None) -> Step:
    """Embed statements, rank all of them for each statement, and return the evaluation."""
    inputs: dict[str, Any] = {**list_inputs(model), "texts": statements}
    vectors = step(f"{name}/embed", embed.JOB, **inputs, max_length=max_length)
    return step(f"{name}/evaluate", evaluate_papers.JOB, statements=statements, embeddings=vectors)


def make_row(label: str, evaluation: Step, finetuned: Step | None = None) -> Row:
    """Return a row of the summary table."""
    columns = {"loss": finetuned.metric("loss")} if finetuned else {}
    for name in ("mrr", "map", "p@1", "r@10", "r@100", "r@1000"):
        columns[name.upper()] = evaluation.metric(name)
    if finetuned is None:
        return Row(label, columns, steps=[evaluation], baseline=True)
    return Row(label, columns, steps=[finetuned, evaluation])
