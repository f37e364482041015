"""A causal language model with its tokenizer: opened for training or for answering.

Legend: B rows, L tokens (padded), D dimensions, V vocabulary, T tokens that are labels.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from models.conversation import Conversations
from models.devices import place, torch_dtype
from models.errors import ModelError
from models.loading import moved, open_model, quiet
from models.weights import TOKENIZER_FILES


class Decoder:
    """A model, its conversations, and where it is."""

    def __init__(self, model: Any, conversations: Conversations) -> None:
        self.model, self.conversations = model, conversations
        self.device = next(model.parameters()).device

    @property
    def tokenizer(self) -> Any:
        return self.conversations.tokenizer

    @property
    def causal(self) -> Any:
        """The model without an adapter's wrapping."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    def hidden(self, ids_BL: Tensor, **options: Any) -> Tensor:
        """The last layer's states [B, L, D], before the head."""
        return self.causal.base_model(input_ids=ids_BL, use_cache=False, **options).last_hidden_state

    def logits(self, hidden_TD: Tensor) -> Tensor:
        """[T, V], as wide as the head's weights."""
        return self.causal.get_output_embeddings()(hidden_TD)


def load(
    base: Path,
    adapter: Path | None = None,
    *,
    dtype: str = "auto",
    device: str = "auto",
    training: bool = False,
    quantization: str = "none",
) -> Decoder:
    """A model folder, a LoRA adapter merged into its weights (in float32, before the cast; not where it is trained).

    Raises ModelError for an unusable folder, or a tokenizer without an end of sequence.
    """
    where = place(device)
    kind = torch_dtype(dtype, where)
    merging = adapter is not None and not training
    model, _ = open_model(
        transformers.AutoModelForCausalLM,
        base,
        dtype=torch.float32 if merging else kind,
        device=where,
        training=training,
        quantization=quantization,
        may_lack=lambda name: False,
    )
    if merging and adapter is not None:
        from models import lora

        model = lora.merged(model, adapter)
    model = moved(model, where, kind)
    model.train(training)
    return Decoder(model, conversations(base))


def conversations(base: Path) -> Conversations:
    """A folder's alone. Raises ModelError for a tokenizer without an end of sequence."""
    return Conversations(transformers.AutoTokenizer.from_pretrained(base))


def merge(base: Path, adapter: Path, target: Path, *, dtype: str, device: str) -> None:
    """Writes what `load` would open to answer on `device` as a folder of its own, for who reads nothing else.

    A folder that is there is whole: an earlier, killed attempt leaves none.
    """
    if target.exists():
        return
    found = load(base, adapter, dtype="float32", device="cpu").model.to(torch_dtype(dtype, torch.device(device)))
    unfinished = target.with_name(f"{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    with quiet():
        found.save_pretrained(str(unfinished))
    for file in (file for pattern in TOKENIZER_FILES for file in base.glob(pattern)):
        shutil.copyfile(file, unfinished / file.name)
    unfinished.rename(target)


def check(base: Path) -> None:
    """Raises ModelError for a folder whose model does not answer, or whose tokenizer has no end of sequence; reads no
    weights."""
    config = transformers.AutoConfig.from_pretrained(base)
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(
            f"model {base}: {config.model_type} is no causal language model; expected one that writes, such as Qwen2"
        )
    conversations(base)


def check_same_tokens(one: Path, other: Path) -> None:
    """Raises ModelError where the same text is other tokens, or the same token another text."""
    first, second = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (one, other))
    mine, theirs = first.get_vocab(), second.get_vocab()
    # Spare rows that only one of them has mean nothing to the other; a word under two numbers does.
    differ = next((token for token in mine.keys() & theirs.keys() if mine[token] != theirs[token]), None)
    probe = "Combine 12 and 3.5 into \\boxed{42}: naïve café, x² = 4\n<answer>(1 + 2) * 3</answer>"
    same = first(probe, add_special_tokens=False)["input_ids"] == second(probe, add_special_tokens=False)["input_ids"]
    if differ is not None or not same:
        raise ModelError(
            f"models {one} and {other}: their tokens differ"
            f" ({f'{differ!r} is {mine[differ]} and {theirs[differ]}' if differ else 'a text is cut otherwise'});"
            " expected the same, as distributions over other tokens teach nothing; let the teacher's answers teach"
        )
