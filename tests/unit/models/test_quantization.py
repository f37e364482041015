"""QLoRA with real weights in nf4, double quantized, on the CPU."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from architectures import make

from ratchet.models.adapters import lora
from ratchet.models.decoder import decoder
from ratchet.models.embedder import encoder
from ratchet.models.loading import train_in_float32
from ratchet.models.reranker import reranker
from ratchet.models.reranker.reranker_config import RerankerConfig

# They make models of real architectures.
pytestmark = pytest.mark.slow

ASK = RerankerConfig(
    "yes_no", 64, None, "w1{text}", "w2{text}", "w", "w3w3", answer="w", against="9"
)


@pytest.fixture(scope="module")
def base(tiny: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder whose layers are as wide as a block of 4-bit weights is long."""
    folder = tmp_path_factory.mktemp("base")
    config = transformers.AutoConfig.from_pretrained(
        tiny["qwen2"], hidden_size=64, intermediate_size=128
    )
    torch.manual_seed(0)
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(tiny["qwen2"]).save_pretrained(folder)
    return folder


def linears(model: Any) -> dict[str, torch.Tensor]:
    return {
        name: weight for name, weight in model.named_parameters() if weight.dtype == torch.uint8
    }


@pytest.mark.parametrize("kind", ["encoder", "reranker"])
def test_an_adapter_learns_over_a_base_in_4_bits_that_stays(
    base: Path, tmp_path: Path, kind: str
) -> None:
    options: dict[str, Any] = {
        "dtype": "bfloat16",
        "device": "cpu",
        "training": True,
        "quantization": "nf4",
    }
    one: Any
    if kind == "encoder":
        one = encoder.load(base, **options)
    else:
        one = reranker.load(base, **options, reranker_config=ASK)
    plain = one.model
    assert len(linears(plain)) == 2 * 7
    assert plain.config.quantization_config.bnb_4bit_use_double_quant
    model = lora.attach(
        plain, lora_r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear", seed=0
    )
    train_in_float32(model)
    one.model = model
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    assert {weight.dtype for weight in trained} == {torch.float32}
    optimizer = torch.optim.AdamW(trained, lr=2e-2)
    texts = ["w1", "w2w3", "w4w5w6"]
    losses = []
    for _ in range(12):
        if kind == "encoder":
            rows = one.tokenize(texts, "passage")
            vectors = torch.cat(
                [one.embed(torch.tensor([row]), torch.ones(1, len(row)).long()) for row in rows]
            )
            loss = (vectors @ vectors.T)[0, 1:].sum()
        else:
            scores = one.forward(one.tokenize(["w1"], [texts]))
            loss = torch.nn.functional.cross_entropy(scores[None], torch.tensor([2]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if len(losses) == 4:  # an evaluation between two steps
            (one.encode if kind == "encoder" else one.score)(
                *((texts, "passage") if kind == "encoder" else (["w1"], [texts]))
            )
    assert losses[-1] < losses[0] - 0.1
    assert len(linears(plain)) == 2 * 7
    assert not any(weight.requires_grad for weight in linears(plain).values())
    lora.save(model, tmp_path)
    # What was learnt over 4 bits is an adapter for the base as it is.
    if kind == "encoder":
        whole = encoder.load(base, tmp_path, dtype="float32", device="cpu")
        found = whole.encode(texts, "passage")
        assert float(found[0] @ found[1] + found[0] @ found[2]) < losses[0]
    else:
        whole = reranker.load(base, tmp_path, dtype="float32", device="cpu", reranker_config=ASK)
        assert int(np.argmax(whole.score(["w1"], [texts])[0])) == 2


@pytest.mark.parametrize("kind", ["encoder", "reranker", "decoder"])
def test_inference_in_4_bits(base: Path, tmp_path: Path, kind: str) -> None:
    load: Any = {
        "encoder": encoder.load,
        "decoder": decoder.load,
        "reranker": partial(reranker.load, reranker_config=ASK),
    }
    load = load[kind]
    plain = load(base, dtype="float32", device="cpu", training=True).model
    model = lora.attach(
        plain, lora_r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear", seed=0
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.copy_(
                    torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) / 3
                )
    lora.save(model, tmp_path)
    texts, found = ["w1w2w3", "w4w5w6w7", "w8"], {}
    for adapter in (None, tmp_path):
        for quantization in ("none", "nf4"):
            options: dict[str, Any] = {
                "dtype": "float32",
                "device": "cpu",
                "quantization": quantization,
            }
            one = load(base, adapter, **options)
            if kind == "encoder":
                values = one.encode(texts, "passage").ravel()
            elif kind == "reranker":
                values = one.score(["w1"], [texts])[0]
            else:
                with torch.no_grad():
                    values = one.model(torch.arange(3, 40)[None]).logits.ravel().numpy()
            assert len(linears(one.model)) == (2 * 7 if quantization == "nf4" else 0)
            found[adapter is None, quantization] = np.asarray(values, np.float64)

    def distance(one: tuple[bool, str], other: tuple[bool, str]) -> float:
        return float(np.linalg.norm(found[one] - found[other]) / np.linalg.norm(found[other]))

    for is_base in (True, False):
        assert 0 < distance((is_base, "nf4"), (is_base, "none")) < 0.35
    assert distance((False, "nf4"), (False, "none")) < distance((True, "nf4"), (False, "none"))


@pytest.mark.parametrize("name", ["bert", "xlm-roberta", "modernbert"])
def test_the_head_of_a_cross_encoder_stays_whole(
    tiny: dict[str, Path], tmp_path: Path, name: str
) -> None:
    make(
        name, transformers.AutoModelForSequenceClassification, tmp_path, tiny["bert"], num_labels=1
    )
    agreed = RerankerConfig("cross_encoder", 64)
    options: dict[str, Any] = {"dtype": "float32", "device": "cpu", "reranker_config": agreed}
    one = reranker.load(tmp_path, **options, quantization="nf4")
    assert len(linears(one.model)) >= 2 * 4
    assert not [
        part for part in linears(one.model) if not any(own in part for own in ("layer.", "layers."))
    ]
    assert np.isfinite(one.score(["w1"], [["w1", "w2w3"]])[0]).all()
    heads = reranker.find_heads(
        one := reranker.load(tmp_path, **options, quantization="nf4", training=True)
    )
    to_train: dict[str, Any] = {
        "lora_r": 4,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
        "target_modules": "all-linear",
    }
    one.model = lora.attach(one.model, **to_train, seed=0, modules_to_save=heads, task="SEQ_CLS")
    train_in_float32(one.model)
    one.forward(one.tokenize(["w1"], [["w1", "w2w3"]])).sum().backward()


def test_a_model_without_a_head_gets_all_of_it(tiny: dict[str, Path], tmp_path: Path) -> None:
    make("modernbert", transformers.AutoModel, tmp_path, tiny["bert"])
    one = reranker.load(
        tmp_path, device="cpu", reranker_config=RerankerConfig("cross_encoder", 64), training=True
    )
    assert one.new_layers == ["classifier", "head.dense", "head.norm"]
    assert reranker.find_heads(one) == ["classifier", "head"]
