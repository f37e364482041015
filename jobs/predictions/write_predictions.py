"""write_predictions: a ranking -> the first documents of each query as CSV, JSON Lines and a TREC run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import Job, Unit

FILES = ("predictions.csv", "predictions.jsonl", "predictions.trec")


@dataclass(frozen=True)
class Config:
    top: Annotated[int, Ge(1), Unit("documents")] = 25
    """Documents per query."""
    columns: tuple[str, str] = ("query", "documents")
    """Header of the CSV file, such as `QuestionId_Answer,MisconceptionId`. Ids of documents are separated by
    spaces; a space in an id is written as `%20`, here and in the TREC run."""
    tag: str = "ratchet"
    """Name of the system in the TREC run."""


@dataclass(frozen=True)
class Inputs:
    ranking: Path
    """Ranked documents, as written by `evaluate_retrieval`."""
    corpus: Path
    """Shards of documents with their texts, which the JSON Lines have."""


def check(config: Config, inputs: Inputs) -> None:
    if not config.tag or any(letter.isspace() for letter in config.tag):
        raise InputError(f"write_predictions.tag: '{config.tag}' given; expected one word, a column of the TREC run")


JOB = Job(
    "write_predictions",
    config=Config,
    inputs=Inputs,
    resources=("retries",),
    check=check,
    outputs=FILES,
    metrics=lambda config: ("queries", "documents"),
)
