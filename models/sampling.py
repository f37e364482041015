"""Answers to prompts by Hugging Face `generate`, batched by length, each answer with randomness of its own.

An answer's tokens are drawn by uniform numbers that follow from (seed, its name) alone: which prompts share a batch,
and how many workers there are, changes nothing that is drawn. (A token is where its number falls in the cumulated
probabilities; a batch's rounding can move it only if the number falls within a rounding of a border.)

Legend: B rows, L tokens (padded), V vocabulary, S steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from models.batching import pad, token_batches
from models.decoder import Decoder
from models.loading import evaluating


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn."""

    temperature: float = 1.0
    """0: always the likeliest token."""
    top_p: float = 1.0
    """Draw from the likeliest tokens that together have this probability."""
    top_k: int = 0
    """Draw from so many of the likeliest; 0: from all."""
    max_new_tokens: int = 512
    stop: tuple[str, ...] = ()
    """An answer is over after any of these texts."""
    seed: int = 0


class Drawn(LogitsProcessor):
    """Leaves, of each row, the one token that its uniform number of this step draws."""

    def __init__(self, uniform_BS: np.ndarray, sampling: Sampling, start: int) -> None:
        self.uniform_BS, self.start = uniform_BS, start
        self.temperature = sampling.temperature
        self.cuts: list[LogitsProcessor] = []
        if sampling.top_k:
            self.cuts.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1:
            self.cuts.append(TopPLogitsWarper(sampling.top_p))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        logits_BV = scores.float() / self.temperature
        for cut in self.cuts:
            logits_BV = cut(input_ids, logits_BV)
        cumulated_BV = torch.softmax(logits_BV, dim=-1).double().cumsum(dim=-1)
        step = input_ids.shape[1] - self.start
        drawn_B1 = torch.from_numpy(self.uniform_BS[:, step, None]).to(cumulated_BV.device)
        chosen_B1 = torch.searchsorted(cumulated_BV, drawn_B1 * cumulated_BV[:, -1:], right=True)
        only = torch.full_like(scores, -torch.inf)
        return only.scatter(1, chosen_B1.clamp(max=scores.shape[1] - 1), 0.0)


def uniform(seed: int, name: str, steps: int) -> np.ndarray:
    """float64 [S] in [0, 1), a function of its arguments; the first S do not depend on S."""
    return np.random.Generator(np.random.Philox(key=key(seed, name))).random(steps)


def key(seed: int, name: str) -> int:
    """128 bits that all of an answer's randomness follows from."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest(), "little")


def generate(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    names: Sequence[str],
    sampling: Sampling,
    *,
    batch_tokens: int = 16_384,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[int]]:
    """The generated token ids of each prompt, the one that ended it included, in the order given.

    names: what each answer's randomness follows from. batch_tokens: of a batch, its prompts and their longest answers.
    progress(prompts done, tokens generated) is called per batch.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    done = tokens = 0
    for batch in batches([len(prompt) for prompt in prompts], sampling.max_new_tokens, batch_tokens):
        found = _batch(decoder, [prompts[i] for i in batch], [names[i] for i in batch], sampling)
        for i, own in zip(batch, found, strict=True):
            answers[i] = own
        done, tokens = done + len(batch), tokens + sum(map(len, found))
        if progress:
            progress(done, tokens)
    return answers


def batches(lengths: Sequence[int], new_tokens: int, batch_tokens: int) -> list[list[int]]:
    """Prompts of like length together, the longest first; at least one a batch."""
    return [batch.tolist() for batch in token_batches(np.asarray(lengths) + new_tokens, batch_tokens, 1)]


@torch.no_grad()
def _batch(decoder: Decoder, prompts: list[Sequence[int]], names: list[str], sampling: Sampling) -> list[list[int]]:
    ids_BL, mask_BL = pad(prompts, decoder.tokenizer.pad_token_id, "left", 1)
    options: dict[str, Any] = {}
    if sampling.temperature > 0:
        drawn = np.stack([uniform(sampling.seed, name, sampling.max_new_tokens) for name in names])
        options["logits_processor"] = LogitsProcessorList([Drawn(drawn, sampling, ids_BL.shape[1])])
    if sampling.stop:
        options |= {"stop_strings": list(sampling.stop), "tokenizer": decoder.tokenizer}
    with evaluating(decoder.model):
        out_BL = decoder.model.generate(
            input_ids=ids_BL.to(decoder.device),
            attention_mask=mask_BL.to(decoder.device),
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            num_beams=1,
            repetition_penalty=1.0,
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=sorted(decoder.conversations.ends),
            pad_token_id=decoder.tokenizer.pad_token_id,
            **options,
        )
    return [_cut(row, decoder, sampling) for row in out_BL[:, ids_BL.shape[1] :].tolist()]


def _cut(ids: list[int], decoder: Decoder, sampling: Sampling) -> list[int]:
    """Up to and with the token that ended the answer; what follows fills the batch."""
    ends = decoder.conversations.ends
    stop = next((at + 1 for at, token in enumerate(ids) if token in ends), len(ids))
    own = ids[:stop]
    if sampling.stop and stop == len(ids):
        filler = decoder.tokenizer.pad_token_id
        while own and own[-1] == filler and filler not in ends:
            own.pop()
    return own
