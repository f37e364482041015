"""rerank_api: score lists of documents with a reranker behind an HTTP API. The output is the same as that of `rerank`.

The API key is read from the environment variable `key_variable` by the process that sends the requests. It is not part
of the fingerprint. Answers are stored as they arrive, so a killed run does not repeat requests.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ratchet.jobs.distributed.requests import check_url, read_key
from ratchet.models.reranker.remote import Api
from ratchet.orchestrator.job_interface import (
    Context,
    Job,
    Neutral,
    Parents,
    PositiveFloat,
    PositiveInt,
    Result,
    Unit,
)

if TYPE_CHECKING:
    import numpy as np

SMALLEST = 1e-6

"""Probabilities are clipped to [SMALLEST, 1 - SMALLEST], so that their logits are finite in float32."""


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
    depth: Annotated[PositiveInt, Unit("documents")] | None = None
    """Number of top documents of each ranking to score. None: all. Mined lists are always scored as a whole."""
    concurrency: Annotated[PositiveInt, Unit("requests"), Neutral()] = 8
    """Maximum number of concurrent requests."""
    timeout: Annotated[PositiveFloat, Unit("seconds"), Neutral()] = 60.0
    """Maximum time without data from the server. The request is then tried again."""
    key_variable: Annotated[str, Neutral()] = "RERANK_API_KEY"
    """Name of the environment variable with the API key, which is sent as a bearer token. It ends with `_API_KEY`, so
    that no settings file can ask for another secret."""


@dataclass(frozen=True)
class Inputs:
    lists: Path
    """Shards of queries with lists of document ids, as written by `mine` or `evaluate_retrieval`."""
    corpus: Path
    """Shards of documents (columns id and text) that contain all documents of the lists."""


def check(config: Config, inputs: Inputs, parents: Parents) -> None:
    check_url("rerank_api.url", config.url)
    read_key("rerank_api", config.url, config.key_variable)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import numpy as np

    from ratchet.data.scored_lists import (
        Lists,
        check_lists,
        describe_teacher,
        write_flag_embedding,
        write_scores,
    )
    from ratchet.data.tables import list_shards
    from ratchet.jobs.distributed.api_shards import answer_shards
    from ratchet.jobs.distributed.pieces import count_rows
    from ratchet.models.reranker.remote import RemoteReranker

    check_lists(inputs.lists)
    shards = list_shards(inputs.lists)
    count_rows(shards, ["id", "text"])
    lists = Lists(inputs.lists, inputs.corpus, config.depth)
    key = read_key("rerank_api", config.url, config.key_variable)
    server = RemoteReranker(config.url, config.model, config.api, key, config.timeout)

    def read(shard: Path) -> tuple[Any, Any]:
        table, texts = lists.read(shard)
        return table, list(zip(table["text"].to_pylist(), texts, strict=True))

    def ask(request: Any) -> list[float]:
        return server.score(*request)

    def write(target: Path, content: Any, answers: Any) -> dict[str, int]:
        scores = [np.array(own, np.float32) for own in answers]
        if config.probabilities and config.api != "tei":
            scores = [_logit(own) for own in scores]
        return write_scores(target, table=content, scores=scores, tokens=0)

    counts = answer_shards(context, shards, read, ask, write, config.concurrency)
    write_flag_embedding(context.out, inputs.corpus)
    accuracy, note = describe_teacher(counts)
    made = {"queries": counts["rows"], "pairs": counts["pairs"]}
    return Result({**made, **accuracy, "model": config.model or config.url}, note=note)


def _logit(probability_P: "np.ndarray") -> "np.ndarray":
    import numpy as np

    inside_P = np.clip(probability_P.astype(np.float64), SMALLEST, 1 - SMALLEST)
    return np.log(inside_P / (1 - inside_P)).astype(np.float32)


JOB = Job("rerank_api", Config, Inputs, run, check=check, resources=("retries",))
"""A single process is enough to send the requests, since the server does the work."""
