"""Several Dense layers, as EmbeddingGemma has them, beside sentence-transformers; and folders without a transformer."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
import transformers
from architectures import make
from sentence_transformers.models import Dense, Normalize, Pooling, StaticEmbedding, Transformer

from ratchet.errors import ModelError
from ratchet.jobs.model_checks import check_embedder_model
from ratchet.jobs.pretrained import pretrained
from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import read_encoding_config

# sentence-transformers takes seconds to import.
pytestmark = pytest.mark.slow

QUERIES = ["How far is it?", "why"]
DOCUMENTS = ["Ten miles, as the crow flies, or a little more.", "Because.", "It is far away."]
PROMPTS = {"query": "task: search result | query: ", "document": "title: none | text: "}


def save_layers(minilm: Path, folder: Path, sizes: list[int], bias: bool, **options: Any) -> Path:
    """Save a random Gemma with linear layers after the pooling as sentence-transformers does."""
    vocabulary = len(transformers.AutoTokenizer.from_pretrained(minilm))
    base = make(
        "gemma3",
        transformers.AutoModel,
        folder.with_name("base"),
        minilm,
        use_bidirectional_attention=True,
        vocab_size=vocabulary,
    )
    one = Transformer(str(base), max_seq_length=64)
    modules: list[Any] = [one, Pooling(one.get_word_embedding_dimension(), "mean")]
    for inner, outer in itertools.pairwise(sizes):
        layer = Dense(inner, outer, bias=bias, activation_function=torch.nn.Identity())
        if bias:
            torch.nn.init.normal_(layer.linear.bias)
        modules.append(layer)
    modules.append(Normalize())
    sentence_transformers.SentenceTransformer(modules=modules, device="cpu", **options).save(
        str(folder)
    )
    return folder


def compare(folder: Path, ours: encoder.Encoder) -> None:
    peer = sentence_transformers.SentenceTransformer(
        str(folder), device="cpu", model_kwargs={"dtype": torch.float32}
    )
    expected = np.concatenate([peer.encode_query(QUERIES), peer.encode_document(DOCUMENTS)])
    found = np.concatenate([ours.encode(QUERIES, "query"), ours.encode(DOCUMENTS, "passage")])
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sizes", [[128, 512, 128], [128, 96, 64, 32]])
def test_dense_layers_embed_as_in_sentence_transformers(
    minilm: Path, tmp_path: Path, sizes: list[int], bias: bool
) -> None:
    folder = save_layers(minilm, tmp_path / "model", sizes, bias, prompts=PROMPTS)
    config = read_encoding_config(folder)
    assert len(config.projection.split(",")) == len(sizes) - 1
    check_embedder_model(folder, config)
    ours = encoder.load(folder, dtype="float32", device="cpu")
    assert ours.dim == sizes[-1]
    compare(folder, ours)
    (saved := tmp_path / "saved").mkdir()
    assert ours.save(folder, saved) == ""
    assert read_encoding_config(saved).projection == "2_Dense"
    compare(saved, encoder.load(saved, dtype="float32", device="cpu"))


def test_embeddinggemma_has_the_prompts_of_its_card(minilm: Path, tmp_path: Path) -> None:
    folder = save_layers(minilm, tmp_path / "embeddinggemma-300m", [128, 512, 128], False)
    config = read_encoding_config(folder)
    prompts = {"query": config.format_prompt("query"), "document": config.format_prompt("passage")}
    assert prompts == PROMPTS
    assert (config.pooling, config.padding_side, config.task) == ("mean", "right", "search result")
    causal = shutil.copytree(folder, tmp_path / "causal" / folder.name)
    about = json.loads((causal / "config.json").read_text())
    about["use_bidirectional_attention"] = False
    (causal / "config.json").write_text(json.dumps(about))
    one, other = (encoder.load(path, dtype="float32", device="cpu") for path in (folder, causal))
    assert np.abs(one.encode(QUERIES, "query") - other.encode(QUERIES, "query")).max() > 1e-3
    given = save_layers(minilm, tmp_path / "given", [128, 512, 128], False, prompts=PROMPTS)
    compare(given, one)


def test_a_wrong_layer_is_refused(minilm: Path, tmp_path: Path) -> None:
    folder = save_layers(minilm, tmp_path / "model", [128, 64, 32], False)
    file = folder / "3_Dense/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"in_features": 32}))
    with pytest.raises(ModelError, match=r"3_Dense: from 32 dimensions, .*; expected from 64"):
        check_embedder_model(folder, read_encoding_config(folder))


def test_a_static_embedding_is_refused(minilm: Path, tmp_path: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    static = StaticEmbedding(tokenizer, embedding_dim=16)
    folder = tmp_path / "static"
    sentence_transformers.SentenceTransformer(modules=[static], device="cpu").save(str(folder))
    with pytest.raises(ModelError, match="a StaticEmbedding, a table with one vector per token"):
        pretrained(str(folder))
