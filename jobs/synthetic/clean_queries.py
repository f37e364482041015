"""clean_queries: convert the answers of `generate` into distinct queries, each with its document as the positive.

The answers are those to the prompts of `prepare_query_generation`. Only the first line of an answer is used. Empty
answers, copies of the document, and duplicates of another query of the document or of a training query are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from ratchet.orchestrator.job_interface import Job, Unit

COUNTS_FILE = "counts.json"
"""File with the numbers of answers and of left-out answers, for `filter_queries`."""
COUNTS = ("completions", "empty", "copies", "duplicates", "queries")


@dataclass(frozen=True)
class Config:
    shard_rows: Annotated[int, Ge(1), Unit("rows")] = 4096
    """Rows per shard."""


@dataclass(frozen=True)
class Inputs:
    completions: Path
    """The output of `generate`."""
    train: Path
    """Shards of training queries. Synthetic queries get their most frequent task and prompt."""


JOB = Job("clean_queries", config=Config, inputs=Inputs, resources=("retries",), metrics=lambda config: COUNTS)
