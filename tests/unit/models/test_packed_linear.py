"""Packed linear layers, against the plain ones and float32. Texts are longer than the windows of attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from architectures import ARCHITECTURES, make

from ratchet.models.devices import multiplies_bfloat16
from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import EncodingConfig
from ratchet.models.model_files import MINILM, resolve
from ratchet.models.packed_linear import PackedLinear
from ratchet.models.reranker import reranker
from ratchet.models.reranker.reranker_config import RerankerConfig

GENERATOR = np.random.default_rng(0)
TEXTS = [" ".join(f"w{i}" for i in GENERATOR.integers(0, 9, n)) for n in (3, 90, 41, 17, 60)]
FUSED = {name: {"gelu"} for name in ("bert", "xlm-roberta")}
FUSED |= {name: {"swish"} for name in ("qwen2", "qwen3", "llama", "mistral", "mistral-window")}
native = pytest.mark.skipif(
    not multiplies_bfloat16(torch.device("cpu")), reason="the CPU does not multiply bfloat16 natively"
)


def list_packed(model: Any) -> list[PackedLinear]:
    return [module for module in model.modules() if isinstance(module, PackedLinear)]


@native
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_vectors_are_no_farther_from_float32(name: str, tiny: dict[str, Path], tmp_path: Path) -> None:
    kind = transformers.AutoModel if "bert" in name else transformers.AutoModelForCausalLM
    folder = make(name, kind, tmp_path, tiny["qwen2"])
    pooling: Any = "mean" if "bert" in name else "last_token"
    options: dict[str, Any] = {"device": "cpu", "encoding_config": EncodingConfig(pooling, max_length=500)}
    exact = encoder.load(folder, dtype="float32", **options).encode(TEXTS, "passage")
    plain = encoder.load(folder, dtype="bfloat16", **options)
    packed = encoder.load(folder, dtype="bfloat16", packed=True, **options)
    linear = [module for module in plain.model.modules() if type(module) is torch.nn.Linear]
    made = list_packed(packed.model)
    assert len(made) == len(linear)
    assert {one.activation for one in made} - {"none"} == FUSED.get(name, set())
    errors = [np.abs(one.encode(TEXTS, "passage") - exact).max() for one in (plain, packed)]
    assert errors[1] < 1.5 * errors[0] + 1e-3


@native
def test_minilm_is_no_farther_from_float32() -> None:
    folder = resolve(MINILM)
    exact, plain, packed = (
        encoder.load(folder, dtype=dtype, device="cpu", packed=own).encode(TEXTS, "passage")
        for dtype, own in (("float32", False), ("bfloat16", False), ("bfloat16", True))
    )
    assert (packed * exact).sum(1).min() > (plain * exact).sum(1).min() - 1e-4


@native
def test_a_decoder_scores_the_same_and_keeps_its_head(tiny: dict[str, Path]) -> None:
    config = RerankerConfig("yes_no", 400, None, "w1{text}", "w2{text}", "w", "w3w3", answer="w", against="9")
    options: dict[str, Any] = {"dtype": "bfloat16", "device": "cpu", "reranker_config": config}
    plain, packed = (reranker.load(tiny["qwen2"], packed=own, **options) for own in (False, True))
    assert type(packed.model.get_output_embeddings()) is torch.nn.Linear
    assert list_packed(packed.model)
    expected, found = (np.concatenate(one.score(TEXTS[:2], [TEXTS[2:], TEXTS[1:4]])) for one in (plain, packed))
    assert np.abs(found - expected).max() < 5e-2 * np.abs(expected).max()


def test_float32_stays_as_it_is(tiny: dict[str, Path]) -> None:
    model = encoder.load(tiny["qwen2"], dtype="float32", device="cpu", packed=True).model
    assert not list_packed(model)
