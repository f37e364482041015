"""rerank_api: score lists of documents with a reranker behind an HTTP API. The output is the same as that of `rerank`.

The API key is read from the environment variable `key_variable` by the process that sends the requests. It is not part
of the fingerprint. Answers are stored as they arrive, so a killed run does not repeat requests.
"""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from ratchet.errors import InputError
from ratchet.models.reranker.remote import Api, check_url
from ratchet.orchestrator.job_interface import (
    Context,
    Job,
    Neutral,
    Parents,
    PositiveFloat,
    PositiveInt,
    Progress,
    Result,
    Unit,
    append_json,
    read_json_lines,
)

if TYPE_CHECKING:
    import numpy as np

    from ratchet.models.reranker.remote import RemoteReranker

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
    read_key(config)


def read_key(config: Config) -> str:
    """Return the API key; empty if there is none. Raises InputError for another variable, and for a key that would be
    sent without encryption to another machine."""
    if not config.key_variable.endswith("_API_KEY"):
        raise InputError(
            f"rerank_api.key_variable: {config.key_variable} given; expected a name that ends with _API_KEY, since its"
            " value is sent to the server; rename the variable"
        )
    key = os.environ.get(config.key_variable, "")
    address = urlsplit(config.url)
    is_here = address.hostname in ("localhost", "127.0.0.1", "::1")
    if key and address.scheme != "https" and not is_here:
        raise InputError(
            f"rerank_api.url: {config.url} given, with a key in {config.key_variable}; expected https, which hides the"
            " key on its way; change the address, or unset the variable"
        )
    return key


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from concurrent.futures import ThreadPoolExecutor

    from ratchet.data.scored_lists import (
        Lists,
        check_lists,
        describe_teacher,
        write_flag_embedding,
        write_scores,
    )
    from ratchet.data.tables import list_shards
    from ratchet.jobs.distributed.pieces import ShardOutput, commit_piece, count_rows
    from ratchet.models.reranker.remote import RemoteReranker

    check_lists(inputs.lists)
    shards = list_shards(inputs.lists)
    rows = count_rows(shards, ["id", "text"])
    lists = Lists(inputs.lists, inputs.corpus, config.depth)
    key = read_key(config)
    server = RemoteReranker(config.url, config.model, config.api, key, config.timeout)

    output = ShardOutput(context, shards)
    done = output.finished_rows
    for shard in output.unfinished:
        table, texts = lists.read(shard.source)
        queries = table["text"].to_pylist()
        answers = Answers(shard.target.with_suffix(".answers.jsonl"), server)
        scores = []
        with ThreadPoolExecutor(config.concurrency) as pool:
            waiting = []
            for row, (query, passages) in enumerate(zip(queries, texts, strict=True)):
                waiting.append(pool.submit(answers.ask, row, query, passages))
            try:
                for future in waiting:
                    scores.append(future.result())
                    context.progress(Progress(done + len(answers.known), rows))
            finally:
                pool.shutdown(cancel_futures=True)
        if config.probabilities and config.api != "tei":
            scores = [_logit(own) for own in scores]
        write = partial(write_scores, table=table, scores=scores, tokens=0)
        commit_piece(context, shard, write)
        done += len(table)

    counts = output.collect(context.out, rows)
    write_flag_embedding(context.out, inputs.corpus)
    accuracy, note = describe_teacher(counts)
    made = {"queries": rows, "pairs": counts["pairs"]}
    return Result({**made, **accuracy, "model": config.model or config.url}, note=note)


def _logit(probability_P: "np.ndarray") -> "np.ndarray":
    import numpy as np

    inside_P = np.clip(probability_P.astype(np.float64), SMALLEST, 1 - SMALLEST)
    return np.log(inside_P / (1 - inside_P)).astype(np.float32)


class Answers:
    """The API's answers for a shard, stored as JSON Lines. A line that a killed process left unfinished is ignored."""

    def __init__(self, path: Path, server: "RemoteReranker") -> None:
        self.path = path
        self.server = server
        self.known: dict[int, list[float]] = {}
        for line in read_json_lines(path):
            self.known[line["row"]] = line["scores"]

    def ask(self, row: int, query: str, passages: list[str]) -> "np.ndarray":
        """Return the scores of a row's passages, float32, from an earlier answer if there is one."""
        import numpy as np

        if row not in self.known:
            scores = self.server.score(query, passages)
            append_json(self.path, {"row": row, "scores": scores})
            self.known[row] = scores
        return np.array(self.known[row], np.float32)


JOB = Job("rerank_api", Config, Inputs, run, check=check, resources=("retries",))
"""A single process is enough to send the requests, since the server does the work."""
