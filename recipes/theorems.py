"""Which statements belong together? Contrast on pairs of one paper at a large global batch, exact metrics over all."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from jobs import embed, evaluate_papers, finetune_pairs, merge, prepare_papers
from jobs.pretrained import pretrained
from orchestrator.step import Output, Row, Source, Step, Summary, step


def theorems(
    *,
    data: str,
    base: str = "sentence-transformers/all-MiniLM-L6-v2",
    test_fraction: float = 0.2,
    max_papers: int | None = None,
    max_statements: int | None = None,
    batch: tuple[int, ...] = (1024,),
    drop_last: bool = True,
    temperature: float = 0.07,
    mask_paper: bool = True,
    epochs: int = 10,
    learning_rate: float = 1e-3,
    warmup_steps: int | None = None,
    weight_decay: float = 0.01,
    rank: int = 8,
    alpha: float = 16.0,
    dropout: float = 0.0,
    targets: str = "all-linear",
    max_length: int = 256,
    projection: int | None = None,
    quantization: Literal["none", "nf4"] = "none",
    gradient_checkpointing: bool = False,
    baselines: tuple[str, ...] = ("bm25", "jaccard"),
    baseline_queries: int = 5000,
    seed: int = 42,
) -> Summary:
    """Split papers, finetune on pairs of statements of one paper, embed all held-out statements, rank all against all.

    The published run: --set base=Qwen/Qwen2.5-Math-7B --set batch=16384 --set dropout=0.05
    --set targets=q_proj,k_proj,v_proj,o_proj --set quantization=nf4 --set gradient_checkpointing=true
    --set warmup_steps=200 --set projection=2048 --set mask_paper=false --set finetune_pairs.micro_batch=8

    data        JSONL with a paper a line (`lemmas`, `theorems`, `arxiv_id`), or a folder of such files
    base        the embedder to finetune: a folder or a hub id
    test_fraction  share of the papers that is held out
    max_papers, max_statements  a sample of the papers, and of each paper's statements
    batch       pairs per optimizer step over all workers; of each epoch, as in 64,64,1024, the last for all that follow
    drop_last   leave out an epoch's last pairs where they do not fill a batch
    temperature  similarities are divided by it
    mask_paper  other statements of the same paper are no negatives
    epochs      of the finetune; the best by MRR on validation papers is kept
    learning_rate, weight_decay  AdamW's
    warmup_steps  until the rate is at its highest; a cosine follows; none: a tenth of all steps
    rank, alpha  LoRA's: its update is scaled by alpha / rank
    dropout, targets  LoRA's: share of its inputs, and names of the layers that get it, or all-linear
    max_length  tokens of a statement
    projection  dimensions of the vectors, by a linear layer that is trained too
    quantization  nf4: the base in 4 bits (QLoRA)
    gradient_checkpointing  less memory, a third slower
    baselines, baseline_queries  rows by words (bm25, jaccard), and how many statements each asks, against all
    seed        of the samples, of the split and of training
    """
    prepared = step(
        "prepare",
        prepare_papers.JOB,
        papers=Source(Path(data), label=data),
        test_fraction=test_fraction,
        max_papers=max_papers,
        max_statements=max_statements,
        seed=seed,
    )
    model = pretrained(base)
    rows = [
        row(
            system,
            step(
                f"{system}/evaluate",
                evaluate_papers.JOB,
                statements=prepared["test"],
                system=system,
                max_queries=baseline_queries,
                seed=seed,
            ),
        )
        for system in baselines
    ]
    rows.append(row("zero-shot", evaluated("zero_shot", prepared, model, max_length)))
    tuned = step(
        "finetune_pairs",
        finetune_pairs.JOB,
        base=model,
        train=prepared["train"],
        valid=prepared["valid"],
        batch=batch,
        drop_last=drop_last,
        temperature=temperature,
        mask_paper=mask_paper,
        epochs=epochs,
        learning_rate=learning_rate,
        warmup_steps=warmup_steps,
        weight_decay=weight_decay,
        rank=rank,
        alpha=alpha,
        dropout=dropout,
        targets=targets,
        max_length=max_length,
        projection=projection,
        quantization=quantization,
        gradient_checkpointing=gradient_checkpointing,
        seed=seed,
    )
    merged = step(
        "merge", merge.JOB, base=model, adapter=tuned["adapter"], corpus=prepared["test"], allow_unchanged=True
    )["model"]
    rows.append(row("finetuned", evaluated("finetuned", prepared, merged, None), tuned))
    return Summary(rows)


def evaluated(name: str, prepared: Step, model: Source | Output, max_length: int | None) -> Step:
    vectors = step(f"{name}/embed", embed.JOB, model=model, texts=prepared["test"], max_length=max_length)
    return step(f"{name}/evaluate", evaluate_papers.JOB, statements=prepared["test"], embeddings=vectors)


def row(label: str, evaluation: Step, tuned: Step | None = None) -> Row:
    """One line of the final table."""
    columns = {"loss": tuned.metric("loss")} if tuned else {}
    for name in ("mrr", "map", "p@1", "r@10", "r@100", "r@1000"):
        columns[name.upper()] = evaluation.metric(name)
    return Row(label, columns, steps=[tuned, evaluation] if tuned else [evaluation])
