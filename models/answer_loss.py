"""The loss on a model's own tokens, without the logits of all others, and without all logits at a time.

A decoder's head gives [B, L, V] logits, of which training on answers wants the few rows that predict a label. Only
those states are multiplied with the head, CHUNK of them at a time, and again on the way back: memory is that of one
chunk, whatever the vocabulary.

Legend: B rows, L tokens (padded), D dimensions, V vocabulary, T labels, K tokens of the teacher's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from models.conversation import Tokens
from models.decoder import Decoder
from models.pair_rows import Row, tree

CHUNK = 1024
"""Labels at a time."""


@dataclass(frozen=True)
class Teacher:
    """A teacher's best K tokens for each label of a conversation: ids int32 [T, K], log-probabilities float32 [T, K]
    over its whole vocabulary."""

    ids_TK: np.ndarray
    log_TK: np.ndarray


def packed(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Which conversations share a row of at most `most` tokens: longest first, each into the fullest row that has room
    (best fit decreasing). One that is longer has a row of its own."""
    order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
    rows: list[list[int]] = []
    room: list[int] = []
    for number in order.tolist():
        fits = [row for row, left in enumerate(room) if left >= lengths[number]]
        if fits:
            row = min(fits, key=lambda at: (room[at], at))
        else:
            row = len(rows)
            rows.append([])
            room.append(max(most, lengths[number]))
        rows[row].append(number)
        room[row] -= lengths[number]
    return rows


def loss(
    decoder: Decoder,
    rows: Sequence[Sequence[Tokens]],
    teachers: Sequence[Sequence[Teacher]] | None = None,
    *,
    share: float = 1.0,
    temperature: float = 1.0,
    multiple: int = 8,
) -> Tensor:
    """The sum over all labels of `share` x cross-entropy + (1 - share) x KL(teacher || model); float32, a scalar.

    rows: the conversations of each row of the batch, one after the other; none sees the others, and each counts its
    positions from 0. teachers: of each conversation. The teacher's distribution is over its best K tokens, at
    `temperature`, which the model's is too; scaled by temperature squared (Hinton et al. 2015).
    """
    hidden_TD, label_T = _at_labels(decoder, rows, multiple)
    labels = len(label_T)
    total = hidden_TD.new_zeros((), dtype=torch.float32)
    given = _laid_out(rows, teachers, decoder.device) if teachers is not None else None
    for start in range(0, labels, CHUNK):
        part = slice(start, start + CHUNK)
        own = None if given is None else (given[0][part], given[1][part])
        total = total + checkpoint(
            _chunk, decoder, hidden_TD[part], label_T[part], own, share, temperature, use_reentrant=False
        )
    return total


@torch.no_grad()
def likeliest(decoder: Decoder, examples: Sequence[Tokens], top: int, multiple: int = 8) -> list[Teacher]:
    """The best `top` tokens at each label of each conversation, with their log-probabilities over all tokens."""
    hidden_TD, label_T = _at_labels(decoder, [[one] for one in examples], multiple)
    ids, logs = [], []
    for start in range(0, len(label_T), CHUNK):
        all_TV = torch.log_softmax(decoder.logits(hidden_TD[start : start + CHUNK]).float(), dim=-1)
        best = all_TV.topk(min(top, all_TV.shape[1]), dim=-1)
        ids.append(best.indices.int().cpu().numpy())
        logs.append(best.values.cpu().numpy())
    ends = np.cumsum([_predicted(one) for one in examples])[:-1]
    parts = zip(np.split(np.concatenate(ids), ends), np.split(np.concatenate(logs), ends), strict=True)
    return [Teacher(*part) for part in parts]


def _predicted(one: Tokens) -> int:
    """Labels that a token stands before."""
    return one.labels - one.trained[0]


def _at_labels(decoder: Decoder, rows: Sequence[Sequence[Tokens]], multiple: int) -> tuple[Tensor, Tensor]:
    """(the states that predict a label [T, D], the labels int64 [T]), row by row."""
    flat = [[token for one in row for token in one.ids] for row in rows]
    length = -(-max(map(len, flat)) // multiple) * multiple
    ids_BL = np.full((len(rows), length), decoder.tokenizer.pad_token_id, np.int64)
    predicts_BL = np.zeros((len(rows), length), bool)
    labels: list[int] = []
    for b, row in enumerate(rows):
        ids_BL[b, : len(flat[b])] = flat[b]
        at = 0
        for one in row:
            own = np.flatnonzero(one.trained)
            predicts_BL[b, at + own[own > 0] - 1] = True  # a label is predicted from the token before it
            labels += [one.ids[i] for i in own if i > 0]
            at += len(one.ids)
    ids = torch.from_numpy(ids_BL).to(decoder.device)
    hidden_BLD = decoder.hidden(ids, **_alone(decoder, rows, length))
    hidden_TD = hidden_BLD[torch.from_numpy(predicts_BL).to(decoder.device)]
    return hidden_TD, torch.tensor(labels, dtype=torch.int64, device=decoder.device)


def _chunk(
    decoder: Decoder,
    hidden_TD: Tensor,
    label_T: Tensor,
    teacher: tuple[Tensor, Tensor] | None,
    share: float,
    temperature: float,
) -> Tensor:
    logits_TV = decoder.logits(hidden_TD).float()
    hard = torch.nn.functional.cross_entropy(logits_TV, label_T, reduction="sum")
    if teacher is None:
        return hard
    ids_TK, log_TK = teacher
    wanted_TK = torch.log_softmax(log_TK / temperature, dim=-1)
    found_TK = torch.log_softmax(logits_TV / temperature, dim=-1).gather(1, ids_TK)
    soft = torch.nn.functional.kl_div(found_TK, wanted_TK, reduction="sum", log_target=True) * temperature**2
    return share * hard + (1 - share) * soft


def _alone(decoder: Decoder, rows: Sequence[Sequence[Tokens]], length: int) -> dict[str, Any]:
    """Mask and positions where conversations share a row. Padding stands on the right, where no token looks: rows of
    one conversation need none."""
    if all(len(row) == 1 for row in rows):
        return {}
    shapes = []
    for row in rows:
        ends = np.cumsum([len(one.ids) for one in row]).tolist()
        shapes.append(Row([0] * ends[-1], None, 0, tuple(ends)))
    positions_BL, seen_B1LL = tree(shapes, length)
    seen = torch.from_numpy(seen_B1LL).to(decoder.device)
    by_hand = decoder.causal.config._attn_implementation == "eager"  # which adds the mask to the logits
    return {
        "position_ids": torch.from_numpy(positions_BL).to(decoder.device),
        "attention_mask": torch.where(seen, 0.0, -1e9) if by_hand else seen,
    }


def _laid_out(
    rows: Sequence[Sequence[Tokens]], teachers: Sequence[Sequence[Teacher]], device: torch.device
) -> tuple[Tensor, Tensor]:
    """int64 [T, K], float32 [T, K] in the order of the labels."""
    flat = [teacher for own in teachers for teacher in own]
    ids_TK = torch.from_numpy(np.concatenate([teacher.ids_TK for teacher in flat]).astype(np.int64))
    log_TK = torch.from_numpy(np.concatenate([teacher.log_TK for teacher in flat]).astype(np.float32))
    return ids_TK.to(device), log_TK.to(device)
