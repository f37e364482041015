"""Finetune a retriever on your own data: mine hard negatives, finetune, mine again; optionally with a reranker."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Interval

from ratchet.jobs.pretrained import pretrained
from ratchet.jobs.retrieval import prepare
from ratchet.orchestrator.step import Seed, Source, Summary, step
from ratchet.recipes._retrieval_loop import Distillation, Mining, RetrievalLoop, choose_reranker


def retriever(
    *,
    data: str,
    base: str = "sentence-transformers/all-MiniLM-L6-v2",
    bootstrap: str = "",
    reranker: str = "none",
    iterations: Annotated[int, Interval(ge=0, le=1000)] = 2,
    mining: Mining = "each",
    distillation: Distillation = "kl_div",
    examples: str = "",
    ablations: bool = False,
    seed: Seed = 42,
) -> Summary:
    """Iterate mining and finetuning on your own data, with defaults for small encoders.

    A large model needs a lower rate: --set finetune_embedder.learning_rate=1e-4

    data        FlagEmbedding JSONL, a BEIR folder or Eedi's CSVs
    base        the embedder to finetune: a folder or a hub id
    bootstrap   the model that mines first; empty: the base
    reranker    none, or the model to finetune as a reranker (a decoder answers Yes or No, an encoder becomes a
                cross-encoder); `embedder`: the embedder of the first iteration; quick if that is a small encoder
    iterations  number of iterations
    mining      where negatives come from: mined in each iteration (each), given by the data (given), or given with a
                teacher's scores (given_scored)
    distillation  how the reranker of one iteration teaches the finetunes of the next
    examples    few-shot examples in front of every query: JSON Lines with `query` and `answer`
    ablations   also iterate without a teacher and without mining, in the same table
    seed        of the split, of mining and of training
    """
    return RetrievalLoop(
        step("prepare", prepare.JOB, data=Source.find(data), seed=seed),
        embedder=pretrained(base),
        reranker=choose_reranker(reranker),
        mining=mining,
        distillation=distillation,
        examples=Source.find(examples, "examples") if examples else None,
        seed=seed,
    ).build_summary(pretrained(bootstrap or base), iterations, ablations=ablations)
