"""The main job on generated data: nothing to download, minutes on two cores."""

from __future__ import annotations

from jobs import prepare
from jobs.pretrained import pretrained
from orchestrator.step import Summary, step
from recipes.misconceptions import Embedder, iterate


def quickstart(
    *,
    questions: int = 500,
    base: str = "sentence-transformers/all-MiniLM-L6-v2",
    iterations: int = 2,
    window: tuple[int, int] = (1, 40),
    negatives: int = 8,
    epochs: int = 2,
    learning_rate: float = 1e-3,
    temperature: float = 0.05,
    seed: int = 42,
) -> Summary:
    """Two iterations of mine, finetune, evaluate on generated students' mistakes; minutes on two CPU cores.

    questions   multiple-choice questions to generate; each wrong option is computed by a wrong procedure
    base        the model to finetune: a folder or a hub id
    iterations  how often to mine and finetune
    window      candidates by rank that negatives are drawn from
    negatives   hard negatives per query
    epochs      of each finetune; the best by held-out MAP@25 is kept
    learning_rate, temperature  of each finetune
    seed        of the questions, of the split, of mining and of training
    """
    prepared = step("prepare", prepare.JOB, questions=questions, seed=seed)
    model = Embedder(pretrained(base))
    return iterate(
        prepared,
        model,
        model,
        iterations=iterations,
        window=window,
        negatives=negatives,
        seed=seed,
        training={
            "epochs": epochs,
            "learning_rate": learning_rate,
            "temperature": temperature,
            "start": "incumbent",
        },
    )
