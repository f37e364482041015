"""fit_label_prior: how much more often documents with many training queries are wanted, as a score of each document.

    score(query, document) = similarity + weight * log(1 + training queries of the document)

With in-batch negatives, which are drawn as often as documents are labels, the similarity of a finetuned embedder tells
how much a query raises the probability of a document, and not the probability itself (Yi et al. 2019,
"Sampling-bias-corrected neural modeling for large corpus item recommendations"). The prior puts that back; in theory
the weight is the temperature of training. It serves queries with seen labels at the cost of those with unseen ones. The
weight is therefore the one with the best metric on held-out queries, of those that leave unseen labels no worse than
the model before training found them; it is 0 unless it is significantly better than none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Interval

from ratchet.errors import InputError
from ratchet.jobs.training.config import check_retrieval_metric
from ratchet.orchestrator.job_interface import Job


@dataclass(frozen=True)
class Config:
    weights: tuple[Annotated[float, Ge(0)], ...] = (0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15)
    """Weights that are tried, for vectors of length 1. They are multiplied by the mean product of the lengths."""
    metric: str = "map@25"
    """Metric on `valid` that chooses the weight."""
    significance_level: Annotated[float, Interval(gt=0, le=1)] = 0.05
    """Largest p-value at which a prior is used: a paired test over groups of queries, corrected for the choice of the
    best weight."""


@dataclass(frozen=True)
class Inputs:
    train: Path
    """Training queries with their positives, which are counted."""
    valid: Path
    """Held-out queries with their positives."""
    corpus: Path
    """Shards of documents."""
    query_embeddings: Path
    """Vectors of `valid`."""
    corpus_embeddings: Path
    """Vectors of `corpus`."""
    reference: Path | None = None
    """The `per_query.parquet` of an evaluation of `valid` by the model before training, which sets how good unseen
    labels must stay. None: as good as without a prior."""


def check(config: Config, inputs: Inputs) -> None:
    if not config.weights:
        raise InputError("fit_label_prior.weights: none given; expected one or more above 0; give some")
    check_retrieval_metric("fit_label_prior", config.metric)


JOB = Job(
    "fit_label_prior",
    config=Config,
    inputs=Inputs,
    resources=("cpus", "memory", "retries"),
    check=check,
    single_process=True,
    outputs=("prior",),
    metrics=lambda config: ("weight", "p_value", f"valid/{config.metric}", f"valid/{config.metric}_start"),
)
"""`prior` has the columns `id` and `prior`, the score that is added, float32. All vectors of the held-out queries, and
one block of the corpus at a time, are in memory."""
