"""Which misunderstanding leads a student to a wrong answer? Retrieval, trained in iterations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jobs import embed, evaluate_retrieval, finetune_embedder, mine, prepare
from jobs.pretrained import pretrained
from orchestrator.step import Output, Row, Source, Step, Summary, step


def misconceptions(
    *,
    data: str,
    base: str = "sentence-transformers/all-MiniLM-L6-v2",
    bootstrap: str = "",
    iterations: int = 2,
    window: tuple[int, int] = (2, 200),
    negatives: int = 15,
    epochs: int = 2,
    learning_rate: float = 1e-3,
    temperature: float = 0.05,
    start: Literal["base", "incumbent"] = "incumbent",
    seed: int = 42,
) -> Summary:
    """Mine hard negatives, finetune the embedder on them, mine again with it; MAP@25 on held-out questions.

    data        Eedi's CSVs, FlagEmbedding JSONL or a BEIR folder
    base        the model to finetune: a folder or a hub id
    bootstrap   the model that mines first; empty: the base
    iterations  how often to mine and finetune
    window      candidates by rank that negatives are drawn from
    negatives   hard negatives per query
    epochs      of each finetune; the best by held-out MAP@25 is kept
    learning_rate, temperature  good for small encoders; a large model wants a rate of 1e-4 or less
    start       each finetune goes on from the last model (incumbent), or begins anew (base)
    seed        of the split, of mining and of training
    """
    prepared = step("prepare", prepare.JOB, data=Source(Path(data), label=data), seed=seed)
    return iterate(
        prepared,
        Embedder(pretrained(base)),
        Embedder(pretrained(bootstrap or base)),
        iterations=iterations,
        window=window,
        negatives=negatives,
        seed=seed,
        training={"epochs": epochs, "learning_rate": learning_rate, "temperature": temperature, "start": start},
    )


class Embedder(NamedTuple):
    """A base model, and the adapter that finetuning added."""

    base: Source
    adapter: Output | None = None


def iterate(
    prepared: Step,
    first: Embedder,
    miner: Embedder,
    *,
    iterations: int,
    window: tuple[int, int],
    negatives: int,
    seed: int,
    training: Mapping[str, Any],
) -> Summary:
    """The loop itself, over a step with the folders corpus, train, valid and test.

    first: what is finetuned. miner: what mines first. training: settings of the finetunes.
    """
    corpus, train, valid, test = (prepared[part] for part in ("corpus", "train", "valid", "test"))

    def embedded(name: str, model: Embedder, texts: Output, role: str) -> Step:
        return step(name, embed.JOB, model=model.base, adapter=model.adapter, texts=texts, role=role)

    def evaluated(at: str, model: Embedder, vectors: Step, before: Step | None) -> Step:
        return step(
            f"{at}/evaluate",
            evaluate_retrieval.JOB,
            queries=test,
            corpus=corpus,
            query_embeddings=embedded(f"{at}/embed_test", model, test, "query"),
            corpus_embeddings=vectors,
            before=before,
            tag=at,
        )

    bm25 = step("bm25/evaluate", evaluate_retrieval.JOB, queries=test, corpus=corpus, system="bm25", tag="bm25")
    vectors = embedded("zero_shot/embed_corpus", miner, corpus, "passage")
    zero_shot = evaluated("zero_shot", miner, vectors, None)
    rows = [row("BM25", bm25), row("zero-shot", zero_shot)]

    incumbent = first.adapter
    for i in range(iterations):
        at = f"iter{i}"
        mined = step(
            f"{at}/mine",
            mine.JOB,
            queries=train,
            corpus=corpus,
            query_embeddings=embedded(f"{at}/embed_train", miner, train, "query"),
            corpus_embeddings=vectors,
            window=window,
            negatives=negatives,
            seed=seed + i,
        )
        tuned = step(
            f"{at}/finetune_embedder",
            finetune_embedder.JOB,
            base=first.base,
            mined=mined,
            corpus=corpus,
            valid=valid,
            incumbent=incumbent,
            seed=seed + i,
            **training,
        )
        incumbent = tuned["adapter"]
        miner = Embedder(first.base, incumbent)
        vectors = embedded(f"{at}/embed_corpus", miner, corpus, "passage")
        evaluation = evaluated(at, miner, vectors, before=zero_shot)
        rows.append(row(f"iteration {i}", evaluation, tuned, mined))
    return Summary(rows)


def row(label: str, evaluation: Step, tuned: Step | None = None, mined: Step | None = None) -> Row:
    """One line of the final table."""
    columns = {"loss": tuned.metric("loss")} if tuned else {}
    columns |= {"MAP@25": evaluation.metric("map@25"), "R@25": evaluation.metric("r@25")}
    return Row(label, columns, steps=[s for s in (mined, tuned, evaluation) if s])
