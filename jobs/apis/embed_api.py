"""embed_api: embed texts with a model behind an OpenAI-compatible API. The output is the same as that of `embed`.

Vectors are scaled to length 1, so that their products are cosines, whatever the server does. Answers are stored as they
arrive, so a killed run repeats no request.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from ratchet.jobs import planned_rows
from ratchet.jobs.distributed.requests import CHARACTERS_PER_TOKEN, OpenAIServer, check_openai
from ratchet.models.embedder.encoding_config import check_template
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


@dataclass(frozen=True)
class Config:
    url: str
    """Base URL of the API, such as http://localhost:8000/v1."""
    model: str = ""
    """Name of the model in requests. Empty: the first that the server lists."""
    role: Literal["query", "passage"] = "passage"
    """Which of the two templates to apply to the texts."""
    query_template: str = "{text}"
    """Prompt template of queries, with `{text}`, and with `{task}` for the instruction of each query in the data;
    `\\n` is a line break."""
    passage_template: str = "{text}"
    """Prompt template of passages, with `{text}`."""
    batch_size: Annotated[PositiveInt, Unit("texts")] = 64
    """Maximum number of texts per request."""
    concurrency: Annotated[PositiveInt, Unit("requests"), Neutral()] = 8
    """Maximum number of concurrent requests."""
    timeout: Annotated[PositiveFloat, Unit("seconds"), Neutral()] = 120.0
    """Maximum time without data from the server. The request is then tried again."""
    key_variable: Annotated[str, Neutral()] = "OPENAI_API_KEY"
    """Name of the environment variable with the API key. It ends with `_API_KEY`."""

    @property
    def template(self) -> str:
        """The template of the role."""
        given = self.query_template if self.role == "query" else self.passage_template
        return given.replace("\\n", "\n")


@dataclass(frozen=True)
class Inputs:
    texts: Path
    """Shards with the columns id and text."""


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    check_openai("embed_api", config)
    check_template("embed_api.query_template", config.query_template, ("text",), ("task",))
    check_template("embed_api.passage_template", config.passage_template, ("text",))
    documents = planned_rows.count(parents, "texts", "documents")
    characters = planned_rows.count(parents, "texts", "characters")
    if config.role == "query" or not documents or not characters:
        return Result()
    characters += documents * len(config.template.replace("{text}", ""))
    tokens = characters // CHARACTERS_PER_TOKEN
    requests = -(-documents // config.batch_size)
    return Result(note=f"about {requests:,} requests: {tokens:,} tokens")


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.data.tables import list_shards
    from ratchet.data.vectors import read_dim
    from ratchet.jobs.distributed.api_shards import answer_shards
    from ratchet.jobs.distributed.pieces import count_rows

    shards = list_shards(inputs.texts)
    count_rows(shards, ["id", "text"])
    ask = partial(ask_vectors, OpenAIServer("embed_api", config))
    counts = answer_shards(
        context,
        shards,
        partial(read_requests, config),
        ask,
        write_answers,
        config.concurrency,
        suffix="arrow",
    )
    return Result(
        {"rows": counts["rows"], "dim": read_dim(context.out), "tokens": counts["tokens"]}
    )


def read_requests(config: Config, shard: Path) -> tuple[Any, list[list[str]]]:
    """Return the ids of a shard, and its texts with their template in batches."""
    from ratchet.data.tables import read_queries

    table = read_queries(shard, ("id", "text"))
    tasks = [""] * len(table)
    if "task" in table.column_names:
        tasks = table["task"].to_pylist()
    texts = []
    for text, task in zip(table["text"].to_pylist(), tasks, strict=True):
        before, _, after = config.template.replace("{task}", task or "").partition("{text}")
        texts.append(before + text + after)
    size = config.batch_size
    return table["id"], [texts[first : first + size] for first in range(0, len(texts), size)]


def ask_vectors(server: OpenAIServer, texts: list[str]) -> dict[str, Any]:
    """Return the vectors of texts, base64 of float32 [N, D], their number of dimensions, and the number of tokens.

    Raises ModelError for a server that fails, or does not answer with one finite vector per text."""
    import base64

    import numpy as np

    from ratchet.errors import ModelError

    with server.errors():
        made = server.client.embeddings.create(model=server.model, input=texts)
    given = sorted(made.data, key=lambda one: one.index)
    dims = {len(one.embedding) for one in given}
    length_N1 = np.array([[np.linalg.norm(one.embedding)] for one in given], np.float32)
    is_usable = np.isfinite(length_N1).all() and length_N1.all()
    if len(given) != len(texts) or len(dims) != 1 or not is_usable:
        raise ModelError(
            f"{server.config.url}: {len(given)} vectors of {sorted(dims)} dimensions for {len(texts)} texts; expected"
            " one each, of equal size, finite and not 0; check the server"
        )
    vector_ND = np.array([one.embedding for one in given], np.float32)
    return {
        "vectors": base64.b64encode((vector_ND / length_N1).tobytes()).decode(),
        "dim": vector_ND.shape[1],
        "tokens": made.usage.prompt_tokens if made.usage else 0,
    }


def write_answers(target: Path, content: Any, answers: list[dict[str, Any]]) -> dict[str, int]:
    """Write the vectors of a shard. content: its ids."""
    import base64

    import numpy as np

    from ratchet.data.vectors import write_vectors

    vectors = []
    for answer in answers:
        flat = np.frombuffer(base64.b64decode(answer["vectors"]), np.float32)
        vectors.append(flat.reshape(-1, answer["dim"]))
    write_vectors(target, content, np.concatenate(vectors))
    return {"rows": len(content), "tokens": sum(answer["tokens"] for answer in answers)}


JOB = Job(
    "embed_api",
    Config,
    Inputs,
    run,
    check=check,
    resources=("retries",),
    metrics=("rows", "dim", "tokens"),
)
