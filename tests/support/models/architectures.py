"""Small random models of the architectures that are tested, and adapters that change them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ratchet.models.adapters import lora

SIZE = {
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 200,
}
DECODER = {
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rope_theta": 1e6,
    **SIZE,
}
ARCHITECTURES: dict[str, Any] = {
    "qwen2": lambda: transformers.Qwen2Config(**DECODER),
    "qwen3": lambda: transformers.Qwen3Config(**DECODER),
    "llama": lambda: transformers.LlamaConfig(**DECODER),
    "mistral": lambda: transformers.MistralConfig(**DECODER, sliding_window=None),
    "mistral-window": lambda: transformers.MistralConfig(**DECODER, sliding_window=64),
    "gemma3": lambda: transformers.Gemma3TextConfig(**DECODER, sliding_window=64),
    "bert": lambda: transformers.BertConfig(**SIZE),
    "xlm-roberta": lambda: transformers.XLMRobertaConfig(**SIZE, max_position_embeddings=514),
    "modernbert": lambda: transformers.ModernBertConfig(
        **SIZE, global_attn_every_n_layers=2, local_attention=32
    ),
}

WINDOWS = {"attention_window": [8, 8], "max_position_embeddings": 514}
EXPERTS = {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2}
ALL_ARCHITECTURES: dict[str, Any] = {
    **ARCHITECTURES,
    "mpnet": lambda: transformers.MPNetConfig(**SIZE, max_position_embeddings=514),
    "deberta": lambda: transformers.DebertaConfig(
        **SIZE, relative_attention=True, pos_att_type=["c2p", "p2c"]
    ),
    "deberta-v2": lambda: transformers.DebertaV2Config(
        **SIZE, relative_attention=True, pos_att_type=["c2p", "p2c"], type_vocab_size=0
    ),
    "longformer": lambda: transformers.LongformerConfig(**SIZE, **WINDOWS),
    "big_bird": lambda: transformers.BigBirdConfig(**SIZE),
    "electra": lambda: transformers.ElectraConfig(**SIZE, embedding_size=128),
    "albert": lambda: transformers.AlbertConfig(**SIZE, embedding_size=64),
    "distilbert": lambda: transformers.DistilBertConfig(
        vocab_size=200, dim=128, hidden_dim=64, n_layers=2, n_heads=2
    ),
    "roberta": lambda: transformers.RobertaConfig(**SIZE, max_position_embeddings=514),
    "camembert": lambda: transformers.CamembertConfig(**SIZE, max_position_embeddings=514),
    "xlm-roberta-xl": lambda: transformers.XLMRobertaXLConfig(**SIZE),
    "data2vec-text": lambda: transformers.Data2VecTextConfig(**SIZE, max_position_embeddings=514),
    "nomic_bert": lambda: transformers.NomicBertConfig(**SIZE),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=200, n_embd=128, n_layer=2, n_head=2),
    "bloom": lambda: transformers.BloomConfig(vocab_size=200, hidden_size=128, n_layer=2, n_head=2),
    "opt": lambda: transformers.OPTConfig(**SIZE, ffn_dim=64, word_embed_proj_dim=128),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**SIZE),
    "phi3": lambda: transformers.Phi3Config(**DECODER),
    "gemma": lambda: transformers.GemmaConfig(**DECODER),
    "gemma2": lambda: transformers.Gemma2Config(**DECODER, sliding_window=64),
    "gpt_oss": lambda: transformers.GptOssConfig(**EXPERTS),
    "mixtral": lambda: transformers.MixtralConfig(**EXPERTS),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **DECODER, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64
    ),
}
"""Also those that are tested for some of their properties only."""

COMMON = ("qwen2", "bert", "xlm-roberta", "modernbert", "mpnet", "gpt2")


def mark_rare(names: Iterable[str]) -> list[Any]:
    """Return names of architectures as parameters of a test. The rare ones are left for `make test-soak`."""
    found: list[Any] = []
    for name in names:
        found.append(name if name in COMMON else pytest.param(name, marks=pytest.mark.soak))
    return found


def make(
    name: str,
    kind: Any,
    folder: Path,
    tokenizer: Path,
    *,
    dtype: str = "float32",
    files: int = 1,
    **settings: Any,
) -> Path:
    """Save a random model as the auto class `kind`, in at least `files` files. settings: of its config."""
    config = ALL_ARCHITECTURES[name]()
    for token in ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"):
        if hasattr(config, token):
            setattr(config, token, 1)
    for setting, value in settings.items():
        setattr(config, setting, value)
    torch.manual_seed(0)
    model = kind.from_config(config, dtype=getattr(torch, dtype))
    model.save_pretrained(
        folder, max_shard_size=sum(weight.nbytes for weight in model.parameters()) // files + 1
    )
    transformers.AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return folder


def trained(model: Any, whole: list[str], task: str, folder: Path) -> None:
    """Saves an adapter that changes something."""
    model = lora.attach(
        model,
        lora_r=4,
        lora_alpha=8,
        lora_dropout=0.0,
        target_modules="all-linear",
        seed=0,
        modules_to_save=whole,
        task=task,
    )
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    lora.save(model, folder)


HEADS = {"num_key_value_heads": 2}
WIDE = HEADS | {"head_dim": 8}
ROUTED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
CAUSAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("gemma", "glm", "glm4", "helium", "qwen3", "seed_oss", "ernie4_5"), WIDE),
    **dict.fromkeys(
        ("gemma2", "gemma3_text", "ministral", "olmo3"), WIDE | {"sliding_window": 512}
    ),
    **dict.fromkeys(("mistral", "starcoder2"), HEADS | {"sliding_window": None}),
    "mixtral": HEADS | {"sliding_window": None, "num_local_experts": 4},
    "qwen2_moe": HEADS | ROUTED | {"shared_expert_intermediate_size": 16},
    "qwen3_moe": WIDE | ROUTED,
    "gpt_oss": WIDE | {"sliding_window": 512, "num_local_experts": 4},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512},
    "opt": {"word_embed_proj_dim": 32, "ffn_dim": 64},
}
"""`model_type` -> settings beside the usual ones of a small model. Not listed: two heads of keys and values."""


def save_causal(kind: str, folder: Path, vocab_size: int) -> Path:
    """Save a small random causal language model of any `model_type`, with weights that make attention matter."""
    size = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    tokens = {"vocab_size": vocab_size, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    settings = {**size, **tokens, "max_position_embeddings": 512, **CAUSAL.get(kind, HEADS)}
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(kind, **settings)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6)
    model.save_pretrained(folder)
    return folder
