"""The weights that are decayed, as transformers' Trainer chooses them, and what decay does to the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from architectures import ALL_ARCHITECTURES, SIZE, mark_rare

from ratchet.models.engine import group_weights

UNUSUAL: dict[str, Any] = {
    "cohere, whose norms of heads are matrices": lambda: transformers.CohereConfig(
        **SIZE, use_qk_norm=True
    ),
    "gpt_oss, whose biases of experts are matrices": ALL_ARCHITECTURES["gpt_oss"],
    "mpnet, whose bias of positions is an embedding": ALL_ARCHITECTURES["mpnet"],
    "mamba, whose last norm is norm_f": lambda: transformers.MambaConfig(
        hidden_size=32, num_hidden_layers=2, vocab_size=200, state_size=4
    ),
    "falcon, whose norms are ln_attn": lambda: transformers.FalconConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=200,
        new_decoder_architecture=True,
    ),
    "t5, whose norms are layer_norm": lambda: transformers.T5Config(
        d_model=32, d_ff=64, num_layers=2, vocab_size=200
    ),
}
CONFIGS = {**ALL_ARCHITECTURES, **UNUSUAL}


def make_model(config: Any) -> Any:
    config.pad_token_id = 0
    with torch.device("meta"):
        return transformers.AutoModel.from_config(config)


@pytest.mark.parametrize("name", mark_rare(CONFIGS))
def test_matrices_are_decayed_except_biases_and_norms(name: str) -> None:
    model = make_model(CONFIGS[name]())
    names = {id(weight): name for name, weight in model.named_parameters()}
    groups = group_weights(model, weight_decay=0.1)
    assert sorted(names[id(one)] for group in groups for one in group["params"]) == sorted(
        names.values()
    )
    decayed = {
        names[id(one)] for group in groups if group["weight_decay"] for one in group["params"]
    }
    trainer: Any = transformers.Trainer
    theirs = set(trainer.get_decay_parameter_names(None, model))
    matrices = {name for name, weight in model.named_parameters() if weight.ndim > 1}
    assert decayed == theirs & matrices
    norms = {
        id(one)
        for part in model.modules()
        if "Norm" in type(part).__name__
        for one in part.parameters(False)
    }
    assert norms
    assert not norms & {
        id(one) for group in groups if group["weight_decay"] for one in group["params"]
    }


def test_an_adapter_is_one_group() -> None:
    from ratchet.models.adapters import lora

    model = make_model(ALL_ARCHITECTURES["qwen2"]())
    model = lora.attach(
        model, lora_r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear", seed=0
    )
    (group,) = group_weights(model, weight_decay=0.1)
    assert group["weight_decay"] == 0.1
    assert len(group["params"]) == sum(weight.requires_grad for weight in model.parameters())


def test_without_gradients_only_the_decayed_weights_shrink() -> None:
    model: Any = transformers.BertModel(ALL_ARCHITECTURES["bert"]())
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    optimizer = torch.optim.AdamW(group_weights(model, weight_decay=0.5), lr=0.1)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    for name, weight in model.named_parameters():
        kept = 1.0 if name.endswith("bias") or "LayerNorm" in name else 0.95
        torch.testing.assert_close(weight.detach(), before[name] * kept, msg=name)
