"""Model folders with the shapes of published models but without weights, which plans do not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config

from ratchet.data.formats.eedi import PROMPT
from ratchet.models.decoder.tiny_decoder import CHAT_TEMPLATE, END, START

SHAPES: dict[str, dict[str, Any]] = {
    "0.5B": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
             "num_key_value_heads": 2, "vocab_size": 151_936, "tie_word_embeddings": True},
    "1.5B": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
             "num_key_value_heads": 2, "vocab_size": 151_936, "tie_word_embeddings": True},
    "7B": {"hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28, "num_attention_heads": 28,
           "num_key_value_heads": 4, "vocab_size": 152_064, "tie_word_embeddings": False},
    "14B": {"hidden_size": 5120, "intermediate_size": 13_824, "num_hidden_layers": 48, "num_attention_heads": 40,
            "num_key_value_heads": 8, "vocab_size": 152_064, "tie_word_embeddings": False},
    "32B": {"hidden_size": 5120, "intermediate_size": 27_648, "num_hidden_layers": 64, "num_attention_heads": 40,
            "num_key_value_heads": 8, "vocab_size": 152_064, "tie_word_embeddings": False},
}  # fmt: skip
"""Qwen2.5's."""
PROJECTIONS = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


def save_shape(folder: Path, shape: str) -> Path:
    """A config of the true shape, a tokenizer of bytes, and weights of one number each under the names of a layer."""
    config = Qwen2Config(**SHAPES[shape], max_position_embeddings=32_768)
    config.architectures = ["Qwen2ForCausalLM"]
    config.save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: i for i, name in enumerate(["<pad>", "<end>", *alphabet])}
    splits = Tokenizer(models.BPE(vocabulary, []))
    splits.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=splits, pad_token="<pad>", eos_token="<end>")
    fast.add_tokens(["Yes", "No", START, END])
    fast.add_tokens(
        [f" {word}" for word in PROMPT.split()]
    )  # a prompt in bytes would leave no room
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    names = [f"model.layers.0.{part}.weight" for part in (*PROJECTIONS, "norm")]
    header = {
        n: {"dtype": "BF16", "shape": [1], "data_offsets": [2 * i, 2 * i + 2]}
        for i, n in enumerate(names)
    }
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + bytes(2 * len(names))
    )
    return folder
