"""Models whose weights stay in their files: same results as loaded models, one layer in memory at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from architectures import ARCHITECTURES, make, trained
from safetensors.torch import load_file, save_file

from ratchet.models.adapters import lora, merging
from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import EncodingConfig
from ratchet.models.reranker import reranker
from ratchet.models.reranker.reranker_config import RerankerConfig

pytestmark = pytest.mark.slow

YES_NO = RerankerConfig("yes_no", 64, None, "w1{text}", "w2{text}", "w", "w3", answer="w")
CROSS_ENCODER = RerankerConfig("cross_encoder", 64)
DECODERS = [name for name in ARCHITECTURES if "bert" not in name]
# float16 is computed in float32.
TIED = {name: [False] for name in DECODERS} | {"qwen3": [False, True], "gemma3": [True]}
STORED = [*((name, "bfloat16") for name in ARCHITECTURES), ("qwen2", "float16"), ("bert", "float16")]


@pytest.fixture(scope="module")
def texts(texts: list[str]) -> list[str]:
    return texts[:12]


def to_options(stored: str) -> dict[str, Any]:
    dtype = "bfloat16" if stored == "bfloat16" else "float32"
    return {"dtype": dtype, "device": "cpu", "training": True}


@pytest.mark.parametrize(("name", "stored"), STORED)
def test_streamed_embedders_compute_what_loaded_ones_do(
    name: str, stored: str, tiny: dict[str, Path], texts: list[str], tmp_path: Path
) -> None:
    base = make(name, transformers.AutoModel, tmp_path / "base", tiny["qwen2"], dtype=stored, files=3)
    assert len(list(base.glob("*.safetensors"))) > 1
    options = to_options(stored) | {"encoding_config": EncodingConfig("mean", max_length=64)}
    whole, streamed = encoder.load(base, **options), encoder.load(base, **options, streamed=True)
    trained(encoder.load(base, **options).model, [], "FEATURE_EXTRACTION", tmp_path / "adapter")
    plain = whole.encode(texts, "query")
    assert np.array_equal(streamed.encode(texts, "query"), plain)
    whole.model = lora.load(whole.model, tmp_path / "adapter")
    merging.add_adapter(streamed.model, tmp_path / "adapter")
    expected = whole.encode(texts, "query")
    assert not np.allclose(expected, plain, atol=1e-3)
    assert np.array_equal(streamed.encode(texts, "query"), expected)
    assert all(weight.is_meta for weight in streamed.model.parameters())


@pytest.mark.parametrize(
    ("name", "stored", "tied"), [(*pair, tied) for pair in STORED if pair[0] in DECODERS for tied in TIED[pair[0]]]
)
def test_streamed_decoders_score_as_loaded_ones_do(
    name: str, stored: str, tied: bool, tiny: dict[str, Path], texts: list[str], tmp_path: Path
) -> None:
    made = make(
        name,
        transformers.AutoModelForCausalLM,
        tmp_path / "base",
        tiny["qwen2"],
        dtype=stored,
        files=3,
        tie_word_embeddings=tied,
    )
    check_reranker(made, stored, YES_NO, texts, tmp_path / "adapter")


@pytest.mark.parametrize("with_head", [False, True])
@pytest.mark.parametrize(("name", "stored"), [pair for pair in STORED if pair[0] not in DECODERS])
def test_streamed_cross_encoders_score_as_loaded_ones_do(
    name: str, stored: str, with_head: bool, tiny: dict[str, Path], texts: list[str], tmp_path: Path
) -> None:
    """The head, and BERT's pooler, are the adapter's, also where the base has none."""
    if name == "modernbert" and not with_head:
        return  # its head has a name that is not trained
    kind = transformers.AutoModelForSequenceClassification if with_head else transformers.AutoModel
    base = make(name, kind, tmp_path / "base", tiny["bert"], dtype=stored, files=3, num_labels=1)
    check_reranker(base, stored, CROSS_ENCODER, texts, tmp_path / "adapter")


def check_reranker(base: Path, stored: str, config: RerankerConfig, texts: list[str], adapter: Path) -> None:
    options = to_options(stored) | {"reranker_config": config}
    one, whole = reranker.load(base, **options), reranker.load(base, **options)
    streamed = reranker.load(base, **options, streamed=True)
    assert streamed.new_layers == whole.new_layers
    trained(one.model, reranker.find_heads(one), "CAUSAL_LM" if config == YES_NO else "SEQ_CLS", adapter)
    # Where a tensor begins in memory may change the last bit of a sum in float32.
    close = {"rtol": 0, "atol": 0.0 if stored == "bfloat16" else 1e-6}
    pairs = texts, [[text] for text in reversed(texts)]
    plain = np.concatenate(whole.score(*pairs))
    if not streamed.new_layers:
        np.testing.assert_allclose(np.concatenate(streamed.score(*pairs)), plain, **close)
    whole.model = lora.load(whole.model, adapter)
    merging.add_adapter(streamed.model, adapter)
    expected = np.concatenate(whole.score(*pairs))
    assert not np.allclose(expected, plain, atol=1e-3)
    np.testing.assert_allclose(np.concatenate(streamed.score(*pairs)), expected, **close)


@pytest.mark.parametrize("file", [0, 1, 2])
@pytest.mark.parametrize("config", [EncodingConfig("mean", max_length=64), YES_NO])
def test_a_wrong_tensor_is_seen(
    config: EncodingConfig | RerankerConfig, file: int, tiny: dict[str, Path], texts: list[str], tmp_path: Path
) -> None:
    base = make("qwen3", transformers.AutoModelForCausalLM, tmp_path / "base", tiny["qwen2"], files=3)
    config.write(base)
    kind, task = transformers.AutoModel, "FEATURE_EXTRACTION"
    if config == YES_NO:
        kind, task = transformers.AutoModelForCausalLM, "CAUSAL_LM"
    trained(kind.from_pretrained(base), [], task, tmp_path / "adapter")
    (tmp_path / "merged").mkdir()
    merging.merge(base, tmp_path / "adapter", tmp_path / "merged")
    folders = base, tmp_path / "adapter", tmp_path / "merged"
    assert merging.check(*folders, texts).drift < 1e-4
    shard = sorted((tmp_path / "merged").glob("*.safetensors"))[file]
    tensors = load_file(shard)
    name = next(name for name in sorted(tensors) if "proj" in name)
    tensors[name] = load_file(base / shard.name)[name].clone()  # as if it had been left out
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, shard, metadata={"format": "pt"})
    assert merging.check(*folders, texts).drift > 1e-3
