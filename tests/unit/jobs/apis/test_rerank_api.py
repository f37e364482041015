"""Lists are scored by a server, here one around sentence-transformers' cross-encoder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embedder_finetuning import context
from json_server import JsonHandler, JsonServer
from sentence_transformers import CrossEncoder
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from ratchet.data.tables import TEACHER_SCORES, read_shards, write_shards
from ratchet.errors import InputError, ModelError
from ratchet.jobs.apis.rerank_api import Config, Inputs, check, run
from ratchet.models.reranker import reranker
from ratchet.orchestrator.job_interface import Result

QUERIES = 12


class Server(JsonServer):
    """Both formats, at /v1/rerank and /tei."""

    def __init__(self, model: Path) -> None:
        super().__init__(Handler)
        self.model = CrossEncoder(str(model), device="cpu")
        self.asked: list[str] = []
        self.keys: set[str | None] = set()
        self.cut: int | None = None


class Handler(JsonHandler):
    server: Server

    def do_POST(self) -> None:
        server = self.server
        body = self.read_json()
        with server.lock:
            number = len(server.asked)
            server.asked.append(body["query"])
            server.keys.add(self.headers.get("Authorization"))
            if number in server.refuse:
                self.answer(server.refuse[number], {"error": "no such model"})
                return
            is_tei = self.path == "/tei"
            texts = body["texts"] if "texts" in body else body["documents"]
            pairs = [(body["query"], text) for text in texts]
            scores = server.model.predict(
                pairs, activation_fn=torch.nn.Identity() if is_tei else torch.nn.Sigmoid()
            )
        # The best first, as these servers answer.
        order = np.argsort(-scores)[: server.cut]
        if is_tei:
            self.answer(200, [{"index": int(i), "score": float(scores[i])} for i in order])
        else:
            found = [{"index": int(i), "relevance_score": float(scores[i])} for i in order]
            self.answer(200, {"id": "1", "results": found, "model": body.get("model")})


@pytest.fixture(scope="module")
def model(concepts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cross-encoder")
    torch.manual_seed(0)
    config = BertConfig.from_pretrained(concepts / "base", num_labels=1, initializer_range=0.2)
    BertForSequenceClassification(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(concepts / "base").save_pretrained(folder)
    return folder


@pytest.fixture
def server(model: Path) -> Iterator[Server]:
    made = Server(model)
    with made.running():
        yield made


@pytest.fixture(scope="module")
def inputs(concepts: Path, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    folder = tmp_path_factory.mktemp("lists")
    mined = read_shards(concepts / "mined").slice(0, QUERIES)
    write_shards(folder, mined.to_pylist(), mined.schema, 5)
    return Inputs(folder, concepts / "corpus")


def ask(folder: Path, server: Server, inputs: Inputs, **settings: Any) -> Result:
    return run(context(folder), Config(f"{server.url}/v1/rerank", **settings), inputs)


@pytest.mark.slow
def test_the_scores_are_those_of_the_model_itself(
    server: Server, model: Path, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "secret")
    server.refuse = {1: 503, 4: 429}
    result = ask(tmp_path, server, inputs, key_variable="MY_API_KEY", model="ours")
    run(context(tmp_path / "tei"), Config(f"{server.url}/tei", api="tei"), inputs)
    assert server.keys == {"Bearer secret", None}
    rows, raw_rows = (
        read_shards(folder / "out").to_pylist() for folder in (tmp_path, tmp_path / "tei")
    )
    text_of = {row["id"]: row["text"] for row in read_shards(inputs.corpus).to_pylist()}
    own = reranker.load(model, dtype="float32", device="cpu")
    for row, raw in zip(rows, raw_rows, strict=True):
        for name, column in TEACHER_SCORES.items():
            if name in row:
                expected = own.score(
                    [row["text"]], [[text_of[document] for document in row[name]]]
                )[0]
                assert raw[column] == pytest.approx(expected.tolist(), abs=1e-4)
                assert row[column] == pytest.approx(expected.tolist(), abs=1e-2), (
                    "logits of probabilities"
                )
    assert result.metrics["queries"] == QUERIES == len(rows)
    lines = [
        json.loads(line)
        for line in (tmp_path / "out" / "flag_embedding.jsonl").read_text().splitlines()
    ]
    assert [line["pos_scores"] for line in lines] == [
        row[TEACHER_SCORES["positives"]] for row in rows
    ]


def test_what_was_answered_is_not_asked_again(
    server: Server, inputs: Inputs, tmp_path: Path
) -> None:
    server.refuse = {8: 404}
    with pytest.raises(
        ModelError,
        match=r"rerank: status 404: .*no such model.*; expected 200; correct the address",
    ):
        ask(tmp_path, server, inputs, concurrency=1)
    server.refuse = {}
    (answers,) = (tmp_path / "work").glob("shards/**/*00001*.answers.jsonl")
    with answers.open("a") as file:
        file.write("[3, [0.")  # a line that a killed process left unfinished
    ask(tmp_path, server, inputs, concurrency=1)
    again = server.asked[9:]
    assert sorted({*server.asked[:8], *again}) == sorted(
        read_shards(inputs.lists)["text"].to_pylist()
    )
    assert len(again) == QUERIES - 8, "each of the other queries once"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ratchet.models.reranker.remote.RemoteReranker.score", None)
        ask(tmp_path, server, inputs)  # all is there


def test_another_format_is_named(server: Server, inputs: Inputs, tmp_path: Path) -> None:
    said = r"answered \[.*; expected the scores of \d passages in the format of api=cohere; choose the other one"
    with pytest.raises(ModelError, match=said):
        run(context(tmp_path), Config(f"{server.url}/tei"), inputs)


def test_a_list_that_the_server_cuts_off_is_refused(
    server: Server, inputs: Inputs, tmp_path: Path
) -> None:
    server.cut = 2
    with pytest.raises(
        ModelError, match=r"no finite score of passage \d of \d; expected one for each"
    ):
        ask(tmp_path, server, inputs)


@pytest.mark.parametrize(
    "url", ["", "localhost:8000/rerank", "ftp://host/rerank", "http:///rerank"]
)
def test_an_address_that_is_none_is_refused_at_plan(url: str) -> None:
    with pytest.raises(
        InputError, match=r"rerank_api.url: .* given; expected an address such as http://localhost"
    ):
        check(Config(url), Inputs(Path(), Path()), {})


@pytest.mark.parametrize(
    ("url", "variable", "said"),
    [
        ("https://host/rerank", "AWS_SECRET_ACCESS_KEY", "a name that ends with _API_KEY"),
        ("http://127.0.0.1/rerank", "HF_TOKEN", "a name that ends with _API_KEY"),
        ("http://host/rerank", "OWN_API_KEY", "expected https"),
        ("http://10.0.0.5:8000/rerank", "OWN_API_KEY", "expected https"),
        ("http://127.0.0.1.evil.com/rerank", "OWN_API_KEY", "expected https"),
        ("https://host/rerank", "OWN_API_KEY", ""),
        ("http://localhost:8000/rerank", "OWN_API_KEY", ""),
        ("http://[::1]:8000/rerank", "OWN_API_KEY", ""),
        ("http://host/rerank", "UNSET_API_KEY", ""),
    ],
)
def test_no_settings_file_sends_a_secret(
    monkeypatch: pytest.MonkeyPatch, url: str, variable: str, said: str
) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "OWN_API_KEY"):
        monkeypatch.setenv(name, "hidden")
    config = Config(url, key_variable=variable)
    if not said:
        check(config, Inputs(Path(), Path()), {})
        return
    with pytest.raises(InputError, match=said) as error:
        check(config, Inputs(Path(), Path()), {})
    assert "hidden" not in str(error.value)
