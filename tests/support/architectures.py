"""Small models with random weights, made from the configs of real architectures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

SIZE = {
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 200,
}
DECODER = {"num_key_value_heads": 1, "head_dim": 64, "max_position_embeddings": 4096, "rope_theta": 1e6, **SIZE}
ARCHITECTURES: dict[str, Any] = {
    "qwen2": lambda: transformers.Qwen2Config(**DECODER),
    "qwen3": lambda: transformers.Qwen3Config(**DECODER),
    "llama": lambda: transformers.LlamaConfig(**DECODER),
    "mistral": lambda: transformers.MistralConfig(**DECODER, sliding_window=None),
    "mistral-window": lambda: transformers.MistralConfig(**DECODER, sliding_window=64),
    "gemma3": lambda: transformers.Gemma3TextConfig(**DECODER, sliding_window=64),
    "bert": lambda: transformers.BertConfig(**SIZE),
    "xlm-roberta": lambda: transformers.XLMRobertaConfig(**SIZE, max_position_embeddings=514),
    "modernbert": lambda: transformers.ModernBertConfig(**SIZE, global_attn_every_n_layers=2, local_attention=32),
}


def make(name: str, kind: Any, folder: Path, tokenizer: Path) -> Path:
    config = ARCHITECTURES[name]()
    for token in ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"):
        if hasattr(config, token):
            setattr(config, token, 1)
    torch.manual_seed(0)
    kind.from_config(config).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return folder
