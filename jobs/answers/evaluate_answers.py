"""evaluate_answers: verify answers with the task's verifier, and report pass@k, scores, tokens and failures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, MinLen

from ratchet.orchestrator.job_interface import Job


@dataclass(frozen=True)
class Config:
    k: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)] = (1, 2, 4, 8)
    """Values of k for pass@k. Values above the number of completions per question are skipped."""


@dataclass(frozen=True)
class Inputs:
    completions: Path
    """The output of `generate`."""


def list_metrics(config: Config) -> list[str]:
    scores = ("em", "f1", "lenient", "score", "questions", "questions_per_group", "latency")
    tokens = ("prompt_tokens", "generated_tokens", "prompt_tokens_api")
    return [*(f"pass@{k}" for k in config.k), *scores, *tokens]


JOB = Job("evaluate_answers", config=Config, inputs=Inputs, resources=("retries",), metrics=list_metrics)
