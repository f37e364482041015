"""`ratchet serve`: clients of OpenAI's and Cohere's APIs get the same results as the models give in this process."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command
import numpy as np
import openai
import pytest
import requests
import transformers
from architectures import make
from nodes import free_port
from waiting import wait_for

from ratchet.errors import ModelError
from ratchet.models.embedder import encoder
from ratchet.models.model_files import MINILM, resolve
from ratchet.models.reranker import reranker
from ratchet.models.reranker.remote import RemoteReranker

TEXTS = ["What is 2 + 2?", "Paris is the capital of France.", "naïve café"]
TOKEN = "a-token"


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kind = transformers.AutoModelForSequenceClassification
    tokenizer, folder = resolve(MINILM), tmp_path_factory.mktemp("models") / "cross"
    return make("bert", kind, folder, tokenizer, vocab_size=30_522, num_labels=1, pad_token_id=0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, cross_encoder: Path) -> Iterator[dict[str, Any]]:
    """What `--json` prints of a running server. At the end SIGTERM stops it."""
    store, port = tmp_path_factory.mktemp("server") / "store", free_port()
    log = store.with_name("log")
    words = ("serve", MINILM, str(cross_encoder), "--port", str(port), "--json", "--store", str(store))
    with log.open("w") as file:
        process = command.start(*words, environment={"RATCHET_TOKEN": TOKEN}, output=file)

    def read() -> dict[str, Any] | None:
        assert process.poll() is None, log.read_text()
        lines = [line for line in log.read_text().splitlines() if line.startswith("{")]
        return json.loads(lines[0]) if lines else None

    try:
        yield wait_for(read, "it does not serve")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
    finally:
        process.kill()


@pytest.fixture(scope="module")
def client(server: dict[str, Any]) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server['url']}/v1", api_key=TOKEN, max_retries=0)


def test_models_are_listed(server: dict[str, Any], client: openai.OpenAI, cross_encoder: Path) -> None:
    assert "token" not in server, "a secret that the user has is not printed"
    assert server["models"] == {MINILM: "embedder", str(cross_encoder): "reranker"}
    assert [one.id for one in client.models.list().data] == list(server["models"])
    assert requests.get(f"{server['url']}/health", timeout=60).json() == {"status": "ok"}


def test_embeddings_are_those_of_the_model(client: openai.OpenAI) -> None:
    loaded = encoder.load(resolve(MINILM), device="cpu")
    expected = loaded.encode(TEXTS, "passage")
    as_base64 = client.embeddings.create(model=MINILM, input=TEXTS)  # what the client asks for by itself
    as_floats = client.embeddings.create(model=MINILM, input=TEXTS, encoding_format="float")
    for answer in (as_base64, as_floats):
        assert [one.index for one in answer.data] == [0, 1, 2]
        np.testing.assert_allclose([one.embedding for one in answer.data], expected, atol=1e-6)
    assert as_base64.usage.prompt_tokens == sum(map(len, loaded.tokenize(TEXTS, "passage")))
    short = client.embeddings.create(model=MINILM, input=TEXTS[0], dimensions=16).data[0].embedding
    np.testing.assert_allclose(short, expected[0, :16] / np.linalg.norm(expected[0, :16]), atol=1e-6)


def test_a_served_reranker_is_a_teacher(server: dict[str, Any], cross_encoder: Path) -> None:
    """Through the class by which `rerank_api` asks: the probabilities are the logistic function of the scores."""
    (expected,) = reranker.load(cross_encoder, device="cpu").score([TEXTS[0]], [TEXTS[1:]])
    for path in ("rerank", "v1/rerank"):
        remote = RemoteReranker(f"{server['url']}/{path}", str(cross_encoder), "cohere", TOKEN)
        found = np.array(remote.score(TEXTS[0], TEXTS[1:]))
        np.testing.assert_allclose(np.log(found / (1 - found)), expected, atol=1e-5)
    asked = {"query": TEXTS[0], "documents": TEXTS[1:], "top_n": 1, "return_documents": True}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = requests.post(f"{server['url']}/rerank", json=asked, headers=headers, timeout=60).json()
    best = int(np.argmax(expected))
    assert answer["model"] == str(cross_encoder)
    assert [(one["index"], one["document"]) for one in answer["results"]] == [(best, {"text": TEXTS[1:][best]})]


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"model": "no-such"}, openai.NotFoundError, "model: 'no-such' given; expected one of: "),
        ({"input": []}, openai.BadRequestError, "input"),
        ({"input": ["a"] * 2049}, openai.BadRequestError, "2048"),
        ({"input": [[1, 2]]}, openai.BadRequestError, "input"),
        ({"dimensions": 385}, openai.BadRequestError, "dimensions: 385 given; expected at most 384"),
        ({"extra_body": {"input_type": "no"}}, openai.BadRequestError, "input_type"),
    ],
)
def test_wrong_requests_are_explained(
    client: openai.OpenAI, asked: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        client.embeddings.create(**{"model": MINILM, "input": "a", **asked})


def test_nothing_is_told_without_the_token(server: dict[str, Any], cross_encoder: Path) -> None:
    stranger = openai.OpenAI(base_url=f"{server['url']}/v1", api_key="another", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with pytest.raises(openai.AuthenticationError):
        stranger.embeddings.create(model=MINILM, input="a")
    with pytest.raises(ModelError, match="status 401"):
        RemoteReranker(f"{server['url']}/rerank", str(cross_encoder), "cohere", "another").score("a", ["b"])


def test_mistakes_end_before_a_model_is_served(server: dict[str, Any], tmp_path: Path) -> None:
    port = server["url"].rpartition(":")[2]
    status, output = command.run("serve", MINILM, "--port", port, "--store", str(tmp_path / "store"))
    assert status == 2
    assert f"serve: port {port} of 127.0.0.1: Address already in use; expected a free port" in output


def test_more_replicas_than_processors_are_refused(tmp_path: Path) -> None:
    words = ("serve", MINILM, "--port", str(free_port()), "--replicas", "1000", "--store", str(tmp_path / "store"))
    status, output = command.run(*words)
    assert status == 2
    assert "serve --replicas 1000: more than the " in output
