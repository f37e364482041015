"""clean_queries: the answers of `generate` to `prepare_query_generation` -> distinct queries, each with its document.

An answer is read up to the end of its first line. Empty answers, copies of the document, and repetitions of another
query of the document or of a training query are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from ratchet.orchestrator.job_interface import Job, Unit

COUNTS_FILE = "counts.json"
"""How many answers there were, and how many were left out, for `filter_queries`."""
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
    """Shards of training queries. The new ones get their most frequent instructions."""


JOB = Job("clean_queries", config=Config, inputs=Inputs, resources=("retries",), metrics=lambda config: COUNTS)
