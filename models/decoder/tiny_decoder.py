"""A small Qwen2 model with random weights and a tokenizer trained on given texts, for laptops and tests."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from ratchet.models.loading import silence_transformers

START = "<|im_start|>"
END = "<|im_end|>"
PAD = "<|pad|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    + START
    + "{{ message.role }}\n{{ message.content }}"
    + END
    + "\n{% endfor %}"
    "{% if add_generation_prompt %}" + START + "assistant\n{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer (Sennrich et al. 2016) of at most `vocabulary` tokens. Each digit is one
    token."""
    splits = Tokenizer(models.BPE())
    splits.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    splits.decoder = decoders.ByteLevel()
    special = [PAD, START, END]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    splits.train_from_iterator(texts, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=splits, pad_token=PAD, eos_token=END, extra_special_tokens=[START]
    )
    made.chat_template = CHAT_TEMPLATE
    return made


def save_decoder(
    folder: Path, texts: Iterable[str], *, vocab_size: int, seed: int, **sizes: Any
) -> int:
    """Write model and tokenizer as a Hugging Face folder. Return the number of parameters.

    vocab_size: upper bound. sizes: hidden_size, num_hidden_layers, num_attention_heads, max_position_embeddings."""
    words = train_tokenizer(texts, vocab_size)
    words.save_pretrained(str(folder))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=-(-(len(words) + 8) // 64)
                * 64,  # room for tokens that transformers adds
                intermediate_size=4 * sizes["hidden_size"],
                num_key_value_heads=sizes["num_attention_heads"],
                tie_word_embeddings=True,
                pad_token_id=words.pad_token_id,
                eos_token_id=words.eos_token_id,
                bos_token_id=None,
                **sizes,
            )
        )
    with silence_transformers():
        model.save_pretrained(str(folder), safe_serialization=True)
    return sum(parameter.numel() for parameter in model.parameters())
