"""rerank_api: score lists of passages by a reranker behind an HTTP API. The output is that of `rerank`.

The environment variable that `key_variable` names may hold the key. It is read by the worker that sends the requests,
and is no part of the result's identity. Answers are kept as they arrive, so that a killed run does not ask again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt

from ratchet.models.reranker.remote import Api, check_url
from ratchet.orchestrator.job_interface import Job, Unit


@dataclass(frozen=True)
class Config:
    url: str
    """The address that requests are posted to, such as http://localhost:8000/v1/rerank."""
    model: str = ""
    """The model's name, where the server has several."""
    api: Api = "cohere"
    """Format of requests: Cohere's, which Jina and vLLM have too, or text-embeddings-inference's (tei)."""
    probabilities: bool = True
    """Whether the scores are between 0 and 1. They are then written as logits, log(p / (1 - p)), which is what losses
    on a teacher's scores expect. text-embeddings-inference is asked for logits, so that this is ignored."""
    depth: Annotated[int, Ge(1), Unit("documents")] | None = None
    """Number of documents of each ranking that are scored. None: all."""
    concurrency: Annotated[int, Ge(1), Unit("requests")] = 8
    """Requests in flight."""
    timeout: Annotated[float, Gt(0), Unit("seconds")] = 60.0
    """Time that the server may be silent."""
    key_variable: str = "RERANK_API_KEY"
    """Name of the environment variable with the key, which is sent as a bearer token."""


@dataclass(frozen=True)
class Inputs:
    lists: Path
    """Shards of queries with lists of document ids, as written by `mine` and `evaluate_retrieval`."""
    corpus: Path
    """Shards of documents with the texts of these ids."""


def check(config: Config, inputs: Inputs) -> None:
    check_url("rerank_api.url", config.url)


JOB = Job("rerank_api", config=Config, inputs=Inputs, check=check, single_process=True, resources=("retries",))
"""One process sends the requests: the server does the work."""
