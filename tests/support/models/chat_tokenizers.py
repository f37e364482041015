"""A tokenizer of bytes with tokens of turns, a chat template for it, and a view of labels."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ratchet.models.decoder.conversation import Conversations, Tokens

CHAT = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}<e>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def tokenizer(**special: Any) -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(
        models.BPE(
            {name: i for i, name in enumerate(["<pad>", "<end>", "<s>", "<e>", *alphabet])}, []
        )
    )
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    named = {
        "pad_token": "<pad>",
        "eos_token": "<end>",
        "extra_special_tokens": ["<s>", "<e>"],
    } | special
    return PreTrainedTokenizerFast(tokenizer_object=words, **{k: v for k, v in named.items() if v})


def shown(conversations: Conversations, tokens: Tokens) -> str:
    """The text, what is trained on in brackets."""
    out, inside = "", False
    for token, own in zip(tokens.ids, tokens.trained, strict=True):
        out += "[" * (own and not inside) + "]" * (inside and not own)
        out, inside = out + conversations.tokenizer.decode([token]), own
    return out + "]" * inside
