"""Symmetric InfoNCE over a global batch of any size, and its gradient, without the matrix of similarities.

Legend: N pairs of this worker, P pairs of all workers, D dimensions. With s_ij = left_i . right_j / temperature:

    loss            = 1/(2P) sum_i (row_i + column_i - 2 s_ii)        row_i = log sum_j exp s_ij,  column_j: over i
    dloss/dleft_i   = 1/(2P temperature) [sum_j (exp(s_ij - row_i) + exp(s_ij - column_j)) right_j - 2 right_i]

The gradient of the right side is the same with the sides exchanged. Two functions over tiles of s are enough:
`normalisers`, then `soft_sums`. Each worker computes those of its own pairs. Communication is each embedding once and
two numbers per pair; memory is O(P D) and one tile. (The passes are those of flash attention, Dao et al. 2022; the
loss is that of CLIP, Radford et al. 2021.)
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from ratchet.models.losses.contrastive import gather_with_gradient, row_offsets

Tiles = Iterator[tuple[slice, slice, Tensor]]
KEYS = 4096
"""Columns of a tile: with 256 rows, 4 MiB of similarities."""


def symmetric_info_nce_gradient(
    left_ND: Tensor,
    right_ND: Tensor,
    *,
    temperature: float,
    group_N: Tensor | None = None,
    chunk: int = 256,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (loss over all workers' pairs, its gradients with respect to this worker's left_ND and right_ND), float32.

    The loss is the same on all workers, and the gradients are complete: they are not summed over workers. Workers may
    hold different numbers of pairs, and some none. group_N: int64; pairs of one group are not negatives of each other.
    chunk: rows of a tile. Collective.
    """
    with torch.no_grad():
        offsets = row_offsets(len(left_ND))
        left_PD, right_PD = (
            gather_with_gradient(side.float(), offsets=offsets) for side in (left_ND, right_ND)
        )
        pairs = len(left_PD)
        if group_N is None:
            group_P = None
        else:
            group_P = gather_with_gradient(group_N, offsets=offsets)
        first = offsets[dist.get_rank() if len(offsets) > 2 else 0]
        own = slice(first, first + len(left_ND))
        sides = ((left_PD[own], right_PD), (right_PD[own], left_PD))
        tiles = partial(
            _tiles, temperature=temperature, offset=own.start, group_P=group_P, chunk=chunk
        )
        row_N, column_N = (normalisers(query, tiles(query, key)) for query, key in sides)
        row_P, column_P = (
            gather_with_gradient(own_N, offsets=offsets) for own_N in (row_N, column_N)
        )
        diagonal_P = torch.linalg.vecdot(left_PD, right_PD) / temperature
        loss = (row_P.double() + column_P.double() - 2 * diagonal_P.double()).sum() / (2 * pairs)
        gradients = []
        for (query, key), own_lse_P, other_lse_P in zip(
            sides, (row_P, column_P), (column_P, row_P), strict=True
        ):
            sums_ND = soft_sums(query, key, own_lse_P[own], other_lse_P, tiles(query, key))
            gradients.append((sums_ND - 2 * key[own]) / (2 * pairs * temperature))
        return loss.float(), gradients[0], gradients[1]


def normalisers(query_ND: Tensor, tiles: Tiles) -> Tensor:
    """Return log sum_j exp(query_i . key_j / temperature), float32 [N]."""
    out_N = torch.full((len(query_ND),), -torch.inf, device=query_ND.device)
    for rows, _, tile in tiles:
        out_N[rows] = torch.logaddexp(out_N[rows], tile.logsumexp(dim=1))
    return out_N


def soft_sums(
    query_ND: Tensor, key_PD: Tensor, own_N: Tensor, other_P: Tensor, tiles: Tiles
) -> Tensor:
    """Return sum_j (exp(s_ij - own_i) + exp(s_ij - other_j)) key_j, float32 [N, D]."""
    out_ND = torch.zeros_like(query_ND)
    for rows, keys, tile in tiles:
        weight = torch.exp(tile - own_N[rows, None])
        weight += tile.sub_(other_P[keys]).exp_()
        out_ND[rows].addmm_(weight, key_PD[keys])
    return out_ND


def _tiles(
    query_ND: Tensor,
    key_PD: Tensor,
    temperature: float,
    offset: int,
    group_P: Tensor | None,
    chunk: int,
) -> Tiles:
    """Yield (query rows, key rows, similarities / temperature) of all tiles. Query i is paired with key offset + i."""
    number_P = torch.arange(len(key_PD), device=key_PD.device)
    for first in range(0, len(query_ND), chunk):
        rows = slice(first, min(first + chunk, len(query_ND)))
        scaled = query_ND[rows] / temperature
        for start in range(0, len(key_PD), KEYS):
            keys = slice(start, start + KEYS)
            tile = scaled @ key_PD[keys].T
            if group_P is not None:
                own = number_P[rows.start + offset : rows.stop + offset]
                same = group_P[own, None] == group_P[keys]
                tile.masked_fill_(same & (own[:, None] != number_P[keys]), -torch.inf)
            yield rows, keys, tile
