"""Generation with Hugging Face `generate`, batched by length, with one seed per answer.

The tokens of an answer are drawn by inverse transform sampling: a uniform number, derived from (seed, name of the
answer, position) alone, is looked up in the cumulative probabilities. The drawn tokens therefore do not depend on
batches or on the number of workers, except where a number is within rounding error of a boundary.

Legend: B rows, L tokens (padded), V vocabulary, S steps.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from ratchet.models.batching import batch_by_tokens, pad
from ratchet.models.decoder.decoder import Decoder
from ratchet.models.loading import eval_mode


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters."""

    temperature: float = 1.0
    """0: greedy decoding."""
    top_p: float = 1.0
    """Nucleus sampling: draw from the most likely tokens with this total probability."""
    top_k: int = 0
    """Draw from the `top_k` most likely tokens. 0: from all."""
    max_new_tokens: int = 512
    """Largest number of tokens of an answer, with the token that ends it."""
    stop: tuple[str, ...] = ()
    """Generation stops after any of these texts."""
    seed: int = 0


class InverseTransformSampler(LogitsProcessor):
    """Mask of all tokens of a row but the one that the row's uniform number for this position selects."""

    def __init__(self, uniform_BS: np.ndarray, sampling: Sampling, start: int) -> None:
        self.uniform_BS = uniform_BS
        self.start = start
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


def draw_uniforms(seed: int, name: str, steps: int) -> np.ndarray:
    """Return uniform numbers in [0, 1), float64 [steps], fixed by seed and name. More steps append numbers."""
    return np.random.Generator(np.random.Philox(key=derive_key(seed, name))).random(steps)


def derive_key(seed: int, name: str) -> int:
    """Return the 128-bit seed of an answer with this name."""
    return int.from_bytes(
        hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest(), "little"
    )


def generate(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    names: Sequence[str],
    sampling: Sampling,
    *,
    batch_tokens: int = 16_384,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[int]]:
    """Return the generated token ids of each prompt, including the token that ended it, in the order of the prompts.

    names: names of the answers, from which their seeds are derived. batch_tokens: padded tokens per batch, with
    max_new_tokens per answer. progress(prompts, generated tokens) is called after each batch, with its counts."""
    answers: list[list[int]] = [[] for _ in prompts]
    lengths = [len(prompt) + sampling.max_new_tokens for prompt in prompts]
    for batch in batch_by_tokens(lengths, batch_tokens, 1):
        found = _generate_batch(
            decoder, [prompts[i] for i in batch], [names[i] for i in batch], sampling
        )
        for i, own in zip(batch, found, strict=True):
            answers[i] = own
        if progress:
            progress(len(batch), sum(map(len, found)))
    return answers


@torch.no_grad()
def _generate_batch(
    decoder: Decoder, prompts: list[Sequence[int]], names: list[str], sampling: Sampling
) -> list[list[int]]:
    ids_BL, mask_BL = pad(prompts, decoder.tokenizer.pad_token_id, "left", 1)
    options: dict[str, Any] = dict.fromkeys(("temperature", "top_p", "top_k"))
    if sampling.temperature > 0:
        drawn = np.stack(
            [draw_uniforms(sampling.seed, name, sampling.max_new_tokens) for name in names]
        )
        options["logits_processor"] = LogitsProcessorList(
            [InverseTransformSampler(drawn, sampling, ids_BL.shape[1])]
        )
    if sampling.stop:
        options |= {"stop_strings": list(sampling.stop), "tokenizer": decoder.tokenizer}
    with eval_mode(decoder.model):
        out_BL = decoder.model.generate(
            input_ids=ids_BL.to(decoder.device),
            attention_mask=mask_BL.to(decoder.device),
            do_sample=False,
            num_beams=1,
            repetition_penalty=1.0,
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=sorted(decoder.conversations.ends),
            pad_token_id=decoder.conversations.filler,
            **options,
        )
    return [_cut(row, decoder, sampling) for row in out_BL[:, ids_BL.shape[1] :].tolist()]


def _cut(ids: list[int], decoder: Decoder, sampling: Sampling) -> list[int]:
    """Remove the padding after the token that ended the answer."""
    ends = decoder.conversations.ends
    filler = decoder.conversations.filler
    stop = next((at + 1 for at, token in enumerate(ids) if token in ends), len(ids))
    while sampling.stop and stop and ids[stop - 1] == filler and filler not in ends:
        stop -= 1
    return ids[:stop]
