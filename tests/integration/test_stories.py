"""The stories of the documentation, by their commands, on small data and small models."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from command import run, sets
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from tiny_models import WORDS, save_model

from ratchet.models.model_files import MINILM, resolve


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Thirty queries, each with the half of its document's words."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    draw = random.Random(0)
    rows = []
    for _ in range(30):
        words = draw.sample(WORDS, 8)
        rows.append(json.dumps({"query": " ".join(words[:4]), "positive": " ".join(words)}))
    path.write_text("\n".join(rows) + "\n")
    return str(path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_bases_are_compared(tmp_path: Path, pairs: str) -> None:
    bases = [str(save_model(tmp_path / name, "bert")) for name in ("one", "two")]
    store = str(tmp_path / "store")
    command = ["compare", *bases, "--data", pairs, "--store", store, "--json"]
    status, output = run(*command, *sets("finetune_embedder.epochs=1"), timeout=800)
    assert status == 0, output
    report = json.loads(output[output.index("{\n") :])
    rows = report["rows"]
    dense = [f"{name}, {kind}" for name in ("one", "two") for kind in ("zero-shot", "finetuned")]
    assert list(rows) == ["BM25", *dense, *(f"{label}, fused" for label in dense)]
    for label in dense:
        assert rows[label]["ms per query"]["value"] > 0
        weights = tmp_path / label.split(",")[0] / "model.safetensors"
        assert rows[label]["MB"]["value"] == pytest.approx(weights.stat().st_size / 1e6, abs=0.1)
    # The same weights, splits and seed.
    for kind in ("zero-shot", "finetuned", "finetuned, fused"):
        assert rows[f"one, {kind}"]["MAP@25"] == rows[f"two, {kind}"]["MAP@25"]
    (page,) = Path(store).glob("runs/*/report.html")
    assert "MAP@25 by ms per query" in page.read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_model_that_was_trained_elsewhere(tmp_path: Path, pairs: str) -> None:
    folder = save_model(tmp_path / "bert", "bert")
    modules = Transformer(str(folder), max_seq_length=32)
    model = SentenceTransformer(modules=[modules, Pooling(32, "cls")], device="cpu")
    model.save(str(tmp_path / "elsewhere"))
    elsewhere = str(tmp_path / "elsewhere")
    store = str(tmp_path / "store")
    minilm = str(resolve(MINILM))
    command = ["evaluate", "bm25", minilm, elsewhere, "--data", pairs, "--store", store]
    status, output = run(*command, timeout=400)
    assert status == 0, output
    assert "difference of MAP@25" in output
    settings = [f"data={pairs}", f"base={elsewhere}", "finetune_embedder.epochs=1"]
    status, output = run("run", "retriever", "--store", store, *sets(*settings), timeout=400)
    assert status == 0, output
    assert "a cross-validation with 3 folds evaluates and decides" in output
    assert "not shown, but with --full and in the report: BM25; zero-shot, fused" in output
    status, output = run(
        "run", "retriever", "--full", "--store", store, *sets(*settings), timeout=400
    )
    assert status == 0, output
    assert "not shown" not in output
    assert "\nBM25 " in output


@pytest.mark.slow
def test_five_million_pairs_are_planned(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    with path.open("w") as file:
        for number in range(1_300_000):
            text = f"a document about the matter {number} " * 5
            file.write(json.dumps({"query": f"what is {number}?", "positive": text}) + "\n")
    status, output = run(
        *("plan", "retriever", "--store", str(tmp_path / "store"), "--gpu", "H100:80:8"),
        *sets(f"data={path}"),
    )
    assert status == 0, output
    assert "more than a million documents: batches of 512 queries" in output
    assert "test has only 5,000 queries" in output
    assert "bm25/evaluate" not in output
