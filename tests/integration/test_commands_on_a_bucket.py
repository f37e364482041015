"""Commands that use the results of a run, on a store in a bucket, each from a machine without local copies."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import command
import numpy as np
import pytest
import transformers
from architectures import make
from s3_server import KEYS, serve_s3

from ratchet.models.embedder import encoder
from ratchet.models.model_files import MINILM, resolve

pytestmark = pytest.mark.soak

DOCUMENTS = [
    "Squares each term of a sum on its own",
    "Cuts decimals off instead of rounding",
    "Divides by the fraction",
]
Ratchet = Callable[..., str]


@pytest.fixture(scope="module")
def ratchet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ratchet]:
    """Runs a command with an empty cache of its own, and returns what it says."""
    folder, numbers = tmp_path_factory.mktemp("bucket"), itertools.count()
    with serve_s3() as port:
        environment = {
            **KEYS,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ALLOW_HTTP": "true",
        }

        def run(*arguments: str) -> str:
            cache = {
                "RATCHET_CACHE": str(folder / f"machine{next(numbers)}"),
                "RATCHET_STORE": "s3://kept/team",
            }
            status, output = command.run(
                *arguments, environment={**environment, **cache}, timeout=400
            )
            assert status == 0, output
            return output

        yield run


@pytest.fixture(scope="module")
def runs(ratchet: Ratchet, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two small runs of the quickstart with a tiny model, the older one first."""
    folder, words = (
        tmp_path_factory.mktemp("models") / "bert",
        {"vocab_size": 30_522, "pad_token_id": 0},
    )
    base = make("bert", transformers.AutoModel, folder, resolve(MINILM), **words)
    for epochs in ("1", "2"):
        settings = ("questions=60", f"base={base}", f"finetune_embedder.epochs={epochs}")
        ratchet("run", "quickstart", *(word for one in settings for word in ("--set", one)))
    found = json.loads(ratchet("models", "--json"))
    return sorted({one["run_id"] for one in found})


def test_a_model_is_listed_exported_and_used(
    ratchet: Ratchet, runs: list[str], tmp_path: Path
) -> None:
    model, documents = f"{runs[1]}:embedder", tmp_path / "documents.txt"
    documents.write_text("\n".join(DOCUMENTS) + "\n")
    assert model in ratchet("models", runs[1])
    ratchet("export", model, str(tmp_path / "model"))
    ratchet("embed", model, str(documents), str(tmp_path / "vectors"))
    expected = encoder.load(tmp_path / "model", device="cpu").encode(DOCUMENTS, "passage")
    assert np.abs(np.load(tmp_path / "vectors" / "embeddings.npy") - expected).max() < 1e-5
    asked = ("--query", DOCUMENTS[1], "--top", "1", "--json")
    answers = ratchet("search", model, str(documents), *asked).splitlines()
    (answer,) = (json.loads(line)["documents"] for line in answers if line.startswith('{"query"'))
    assert [one["text"] for one in answer] == [DOCUMENTS[1]]


def test_a_model_is_a_base_and_compared(ratchet: Ratchet, runs: list[str], tmp_path: Path) -> None:
    model = f"{runs[0]}:embedder"
    assert "zero_shot/embed_test" in ratchet("plan", "quickstart", "--set", f"base={model}")
    rows = [{"query": f"a mistake: {text}", "positive": text} for text in DOCUMENTS]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "difference of MAP@25" in ratchet(
        "evaluate", "bm25", model, "--data", str(tmp_path / "new.jsonl")
    )
    assert runs[1] in ratchet("status")
    assert "MAP@25" in ratchet("report", runs[1])
