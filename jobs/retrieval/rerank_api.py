"""rerank_api: score lists of documents with a reranker behind an HTTP API. The output is the same as that of `rerank`.

The API key is read from the environment variable `key_variable` by the process that sends the requests. It is not part
of the fingerprint. Answers are stored as they arrive, so a killed run does not repeat requests.
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
    """URL that requests are posted to, such as http://localhost:8000/v1/rerank."""
    model: str = ""
    """Name of the model in requests, for servers with several models. Empty: no name is sent."""
    api: Api = "cohere"
    """Format of requests and answers: `cohere` (also Jina and vLLM) or `tei` (text-embeddings-inference)."""
    probabilities: bool = True
    """Whether the server returns probabilities (0 to 1). They are then written as logits, log(p / (1 - p)), which the
    distillation losses expect. Ignored for `tei`, which is asked for logits."""
    depth: Annotated[int, Ge(1), Unit("documents")] | None = None
    """Number of top documents of each ranking to score. None: all. Mined lists are always scored as a whole."""
    concurrency: Annotated[int, Ge(1), Unit("requests")] = 8
    """Maximum number of concurrent requests."""
    timeout: Annotated[float, Gt(0), Unit("seconds")] = 60.0
    """Maximum time without data from the server. The request is then tried again."""
    key_variable: str = "RERANK_API_KEY"
    """Name of the environment variable with the API key, which is sent as a bearer token."""


@dataclass(frozen=True)
class Inputs:
    lists: Path
    """Shards of queries with lists of document ids, as written by `mine` or `evaluate_retrieval`."""
    corpus: Path
    """Shards of documents (columns id and text) that contain all documents of the lists."""


def check(config: Config, inputs: Inputs) -> None:
    check_url("rerank_api.url", config.url)


JOB = Job("rerank_api", config=Config, inputs=Inputs, check=check, single_process=True, resources=("retries",))
"""A single process is enough to send the requests, since the server does the work."""
