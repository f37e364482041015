"""Causal language models with their tokenizers, for training and generation.

Legend: B rows, L tokens (padded), D dimensions, V vocabulary, T tokens that are labels.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import transformers
from torch import Tensor

from ratchet.errors import ModelError
from ratchet.models.decoder.conversation import Conversations, Tokens
from ratchet.models.loading import open_model, save_weights
from ratchet.models.model_files import read_main_dtype
from ratchet.models.model_kind import read_config, read_optional


class Decoder:
    """A causal language model, its chat tokenizer and its device."""

    def __init__(self, model: Any, conversations: Conversations) -> None:
        self.model = model
        self.conversations = conversations
        self.device = next(model.parameters()).device

    @property
    def tokenizer(self) -> Any:
        """The Hugging Face tokenizer."""
        return self.conversations.tokenizer

    @property
    def causal(self) -> Any:
        """The model without the PEFT wrapper."""
        if hasattr(self.model, "get_base_model"):
            return self.model.get_base_model()
        return self.model

    def hidden(self, ids_BL: Tensor, **options: Any) -> Tensor:
        """Return the last layer's states [B, L, D], before the head, on the device of the ids."""
        return self.causal.base_model(
            input_ids=ids_BL, use_cache=False, **options
        ).last_hidden_state.to(ids_BL.device)

    def logits(self, hidden_TD: Tensor) -> Tensor:
        """Return logits [T, V]; V is the number of rows of the head."""
        return self.causal.get_output_embeddings()(hidden_TD)

    def call_head(
        self, compute: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor], hidden_TD: Tensor
    ) -> Tensor:
        """Return compute(head, hidden_TD), where `head` maps states to logits, in one call of the head's module. Under
        ZeRO-3 a call gathers the head's weights once, and once more in the backward pass, on all workers together."""
        head = self.causal.get_output_embeddings()
        head.forward = partial(compute, head.forward)
        try:
            return head(hidden_TD)
        finally:
            del head.forward


def load(
    base: Path,
    adapter: Path | None = None,
    *,
    template_arguments: Mapping[str, Any] | None = None,
    **options: Any,
) -> Decoder:
    """Load a model folder. A LoRA adapter is merged in float32, before the cast; when training, it is not loaded.

    options: `dtype`, `device`, `training` and `quantization`, see `open_model`. Raises ModelError for an unusable
    folder or a tokenizer without an end-of-sequence token."""
    model, _ = open_model(transformers.AutoModelForCausalLM, base, adapter, **options)
    return Decoder(model, load_conversations(base, template_arguments))


def load_conversations(
    base: Path, template_arguments: Mapping[str, Any] | None = None
) -> Conversations:
    """Load the chat tokenizer only. Raises ModelError as `Conversations` does."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    return Conversations(tokenizer, template_arguments, read_generation_ends(base))


def read_generation_ends(folder: Path) -> list[int]:
    """Return the tokens that end an answer according to generation_config.json; none without the file."""
    ends = read_optional(folder / "generation_config.json").get("eos_token_id")
    if ends is None:
        return []
    if isinstance(ends, list):
        return ends
    return [ends]


def write_generation_ends(folder: Path) -> None:
    """Add the tokens that end an answer to generation_config.json of a model folder: other libraries stop there. Does
    nothing for a model whose tokenizer or chat template Ratchet refuses, and which it cannot have trained."""
    try:
        ends = load_conversations(folder).ends
    except ModelError:
        return
    known = read_generation_ends(folder)
    config = read_config(folder)
    if ends.issubset(known):
        return
    file = folder / "generation_config.json"
    other = {}
    for name in ("bos_token_id", "pad_token_id"):
        if name in config:
            other[name] = config[name]
    settings = (read_optional(file) or other) | {
        "eos_token_id": [*known, *sorted(ends.difference(known))]
    }
    file.write_text(json.dumps(settings, indent=2) + "\n")


def merge(base: Path, adapter: Path, target: Path) -> None:
    """Write base plus adapter, in the dtype of the base, as a model folder for other libraries. Does nothing if
    `target` exists: the folder is renamed into place when it is complete."""
    if target.exists():
        return
    unfinished = target.with_name(f"{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    dtype = read_main_dtype(base)
    model, _ = open_model(
        transformers.AutoModelForCausalLM, base, adapter, dtype=dtype, device="cpu"
    )
    save_weights(model, base, unfinished)
    unfinished.rename(target)


def check(base: Path) -> None:
    """Raise ModelError for a folder of no causal language model, or whose tokenizer has no end-of-sequence token.
    Reads no weights."""
    config = transformers.AutoConfig.from_pretrained(base)
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(
            f"model {base}: {config.model_type} is no causal language model; expected one, such as"
            " Qwen2; give another model"
        )
    load_conversations(base)


def check_head(base: Path) -> None:
    """Raise ModelError for a model that caps or scales its logits after the linear head, as Gemma 2 does: losses and
    distributions are computed from the head alone. Reads no weights."""
    config = transformers.AutoConfig.from_pretrained(base).get_text_config()
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier"):
        value = getattr(config, name, None)
        if value not in (None, 1, 0):
            raise ModelError(
                f"model {base}: {name}={value} in config.json; expected a plain linear head; use another model"
            )


def _compare_tokens(one: Path, other: Path) -> tuple[list[int], list[Tokens]]:
    """Return the ids of the tokens that two vocabularies share, none if a token has two ids, and a conversation as each
    tokenizer reads it."""
    first = load_conversations(one)
    second = load_conversations(other)
    mine = first.tokenizer.get_vocab()
    theirs = second.tokenizer.get_vocab()
    # Tokens that only one vocabulary has are harmless; a token with two ids is not.
    shared = mine.keys() & theirs.keys()
    ids = []
    if all(mine[token] == theirs[token] for token in shared):
        ids = sorted(mine[token] for token in shared)
    probe = "Combine 12 and 3.5 into \\boxed{42}: naïve café, x² = 4\n<answer>(1 + 2) * 3</answer>"
    return ids, [talks.tokenize_sample("", [probe], [probe]) for talks in (first, second)]


def find_shared_tokens(teacher: Path, student: Path) -> list[int]:
    """Return the ids of the tokens that two vocabularies share, in increasing order. The chat templates may differ.
    Raises ModelError if a shared token has two ids, or if an answer has other tokens in one model than in the other,
    with the token that ends it."""
    shared, samples = _compare_tokens(teacher, student)
    answers = []
    for sample in samples:
        start = sample.trained.index(True)
        answers.append(sample.ids[start : start + sample.labels])
    if not shared or answers[0] != answers[1]:
        raise ModelError(
            f"teacher {teacher}: its tokens of an answer are not those of {student}; expected the same ids, since"
            " distributions are compared token by token; use a teacher of the same family, or train on the teacher's"
            " answers instead"
        )
    return shared


def check_same_tokens(one: Path, other: Path) -> None:
    """Raise ModelError if two tokenizers differ in the id of a shared token, or in the tokens and labels of a
    conversation. The latter include the chat template and the token that ends an answer."""
    shared, samples = _compare_tokens(one, other)
    if not shared or samples[0] != samples[1]:
        raise ModelError(
            f"models {one} and {other}: their tokens of a conversation differ; expected the same, since"
            " log-probabilities are per token; give both the same vocabulary, chat template and eos_token in"
            " tokenizer_config.json, or train on the teacher's answers instead"
        )
