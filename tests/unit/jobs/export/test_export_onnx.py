"""Embedders as ONNX: ONNX Runtime gives the same vectors as Ratchet."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow as pa
import pytest
import transformers
from architectures import ARCHITECTURES, make
from tokenizers import Tokenizer

from ratchet.data.tables import open_mapped, write_table
from ratchet.errors import ArtifactError, InputError
from ratchet.jobs.export import export_model
from ratchet.jobs.export.implementation.export_model import run
from ratchet.jobs.retrieval import embed
from ratchet.jobs.retrieval.implementation.embed import Worker
from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import EncodingConfig
from ratchet.models.embedder.onnx_model import INT8, MODEL
from ratchet.models.model_files import MINILM, resolve
from ratchet.orchestrator.job_interface import Context

pytestmark = pytest.mark.slow

MakeContext = Callable[..., Context]
TEXTS = ["What is 2 + 2?", "Paris is the capital of France, on the river Seine. " * 4, "naïve café", "a"]


@pytest.fixture(scope="module")
def minilm() -> Path:
    return resolve(MINILM)


def embed_alone(folder: Path, file: str) -> np.ndarray:
    """Mean pooling of MiniLM, by ONNX Runtime and the tokenizer's file."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.no_truncation()
    found = tokenizer.encode_batch(TEXTS)
    given = {
        "input_ids": np.array([one.ids for one in found]),
        "attention_mask": np.array([one.attention_mask for one in found]),
        "token_type_ids": np.array([one.type_ids for one in found]),
    }
    (hidden_BLD,) = onnxruntime.InferenceSession(folder / file).run(["last_hidden_state"], given)
    mask_BL1 = given["attention_mask"][:, :, None]
    vector_BD = (hidden_BLD * mask_BL1).sum(1) / mask_BL1.sum(1)
    return np.asarray(vector_BD / np.linalg.norm(vector_BD, axis=1, keepdims=True))


def test_minilm_as_onnx_and_in_8_bits(minilm: Path, context: MakeContext) -> None:
    made = context()
    result = run(made, export_model.Config(onnx=True, int8=True), export_model.Inputs(minilm))
    folder = made.out / "model"
    assert 0 <= float(result.metrics["onnxruntime/difference"]) < 1e-6
    assert result.metrics["int8/megabytes"] < 0.3 * float(result.metrics["onnx/megabytes"])  # type: ignore[operator]
    ours = encoder.load(minilm, dtype="float32", device="cpu").encode(TEXTS, "passage")
    assert np.abs(embed_alone(folder, MODEL) - ours).max() < 1e-5
    assert 0.95 < (embed_alone(folder, INT8) * ours).sum(1).min() < 0.9999


@pytest.mark.parametrize(
    "architecture",
    # The others have the operators of these.
    [
        name
        if name in ("qwen3", "mistral-window", "bert", "modernbert")
        else pytest.param(name, marks=pytest.mark.soak)
        for name in ARCHITECTURES
    ],
)
def test_architectures(architecture: str, minilm: Path, context: MakeContext, tmp_path: Path) -> None:
    base = make(architecture, transformers.AutoModel, tmp_path / "base", minilm, vocab_size=30522)
    EncodingConfig("cls" if architecture == "bert" else "last_token", max_length=256).write(base)
    result = run(context(), export_model.Config(onnx=True), export_model.Inputs(base))
    assert 0 <= float(result.metrics["onnxruntime/difference"]) < 1e-5


def test_a_step_embeds_with_the_file(minilm: Path, context: MakeContext, tmp_path: Path) -> None:
    made = context()
    run(made, export_model.Config(int8=True), export_model.Inputs(minilm))
    folder, texts = made.out / "model", tmp_path / "texts"
    texts.mkdir()
    write_table(texts / "shard-00000.parquet", pa.table({"id": list("abcd"), "text": TEXTS}))
    inputs = embed.Inputs(folder, texts, onnx=folder / INT8)
    config = embed.Config(dtype="float32")
    embed.check(config, inputs)
    Worker(inputs, config, 512, "cpu")(texts / "shard-00000.parquet", tmp_path / "shard-00000.arrow", lambda *_: None)
    vector_ND = np.stack(open_mapped(tmp_path)["embedding"].to_numpy())
    expected = encoder.load(folder, onnx=folder / INT8).encode(TEXTS, "passage", batch_tokens=512)
    assert np.array_equal(vector_ND, expected)
    exact = encoder.load(folder, dtype="float32", device="cpu").encode(TEXTS, "passage")
    assert 1e-3 < np.abs(vector_ND - exact).max() < 0.1


def test_what_onnx_cannot_do_is_refused(minilm: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"embed.onnx: with {'dtype': 'auto'.*; expected {'dtype': 'float32'"):
        embed.check(embed.Config(), embed.Inputs(minilm, tmp_path, onnx=tmp_path))
    reranker = make("bert", transformers.AutoModelForSequenceClassification, tmp_path / "r", minilm, num_labels=1)
    with pytest.raises(InputError, match=r"export_model.int8: given, for a reranker; expected an embedder"):
        export_model.check(export_model.Config(int8=True), export_model.Inputs(reranker))


def test_a_file_that_computes_something_else_is_no_export(
    minilm: Path, context: MakeContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = make("bert", transformers.AutoModel, tmp_path / "other", minilm, hidden_size=384, vocab_size=30522)
    made = context()
    run(made, export_model.Config(onnx=True), export_model.Inputs(other))
    wrong = made.out / "model" / MODEL

    def write_wrong(folder: Path) -> None:
        (folder / MODEL).parent.mkdir()
        shutil.copyfile(wrong, folder / MODEL)

    monkeypatch.setattr("ratchet.jobs.export.implementation.export_model.write_onnx", write_wrong)
    with pytest.raises(ArtifactError, match="onnxruntime differs by"):
        run(context(2), export_model.Config(onnx=True), export_model.Inputs(minilm))
