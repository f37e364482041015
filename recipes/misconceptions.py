"""Find the misconception behind a student's wrong answer (Eedi): retrieval and reranking, trained in iterations."""

from functools import wraps
from typing import Any

from ratchet.orchestrator.step import Summary
from ratchet.recipes.retriever import retriever


@wraps(retriever, assigned=("__annotations__",))  # the same parameters
def misconceptions(**parameters: Any) -> Summary:
    """Iterate mining and finetuning on Eedi's questions, evaluated by MAP@25, with 15 mined negatives per query.

    The published runs: --settings published/misconceptions-cv (or -icl, or -submission)"""
    return retriever(**parameters)


misconceptions.__doc__ = "\n\n    ".join(
    [misconceptions.__doc__ or "", (retriever.__doc__ or "").split("\n\n    ")[-1]]
)
