"""Teachers: rerankers whose scores of the mined lists are distilled."""

import difflib
from dataclasses import dataclass
from typing import Literal

from ratchet.errors import ModelError
from ratchet.orchestrator.step import Output, Source, Step
from ratchet.recipes.parts.models import Model, choose_model, choose_model_or_url
from ratchet.recipes.parts.predictions import score_lists


@dataclass(frozen=True)
class Teacher:
    """A reranker whose scores are distilled."""

    model: Model | str
    """A model, or the URL (str) of a rerank API."""
    gate: Output | None = None
    """The output `teacher_gate` of a `finetune_reranker` step. None: the teacher is always used."""

    def score(self, name: str, mined: Step | Output, corpus: Output) -> Step | Output:
        """Add the teacher's scores to the mined lists."""
        gate = {} if self.gate is None else {"teacher_gate": self.gate}
        return score_lists(name, self.model, mined, corpus, **gate)


def choose_teacher(name: str) -> Teacher | None:
    """Convert the recipe parameter `teacher`: empty, the URL of a rerank API, or a model."""
    if not name:
        return None
    return Teacher(choose_model_or_url(name))


def choose_reranker(name: str) -> Source | Output | Literal["embedder"] | None:
    """Convert the recipe parameter `reranker`: none, embedder, or a model."""
    if name in ("none", "embedder"):
        if name == "none":
            return None
        return "embedder"
    try:
        return choose_model(name)
    except ModelError as error:
        near = difflib.get_close_matches(name, ("none", "embedder"), n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise ModelError(f"reranker: {error}; none and embedder are possible too{hint}") from None
