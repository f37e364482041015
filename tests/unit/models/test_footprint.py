"""Memory and operations counted on meta tensors, against the same passes on real tensors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from model_shapes import SHAPES, save_shape

from ratchet.models.adapters import lora
from ratchet.models.embedder import projection
from ratchet.models.loading import train_in_float32, turn_off_dropout
from ratchet.models.meta import footprint
from ratchet.orchestrator.recipe import Settings, build, find, find_settings, read_settings

pytestmark = pytest.mark.slow

SIZE = {
    "vocab_size": 99,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
}
CONFIGS: dict[str, Any] = {
    "qwen2": transformers.Qwen2Config(**SIZE, num_key_value_heads=2, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**SIZE, num_key_value_heads=2, head_dim=32),
    "llama": transformers.LlamaConfig(**SIZE, num_key_value_heads=2),
    "mistral": transformers.MistralConfig(**SIZE, num_key_value_heads=2, sliding_window=8),
    "gemma3": transformers.Gemma3TextConfig(
        **SIZE, num_key_value_heads=2, head_dim=16, sliding_window=8
    ),
    "bert": transformers.BertConfig(**SIZE),
    "modernbert": transformers.ModernBertConfig(
        **SIZE, pad_token_id=0, cls_token_id=1, sep_token_id=2
    ),
    "xlm-roberta": transformers.XLMRobertaConfig(**SIZE),
}


def run_real(folder: Path, *, training: bool, dtype: torch.dtype) -> tuple[int, int, int]:
    """The weights, the peak, and the trained weights of the same passes with numbers, on the CPU."""
    config = transformers.AutoConfig.from_pretrained(folder)
    turn_off_dropout(config)
    config._attn_implementation = "eager"
    model: Any = transformers.AutoModel.from_config(config, dtype=dtype)
    weights = sum(weight.nbytes for weight in model.parameters())
    if training:
        options = {
            "lora_r": 4,
            "lora_alpha": 8,
            "lora_dropout": 0.0,
            "target_modules": "all-linear",
            "seed": 0,
        }
        model = lora.attach(model, **options)  # type: ignore[arg-type]
        train_in_float32(model)
    model.train(training)
    live = footprint._LiveBytes(model)
    plain = model.get_base_model() if training else model
    with live, torch.set_grad_enabled(training):
        cache = {"use_cache": False} if hasattr(config, "use_cache") else {}
        hidden = plain(input_ids=torch.zeros((2, 24), dtype=torch.int64), **cache).last_hidden_state
        if training:
            hidden.float().sum().backward()
    trained = [weight for weight in model.parameters() if weight.requires_grad and training]
    gradients = sum(weight.grad.nbytes for weight in trained if weight.grad is not None)
    return weights, live.peak - gradients, sum(weight.numel() for weight in trained)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_meta_tensors_need_what_real_ones_do(tmp_path: Path, name: str, training: bool) -> None:
    CONFIGS[name].save_pretrained(tmp_path)
    options = {"rows": 2, "length": 24, "lora_r": 4 * training, "eager": True}
    found = footprint.measure(tmp_path, "backbone", dtype="bfloat16", **options)  # type: ignore[arg-type]
    weights, peak, trained = run_real(tmp_path, training=training, dtype=torch.bfloat16)
    assert found.weights == weights
    assert found.trained == trained
    assert found.peak == pytest.approx(peak, rel=0.1)


@pytest.mark.parametrize(
    ("shape", "billions"),
    [("0.5B", 0.494), ("1.5B", 1.544), ("7B", 7.616), ("14B", 14.77), ("32B", 32.76)],
)
def test_published_shapes_have_their_numbers_of_weights(
    tmp_path: Path, shape: str, billions: float
) -> None:
    folder, size = save_shape(tmp_path, shape), SHAPES[shape]
    found = footprint.measure(folder, "causal", dtype="bfloat16", rows=1, length=16)
    assert found.weights / 2e9 == pytest.approx(billions, rel=1e-3)
    assert found.head == size["vocab_size"] * size["hidden_size"]
    head = size["hidden_size"] // size["num_attention_heads"]
    assert found.cache == 2 * size["num_hidden_layers"] * size["num_key_value_heads"] * head * 2
    assert found.largest == size["hidden_size"] * size["intermediate_size"]


def test_trained_weights_of_the_published_theorems(tmp_path: Path) -> None:
    """The number in the report of https://github.com/ajoudaki/CITER."""
    lines = [*read_settings(find_settings("published/theorems"))]
    lines += [f"{name}={tmp_path}" for name in ("base", "data")]
    steps, _, _ = build(find("theorems"), Settings.read(lines))
    (config,) = (one.config for one in steps if one.job.name == "finetune_embedder_pairs")
    shape = transformers.AutoConfig.from_pretrained(save_shape(tmp_path, "7B"))
    with torch.device("meta"):
        base: Any = transformers.AutoModel.from_config(shape)
        names = ("lora_r", "lora_alpha", "lora_dropout", "target_modules", "seed")
        model = lora.attach(base, **{name: getattr(config, name) for name in names})
    layer = projection.init(
        shape.hidden_size, config.projection, config.seed, bias=config.projection_bias
    )
    model.projection = layer
    assert model.get_nb_trainable_parameters()[0] == 12_388_352


@pytest.mark.soak
def test_what_lowers_the_memory_lowers_the_count(tmp_path: Path) -> None:
    whole = save_shape(tmp_path / "whole", "7B")
    short = shutil.copytree(whole, tmp_path / "short")  # four layers are counted faster than 28
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(
        json.dumps(config | {"num_hidden_layers": 4, "layer_types": None})
    )

    def peak(folder: Path = short, **options: Any) -> footprint.Footprint:
        given = {"dtype": "bfloat16", "rows": 8, "length": 256, "lora_r": 32, **options}
        return footprint.measure(folder, "backbone", **given)

    assert peak(whole, gradient_checkpointing=True).peak < peak(whole).peak / 10
    plain = peak()
    assert peak(rows=4).peak == pytest.approx(plain.peak / 2, rel=0.05)
    four_bits = peak(quantization="nf4")
    size = SHAPES["7B"]
    embeddings = size["vocab_size"] * size["hidden_size"]
    layers = plain.weights / 2 - embeddings
    assert four_bits.weights == pytest.approx(plain.weights - layers * (2 - 0.516), rel=1e-3)
    assert four_bits.loaded == plain.weights + four_bits.weights
    assert peak(eager=True).peak > plain.peak
