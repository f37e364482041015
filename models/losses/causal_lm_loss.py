"""Causal language modelling loss that computes logits for labels only, chunk by chunk.

A decoder's head returns [B, L, V] logits, of which training on answers needs only the rows that predict a label. Only
those states are multiplied by the head, CHUNK at a time, and again in the backward pass (checkpointing). Memory holds
the logits of one chunk.

Legend: B rows, L tokens (padded), D dimensions, V vocabulary, T labels, K tokens per label of the teacher.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ratchet.models.batching import pad
from ratchet.models.decoder.conversation import Tokens
from ratchet.models.decoder.decoder import Decoder
from ratchet.models.engine import is_partitioned

CHUNK = 1024
"""Labels per chunk."""


@dataclass(frozen=True)
class TeacherLogprobs:
    """A teacher's top K tokens for each label of a conversation: ids int32 [T, K] and log-probabilities float32 [T, K]
    over the whole vocabulary."""

    ids_TK: np.ndarray
    logprob_TK: np.ndarray


def compute_loss(
    decoder: Decoder,
    conversations: Sequence[Tokens],
    teachers: Sequence[TeacherLogprobs] | None = None,
    *,
    ce_weight: float = 1.0,
    temperature: float = 1.0,
    multiple: int = 8,
) -> Tensor:
    """Return the sum over labels of ce_weight x cross-entropy + (1 - ce_weight) x KL(teacher || model), float32.

    teachers: log-probabilities for each conversation; None: cross-entropy only. The KL divergence is over the teacher's
    top K tokens at `temperature`, scaled by temperature squared (Hinton et al. 2015).
    """
    hidden_TD, label_T = states_at_labels(decoder, conversations, multiple)
    if teachers is not None:
        given = _concatenate_teachers(teachers, decoder.device)
    else:
        given = None
    # A head with an adapter calls modules inside it. Under ZeRO-3 all workers must call them equally often.
    parts = [
        weight
        for part in decoder.causal.get_output_embeddings().children()
        for weight in part.parameters()
    ]
    size = max(1, len(label_T)) if any(map(is_partitioned, parts)) else CHUNK

    def add_chunks(logits: Callable[[Tensor], Tensor], hidden_TD: Tensor) -> Tensor:
        total = hidden_TD.new_zeros((), dtype=torch.float32)
        for start in range(0, len(label_T), size):
            part = slice(start, start + size)
            own = None if given is None else (given[0][part], given[1][part])
            chunk = (logits, hidden_TD[part], label_T[part], own, ce_weight, temperature)
            total = total + checkpoint(_compute_chunk_loss, *chunk, use_reentrant=False)
        return total

    return decoder.call_head(add_chunks, hidden_TD)


@torch.no_grad()
def top_logprobs(
    decoder: Decoder, conversations: Sequence[Tokens], top: int, rows: int
) -> list[TeacherLogprobs]:
    """Return the top `top` tokens at each label of each conversation, with log-probabilities over the vocabulary. rows:
    number of rows of the student's head. The teacher's head may have more, which belong to no token."""
    hidden_TD, label_T = states_at_labels(decoder, conversations, 8)
    ids = []
    logs = []
    for start in range(0, len(label_T), CHUNK):
        all_TV = torch.log_softmax(
            decoder.logits(hidden_TD[start : start + CHUNK]).float(), dim=-1
        )[:, :rows]
        best = all_TV.topk(min(top, all_TV.shape[1]), dim=-1)
        ids.append(best.indices.int().cpu().numpy())
        logs.append(best.values.cpu().numpy())
    # A label at the very first token is not predicted.
    ends = np.cumsum([one.labels - one.trained[0] for one in conversations])[:-1]
    parts = zip(
        np.split(np.concatenate(ids), ends), np.split(np.concatenate(logs), ends), strict=True
    )
    return [TeacherLogprobs(*part) for part in parts]


def states_at_labels(
    decoder: Decoder, conversations: Sequence[Tokens], multiple: int
) -> tuple[Tensor, Tensor]:
    """Return (states that predict a label [T, D], labels int64 [T]), row by row. Padding is on the right, which a
    causal model does not attend to."""
    filler = decoder.tokenizer.pad_token_id
    ids_BL, _ = pad([one.ids for one in conversations], filler, multiple=multiple)
    is_label_BL = pad([one.trained for one in conversations], 0, multiple=multiple)[0].bool()
    is_label_BL[:, 0] = False  # the first token is not predicted
    hidden_BLD = decoder.hidden(ids_BL.to(decoder.device))
    predicts_BL = is_label_BL.roll(-1, dims=1)  # a label is predicted from the token before it
    return hidden_BLD[predicts_BL.to(decoder.device)], ids_BL[is_label_BL].to(decoder.device)


def _compute_chunk_loss(
    logits: Callable[[Tensor], Tensor],
    hidden_TD: Tensor,
    label_T: Tensor,
    teacher: tuple[Tensor, Tensor] | None,
    ce_weight: float,
    temperature: float,
) -> Tensor:
    logits_TV = logits(hidden_TD).float()
    hard = torch.nn.functional.cross_entropy(logits_TV, label_T, reduction="sum")
    if teacher is None:
        return hard
    ids_TK, logprob_TK = teacher
    wanted_TK = torch.log_softmax(logprob_TK / temperature, dim=-1)
    found_TK = torch.log_softmax(logits_TV / temperature, dim=-1).gather(1, ids_TK)
    soft = (
        torch.nn.functional.kl_div(found_TK, wanted_TK, reduction="sum", log_target=True)
        * temperature**2
    )
    return ce_weight * hard + (1 - ce_weight) * soft


def _concatenate_teachers(
    teachers: Sequence[TeacherLogprobs], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return ids int64 [T, K] and log-probabilities float32 [T, K] in the order of the labels."""
    ids_TK = torch.from_numpy(
        np.concatenate([teacher.ids_TK for teacher in teachers]).astype(np.int64)
    )
    logprob_TK = torch.from_numpy(
        np.concatenate([teacher.logprob_TK for teacher in teachers]).astype(np.float32)
    )
    return ids_TK.to(device), logprob_TK.to(device)
