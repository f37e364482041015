"""Models in bfloat16, made from the configs of real architectures, against plain transformers on the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from architectures import ARCHITECTURES, make

from ratchet.models.adapters import lora
from ratchet.models.decoder import decoder
from ratchet.models.embedder import encoder
from ratchet.models.loading import move_model, train_in_float32
from ratchet.models.reranker import reranker
from ratchet.models.reranker.reranker_config import RerankerConfig

pytestmark = pytest.mark.slow

IDS = torch.randint(10, 190, (2, 300), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_vectors_are_those_of_transformers(
    name: str, dtype: str, tiny: dict[str, Path], tmp_path: Path, record_property: Any
) -> None:
    folder = make(name, transformers.AutoModel, tmp_path / "base", tiny["qwen2"])
    ours = encoder.load(folder, dtype=dtype, device="cpu").model
    plain = transformers.AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    mask = torch.ones_like(IDS)
    with torch.no_grad():
        found, expected = (
            one(IDS, attention_mask=mask).last_hidden_state.float() for one in (ours, plain)
        )
    largest = float((found - expected).abs().max() / expected.abs().max())
    record_property("largest difference", largest)
    assert largest < (1e-5 if dtype == "float32" else 1e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if "bert" not in name])
def test_logits_and_gradients_are_those_of_transformers(
    name: str, dtype: str, tiny: dict[str, Path], tmp_path: Path
) -> None:
    """The adapter's weights are float32 in ours, and in the plain model all weights are."""
    folder = make(name, transformers.AutoModelForCausalLM, tmp_path / "base", tiny["qwen2"])
    ours = decoder.load(folder, dtype=dtype, device="cpu").model
    plain = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype)
    ).eval()
    with torch.no_grad():
        found, expected = (one(IDS).logits.float() for one in (ours, plain))
    assert float((found - expected).abs().max() / expected.abs().max()) < (
        1e-5 if dtype == "float32" else 1e-2
    )
    options: dict[str, Any] = {
        "lora_r": 4,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
        "target_modules": "all-linear",
    }
    gradients = []
    for kind in (dtype, "float32"):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, kind)
        ).eval()
        model = lora.attach(model, **options, seed=0, task="CAUSAL_LM")
        if kind == dtype:
            train_in_float32(model)
        with torch.no_grad():
            for weight_name, weight in model.named_parameters():
                if "lora_B" in weight_name:
                    weight.copy_(
                        torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) / 30
                    )
                assert weight.dtype == (
                    torch.float32 if weight.requires_grad else getattr(torch, kind)
                )
        model(IDS, labels=IDS).loss.backward()
        gradients.append(
            torch.cat(
                [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
            )
        )
    error = float((gradients[0] - gradients[1]).norm() / gradients[1].norm())
    assert error < (1e-5 if dtype == "float32" else 0.1)


def test_rotary_frequencies_keep_their_precision(tiny: dict[str, Path], tmp_path: Path) -> None:
    """At position 2,048 frequencies in bfloat16 turn by radians."""
    folder = make("qwen2", transformers.AutoModel, tmp_path / "base", tiny["qwen2"])
    exact = transformers.AutoModel.from_pretrained(folder).rotary_emb.inv_freq
    for dtype in (torch.bfloat16, torch.float32):
        model = transformers.AutoModel.from_pretrained(folder)
        moved = move_model(model, torch.device("cpu"), dtype)
        assert moved.dtype == dtype
        assert torch.equal(moved.rotary_emb.inv_freq, exact)


@pytest.mark.parametrize("name", ["xlm-roberta", "bert"])
def test_a_text_is_cut_where_the_positions_end(
    name: str, tiny: dict[str, Path], tmp_path: Path
) -> None:
    """Two of the 514 positions of XLM-R are not used."""
    folder = make(name, transformers.AutoModel, tmp_path / "base", tiny["qwen2"])
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**settings, "model_max_length": None})
    )
    one = encoder.load(folder, dtype="float32", device="cpu")
    assert one.encoding_config.max_length == 512
    assert len(one.tokenize(["w1 " * 2000], "passage")[0]) == 512
    assert one.encode(["w1 " * 2000], "passage").shape == (1, 128)


@pytest.mark.parametrize("name", ["bert", "xlm-roberta", "modernbert", "deberta-v2", "qwen2"])
def test_scores_of_classifiers_are_not_rounded_to_bfloat16(
    name: str, minilm: Path, tmp_path: Path
) -> None:
    folder = make(
        name,
        transformers.AutoModelForSequenceClassification,
        tmp_path / "base",
        minilm,
        vocab_size=30528,
        pad_token_id=0,
        num_labels=1,
    )
    given = RerankerConfig("cross_encoder", 64)
    rows = ["river", "teapot"], [[f"w{i} and {i * 7} stones" for i in range(4)]] * 2
    one = reranker.load(folder, dtype="bfloat16", device="cpu", reranker_config=given)
    scores = np.concatenate(one.score(*rows))
    rounded = torch.from_numpy(scores).bfloat16().float().numpy()
    assert np.mean(scores != rounded) > 0.5
