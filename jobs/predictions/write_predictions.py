"""write_predictions: write the best documents of each query as CSV, JSON Lines and a TREC run."""

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
    """Maximum number of documents per query."""
    columns: tuple[str, str] = ("query", "documents")
    """Header of the CSV file, such as `QuestionId_Answer,MisconceptionId`. The ids of documents are separated by
    spaces; a space in an id is written as `%20`, also in the TREC run."""
    tag: str = "ratchet"
    """Name of the system in the TREC run."""


@dataclass(frozen=True)
class Inputs:
    ranking: Path
    """A ranking, as written by `evaluate_retrieval` or `fuse`."""
    corpus: Path
    """Shards of documents, whose texts are written to the JSON Lines file."""


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
