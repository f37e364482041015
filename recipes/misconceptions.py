"""Find the misconception behind a student's wrong answer (Eedi): retrieval and reranking, trained in iterations."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Interval

from ratchet.orchestrator.step import Seed, Summary
from ratchet.recipes._retrieval_loop import Distillation, Mining
from ratchet.recipes.retriever import retriever


def misconceptions(
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
    """Iterate mining and finetuning on Eedi's questions, in the published setting: MAP@25, 15 mined negatives.

    data        the folder with Eedi's train.csv and misconception_mapping.csv
    base        the embedder to finetune: a folder or a hub id
    bootstrap   the model that mines first; empty: the base
    reranker    none, or the model to finetune as a reranker (a decoder answers Yes or No, an encoder becomes a
                cross-encoder); `embedder`: the embedder of the first iteration
    iterations  number of iterations
    mining      where negatives come from: mined in each iteration (each), given by the data (given), or given with a
                teacher's scores (given_scored)
    distillation  how the reranker of one iteration teaches the finetunes of the next
    examples    few-shot examples in front of every query: JSON Lines with `query` and `answer`
    ablations   also iterate without a teacher and without mining, in the same table
    seed        of the split, of mining and of training
    """
    return retriever(**locals())  # the same parameters
