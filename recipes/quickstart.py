"""The main job on generated data: nothing to download, minutes on two cores."""

from __future__ import annotations

from jobs import prepare
from jobs.pretrained import pretrained
from orchestrator.step import Summary, step
from recipes.misconceptions import Loop


def quickstart(
    *,
    questions: int = 320,
    base: str = "sentence-transformers/all-MiniLM-L6-v2",
    iterations: int = 2,
    window: tuple[int, int] = (1, 40),
    negatives: int = 8,
    epochs: int = 2,
    learning_rate: float = 1e-3,
    temperature: float = 0.05,
    reranker: bool = True,
    reranker_epochs: tuple[int, ...] = (3, 1),
    seed: int = 42,
) -> Summary:
    """Two iterations of mine, finetune, rerank, teach, evaluate on generated students' mistakes; on two CPU cores.

    questions   multiple-choice questions to generate; each wrong option is computed by a wrong procedure
    base        the model that becomes embedder and reranker: a folder or a hub id
    iterations  how often to go round
    window      candidates by rank that negatives are drawn from
    negatives   hard negatives that are mined per query
    epochs      of each finetune of the embedder; the best by held-out MAP@25 is kept
    learning_rate, temperature  of each finetune of the embedder
    reranker    also train a reranker, and let it teach the next embedder; it takes most of the time
    reranker_epochs  of its finetune in each iteration; the first begins with what the embedder has learned
    seed        of the questions, of the split, of mining and of training
    """
    model = pretrained(base)
    return Loop(
        step("prepare", prepare.JOB, questions=questions, seed=seed),
        embedder=model,
        reranker="embedder" if reranker else None,
        mining="each",
        window=window,
        reranker_window=window,
        negatives=negatives,
        depth=10,
        seed=seed,
        embedder_training={
            "epochs": epochs,
            "learning_rate": learning_rate,
            "temperature": temperature,
            "start": "incumbent",
            "distillation": "kl_div",
        },
        reranker_epochs=reranker_epochs,
        reranker_training={
            "learning_rate": 1e-3,
            "negatives": 2,
            "batch": 32,
            "start": "incumbent",
            "distillation": "kl_div",
            "label_smoothing": 0.2,
        },
    ).summary(model, iterations)
