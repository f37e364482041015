"""Texts are embedded by a server with MiniLM behind OpenAI's API, with its own client."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embedder_finetuning import context
from json_server import JsonHandler, JsonServer
from sentence_transformers import SentenceTransformer

import ratchet
from ratchet.data.tables import (
    CORPUS,
    QUERIES,
    add_carried,
    list_shards,
    open_mapped_shard,
    read_shards,
    write_shards,
)
from ratchet.data.vectors import view_embeddings
from ratchet.errors import InputError, ModelError
from ratchet.jobs.apis.embed_api import Config, Inputs, check, run
from ratchet.jobs.retrieval import embed, mine
from ratchet.models.model_files import MINILM, resolve
from ratchet.orchestrator.job_interface import Result

TOPICS = ["river", "bread", "violin", "engine", "glacier", "sonnet", "copper", "orchid"]
NAME = "minilm"


class Server(JsonServer):
    """broken: answers lack their last vector."""

    path = "/v1"

    def __init__(self) -> None:
        super().__init__(Handler)
        self.model = SentenceTransformer(resolve(MINILM).as_posix(), device="cpu")
        self.asked: list[list[str]] = []
        self.models: set[str] = set()
        self.broken = False


class Handler(JsonHandler):
    server: Server

    def do_GET(self) -> None:
        listed = {"id": NAME, "object": "model", "created": 0, "owned_by": ""}
        self.answer(200, {"object": "list", "data": [listed]})

    def do_POST(self) -> None:
        server = self.server
        body = self.read_json()
        with server.lock:
            number = len(server.asked)
            server.asked.append(body["input"])
            server.models.add(body["model"])
            if number in server.refuse:
                self.answer(server.refuse[number], {"error": {"message": "try later"}})
                return
            vectors = 3 * server.model.encode(body["input"])  # not normalized
        data = []
        for index, vector in enumerate(vectors):
            found: Any = vector.tolist()
            if body["encoding_format"] == "base64":
                found = base64.b64encode(vector).decode()
            data.append({"object": "embedding", "index": index, "embedding": found})
        if server.broken:
            data.pop()
        usage = {"prompt_tokens": 7 * len(data), "total_tokens": 7 * len(data)}
        # Not in their order, which `index` gives.
        answer = {"object": "list", "data": data[::-1], "model": NAME, "usage": usage}
        self.answer(200, answer)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    with made.running():
        yield made


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Write corpus/ (shards of 15) and queries/ (shards of 5)."""
    documents = []
    for n in range(40):
        first, second = TOPICS[n % 8], TOPICS[n // 8]
        documents.append({"id": f"d{n}", "text": f"A note on the {first} and the {second}, {n}"})
    queries = []
    for n in range(12):
        row = {"id": f"q{n}", "text": f"about {TOPICS[n % 8]}", "positives": [f"d{n}"]}
        queries.append({**row, "grades": [1], "negatives": [], "task": f"find {n}"})
    write_shards(tmp_path / "corpus", documents, CORPUS, 15)
    write_shards(tmp_path / "queries", queries, add_carried(QUERIES, ["task"]), 5)
    return tmp_path


def read_all(folder: Path) -> np.ndarray:
    parts = [view_embeddings(open_mapped_shard(path)) for path in list_shards(folder, "arrow")]
    return np.concatenate(parts)


def test_mined_negatives_are_those_of_the_local_model(server: Server, texts: Path) -> None:
    mined = []
    for kind in ("api", "local"):
        folders = {}
        for name, role in (("corpus", "passage"), ("queries", "query")):
            made = context(texts / f"{kind}-{name}")
            if kind == "api":
                result = run(
                    made, Config(server.url, role=role, batch_size=4), Inputs(texts / name)
                )
                rows = result.metrics["rows"]
                assert result.metrics == {"rows": rows, "dim": 384, "tokens": 7 * rows}
            else:
                config = embed.Config(role=role, dtype="float32")
                embed.run(made, config, embed.Inputs(resolve(MINILM), texts / name))
            folders[name] = made.out
        inputs = mine.Inputs(
            texts / "queries", texts / "corpus", folders["queries"], folders["corpus"]
        )
        made = context(texts / f"{kind}-mine")
        mine.run(made, mine.Config(window=(0, 10), num_negatives=5), inputs)
        mined.append(read_shards(made.out))
        if kind == "api":
            expected = read_all(folders["corpus"])
    np.testing.assert_allclose(read_all(folders["corpus"]), expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1, atol=1e-6)
    assert mined[0]["negatives"].to_pylist() == mined[1]["negatives"].to_pylist()
    assert server.models == {NAME}
    assert max(len(asked) for asked in server.asked) == 4


def test_templates_carry_the_instruction_of_each_query(server: Server, texts: Path) -> None:
    template = "Instruct: {task}\\nQuery: {text}"
    config = Config(server.url, model="other", role="query", query_template=template)
    run(context(texts / "made"), config, Inputs(texts / "queries"))
    asked = [text for batch in sorted(server.asked) for text in batch]
    expected = [f"Instruct: find {n}\nQuery: about {TOPICS[n % 8]}" for n in range(12)]
    assert sorted(asked) == sorted(expected)
    assert server.models == {"other"}


def test_a_stopped_run_repeats_no_request(server: Server, texts: Path) -> None:
    config = Config(server.url, batch_size=5, concurrency=1)
    server.refuse = {0: 429, 5: 400}
    made = context(texts / "made")
    with pytest.raises(ModelError, match=r"try later.*embed_api\.model"):
        run(made, config, Inputs(texts / "corpus"))
    answered = len(server.asked) - 2
    run(made, config, Inputs(texts / "corpus"))
    assert 4 <= answered < 8
    assert len(server.asked) - 2 == 8  # the requests of 15, 15 and 10 texts, each once
    other = context(texts / "other")
    run(other, config, Inputs(texts / "corpus"))
    np.testing.assert_allclose(read_all(made.out), read_all(other.out), atol=1e-6)


def test_wrong_servers_and_settings_are_refused(server: Server, texts: Path) -> None:
    server.broken = True
    with pytest.raises(ModelError, match=r"14 vectors of \[384\] dimensions for 15 texts"):
        run(context(texts / "made"), Config(server.url), Inputs(texts / "corpus"))
    with pytest.raises(InputError, match="'ftp://x' given"):
        check(Config("ftp://x"), Inputs(texts), {})
    with pytest.raises(ModelError, match=r"embed_api\.query_template: 'x' given"):
        check(Config("http://localhost/v1", query_template="x"), Inputs(texts), {})
    parent = Result({"documents": 1000, "characters": 400_000})
    config = Config("http://localhost/v1")
    note = check(config, Inputs(texts), {"texts": parent}).note
    assert note == "about 16 requests: 100,000 tokens"


def test_the_first_iteration_mines_with_the_api(tmp_path: Path) -> None:
    rows = [json.dumps({"query": f"q{n}", "positive": f"d{n}"}) for n in range(40)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(rows))
    options = {"bootstrap": "http://localhost:8000/v1", "iterations": 2}
    settings = {"embed_api.model": "m", "embed_api.query_template": "query: {text}"}
    plan = ratchet.plan(
        "retriever",
        store=tmp_path / "store",
        settings=settings,
        data=tmp_path / "pairs.jsonl",
        **options,
    )
    assert "zero_shot/embed_train" in plan
    assert "iter1/finetune_embedder" in plan
