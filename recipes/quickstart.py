"""One iteration of the retrieval loop on generated questions: no data to download, a few minutes on two CPU cores."""

from typing import Annotated

from annotated_types import Interval

from ratchet.jobs.retrieval import prepare
from ratchet.orchestrator.step import Seed, Summary, step
from ratchet.recipes.parts.models import choose_model
from ratchet.recipes.parts.retrieval_loop import RetrievalLoop


def quickstart(
    *,
    questions: Annotated[int, Interval(ge=1, le=800)] = 320,
    base: str = "sentence-transformers/all-MiniLM-L6-v2",
    iterations: Annotated[int, Interval(ge=0, le=1000)] = 1,
    reranker: bool = False,
    seed: Seed = 42,
) -> Summary:
    """Mine, finetune and evaluate on multiple-choice questions, on two CPU cores.

    questions   number of multiple-choice questions; each wrong option is computed by a wrong procedure
    base        the model to finetune as embedder and as reranker: a folder or a hub id
    iterations  number of iterations; a second one improves little with so few questions
    reranker    also train a reranker, the teacher of the next iteration; this takes most of the time
    seed        seed of the split, mining and training"""
    model = choose_model(base)
    return RetrievalLoop(
        prepared=step("prepare", prepare.JOB, questions=questions, unseen_fraction=0.25, seed=seed),
        embedder=model,
        reranker="embedder" if reranker else None,
        window=(1, 40),
        reranker_window=(1, 40),
        num_negatives=8,
        depth=10,
        seed=seed,
        reranker_settings={"num_negatives": 2, "batch_size": 32},
    ).build_summary(model, iterations)
