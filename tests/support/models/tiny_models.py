"""Small models with random weights and their tokenizers, saved as folders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from ratchet.models.decoder.tiny_decoder import save_decoder

WORDS = [f"w{i}" for i in range(40)]


def save_model(folder: Path, kind: str) -> Path:
    """A random model of `kind` (bert, qwen2, gpt2) with a tokenizer that splits at spaces (qwen2: characters)."""
    torch.manual_seed(0)
    size = {"vocab_size": 43, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    model: transformers.PreTrainedModel
    if kind == "bert":
        config = transformers.BertConfig(
            **size, intermediate_size=64, max_position_embeddings=64, pad_token_id=0
        )
        model = transformers.BertModel(config, add_pooling_layer=False)
    elif kind == "qwen2":
        more = {
            "intermediate_size": 64,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
        }
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**size, **more))
    else:
        config = transformers.GPT2Config(
            vocab_size=43, n_embd=32, n_layer=2, n_head=4, n_positions=64
        )
        model = transformers.GPT2LMHeadModel(config)
    # As initialised, weights are so small that attention hardly matters.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)
    model.save_pretrained(folder)
    special = {"[PAD]": 0, "[END]": 1, "[UNK]": 2}
    if (
        kind == "qwen2"
    ):  # transformers takes byte-level BPE for it, whatever was saved: here one character, one token
        splits = Tokenizer(
            models.BPE({**special, **{c: i + 3 for i, c in enumerate("w0123456789\u0120")}}, [])
        )
        splits.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        splits = Tokenizer(
            models.WordLevel({**special, **{w: i + 3 for i, w in enumerate(WORDS)}}, "[UNK]")
        )
        splits.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=splits,
        pad_token="[PAD]",
        eos_token="[END]",
        unk_token="[UNK]",
        model_max_length=64,
    ).save_pretrained(folder)
    return folder


def save_chat_model(folder: Path, texts: Iterable[str], **sizes: int) -> Path:
    """A random Qwen2 model with a chat tokenizer trained on the texts. sizes: those that are not as here."""
    usual = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 256,
    }
    save_decoder(folder, texts, vocab_size=300, seed=0, **usual | sizes)
    return folder
