"""Layers of adapters: for every architecture, an adapter of all linear layers can be trained and merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import ALL_ARCHITECTURES, SIZE, make

from ratchet.errors import ModelError
from ratchet.models.adapters import lora
from ratchet.models.embedder import encoder
from ratchet.models.loading import train_in_float32
from ratchet.models.merging import merge
from ratchet.models.reranker import reranker

SMALL = {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2}
CONFIGS: dict[str, Any] = {
    **{
        name: build
        for name, build in ALL_ARCHITECTURES.items()
        if name not in ("mixtral", "qwen3_moe", "gpt_oss")
    },
    "jina_embeddings_v3": lambda: transformers.AutoConfig.for_model("jina_embeddings_v3", **SIZE),
    "ibert": lambda: transformers.IBertConfig(**SIZE),
    "mamba": lambda: transformers.MambaConfig(**SMALL, state_size=4),
    "convbert": lambda: transformers.ConvBertConfig(**SIZE),
    "falcon": lambda: transformers.FalconConfig(**SMALL, num_attention_heads=4),
    "mpt": lambda: transformers.MptConfig(vocab_size=200, d_model=32, n_layers=2, n_heads=4),
    "phi": lambda: transformers.PhiConfig(**SIZE),
    "gpt_bigcode": lambda: transformers.GPTBigCodeConfig(
        vocab_size=200, n_embd=32, n_layer=2, n_head=4
    ),
}
UNFIT = ("ibert", "mamba")
"""Without layers that PEFT adapts."""
USED_AS: dict[str, Any] = {
    "backbone": transformers.AutoModel,
    "causal": transformers.AutoModelForCausalLM,
}


def save(name: str, kind: str, folder: Path) -> Path:
    config = CONFIGS[name]()
    config.pad_token_id = 0
    torch.manual_seed(0)
    USED_AS[kind].from_config(config).save_pretrained(folder)
    return folder


def train_and_merge(base: Path, auto: Any, names: str, folder: Path) -> None:
    model = lora.attach(
        auto.from_pretrained(base),
        lora_r=2,
        lora_alpha=4,
        lora_dropout=0.0,
        target_modules=lora.split_names(names),
        seed=0,
    )
    train_in_float32(model)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    lora.save(model, folder / "adapter")
    merged = lora.load(auto.from_pretrained(base), folder / "adapter").merge_and_unload()
    merged.save_pretrained(folder / "merged")
    ids = torch.arange(3, 9)[None]
    with torch.no_grad():
        expected = model.eval()(input_ids=ids)[0]
        found = auto.from_pretrained(folder / "merged").eval()(input_ids=ids)[0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_adapters_are_trained_and_merged(name: str, tmp_path: Path) -> None:
    base = save(name, "backbone", tmp_path / "base")
    if name in UNFIT:
        with pytest.raises(
            ModelError, match="target_modules: all-linear given, which PEFT refuses"
        ):
            train_and_merge(base, USED_AS["backbone"], "all-linear", tmp_path)
    else:
        train_and_merge(base, USED_AS["backbone"], "all-linear", tmp_path)


@pytest.mark.parametrize(
    "name", ["bert", "mpnet", "albert", "electra", "camembert", "longformer", "big_bird"]
)
def test_a_base_without_a_pooler_makes_adapters_that_merge(
    name: str, tiny: dict[str, Path], tmp_path: Path
) -> None:
    """As a checkpoint of a masked language model has none, and the class of the backbone does."""
    base = make(
        name, transformers.AutoModelForMaskedLM, tmp_path / "base", tiny["bert"], pad_token_id=0
    )
    model = encoder.load(base, dtype="float32", device="cpu", training=True).model
    adapted = lora.attach(
        model, lora_r=2, lora_alpha=4, lora_dropout=0.0, target_modules="all-linear", seed=0
    )
    lora.save(adapted, tmp_path / "adapter")
    (tmp_path / "merged").mkdir()
    merge(base, tmp_path / "adapter", tmp_path / "merged")


@pytest.mark.parametrize("name", ["bert", "mpnet", "electra", "modernbert", "deberta-v2"])
def test_a_backbone_gets_a_head_and_merges(
    name: str, tiny: dict[str, Path], tmp_path: Path
) -> None:
    base = make(name, transformers.AutoModel, tmp_path / "base", tiny["bert"], pad_token_id=0)
    settings = reranker.RerankerConfig("cross_encoder", 64)
    made = reranker.load(
        base, reranker_config=settings, dtype="float32", device="cpu", training=True
    )
    options: dict[str, Any] = {
        "lora_r": 2,
        "lora_alpha": 4,
        "lora_dropout": 0.0,
        "seed": 0,
        "task": "SEQ_CLS",
    }
    heads = reranker.find_heads(made)
    lora.save(
        lora.attach(made.model, target_modules="all-linear", modules_to_save=heads, **options),
        tmp_path / "adapter",
    )
    (tmp_path / "merged").mkdir()
    merge(base, tmp_path / "adapter", tmp_path / "merged")
