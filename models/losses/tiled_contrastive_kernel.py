"""Triton kernels of `tiled_contrastive_loss`: a tile of similarities is held in registers only.

Operands may be bfloat16; products are accumulated in float32. Float32 operands are multiplied as three products of
TF32 numbers, which tensor cores do at nearly the accuracy of float32. Row numbers are int64, since a row number times D
may exceed 2**31. D is read in blocks, so it may be large. In `soft_sums`
each block of the output has its own program, which recomputes the similarities: more arithmetic, less memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, KEYS, DIMS, OUT = 64, 64, 64, 128
"""Tile sizes: queries, keys, dimensions per load, dimensions that a program of `soft_sums` writes."""


@triton.jit
def _similarities(query, key, group, rows, keys, N, P, D, offset, scale, GROUPS: tl.constexpr, DIMS: tl.constexpr):
    """[ROWS, KEYS] float32; -inf beyond the last key, and for another pair of the same group."""
    tile = tl.zeros((rows.shape[0], keys.shape[0]), tl.float32)
    for start in range(0, D, DIMS):
        dims = start + tl.arange(0, DIMS)
        left = tl.load(query + rows[:, None] * D + dims, (rows < N)[:, None] & (dims < D)[None, :], 0.0)
        right = tl.load(key + keys[None, :] * D + dims[:, None], (keys < P)[None, :] & (dims < D)[:, None], 0.0)
        tile += tl.dot(left, right, input_precision="tf32x3")
    kept = (keys < P)[None, :] & (rows < N)[:, None]
    if GROUPS:
        own = tl.load(group + offset + rows, rows < N, -1)
        other = tl.load(group + keys, keys < P, -2)
        kept = kept & ((own[:, None] != other[None, :]) | ((rows + offset)[:, None] == keys[None, :]))
    return tl.where(kept, tile * scale, -float("inf"))


@triton.jit
def _normalisers(
    query, key, group, out, N, P, D, offset, scale,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    most = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, P, KEYS):
        keys = (start + tl.arange(0, KEYS)).to(tl.int64)
        tile = _similarities(query, key, group, rows, keys, N, P, D, offset, scale, GROUPS, DIMS)
        new = tl.maximum(most, tl.max(tile, 1))
        safe = tl.where(new == -float("inf"), 0.0, new)
        total = total * tl.exp(most - safe) + tl.sum(tl.exp(tile - safe[:, None]), 1)
        most = new
    tl.store(out + rows, most + tl.log(total), rows < N)


@triton.jit
def _soft_sums(
    query, key, group, own, other, out, N, P, D, offset, scale,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, DIMS: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    dims = tl.program_id(1) * OUT + tl.arange(0, OUT)
    own_lse = tl.load(own + rows, rows < N, 0.0)
    sums = tl.zeros((ROWS, OUT), tl.float32)
    for start in range(0, P, KEYS):
        keys = (start + tl.arange(0, KEYS)).to(tl.int64)
        tile = _similarities(query, key, group, rows, keys, N, P, D, offset, scale, GROUPS, DIMS)
        other_lse = tl.load(other + keys, keys < P, 0.0)
        weight = tl.exp(tile - own_lse[:, None]) + tl.exp(tile - other_lse[None, :])
        right = tl.load(key + keys[:, None] * D + dims[None, :], (keys < P)[:, None] & (dims < D)[None, :], 0.0)
        sums += tl.dot(weight.to(right.dtype), right, input_precision="tf32x3")
    tl.store(out + rows[:, None] * D + dims[None, :], sums, (rows < N)[:, None] & (dims < D)[None, :])


def normalisers(
    query_ND: Tensor, key_PD: Tensor, temperature: float, *, offset: int = 0, group_P: Tensor | None = None
) -> Tensor:
    """As `ratchet.models.losses.tiled_contrastive_loss.normalisers`."""
    (rows, dim), keys = query_ND.shape, len(key_PD)
    out_N = torch.empty(rows, dtype=torch.float32, device=query_ND.device)
    if rows:
        _normalisers[(triton.cdiv(rows, ROWS),)](
            query_ND.contiguous(), key_PD.contiguous(), key_PD if group_P is None else group_P, out_N,
            rows, keys, dim, offset, 1 / temperature,
            GROUPS=group_P is not None, ROWS=ROWS, KEYS=KEYS, DIMS=DIMS,
        )  # fmt: skip
    return out_N


def soft_sums(
    query_ND: Tensor,
    key_PD: Tensor,
    own_N: Tensor,
    other_P: Tensor,
    temperature: float,
    *,
    offset: int = 0,
    group_P: Tensor | None = None,
) -> Tensor:
    """As `ratchet.models.losses.tiled_contrastive_loss.soft_sums`."""
    (rows, dim), keys = query_ND.shape, len(key_PD)
    out_ND = torch.empty((rows, dim), dtype=torch.float32, device=query_ND.device)
    if rows:
        _soft_sums[(triton.cdiv(rows, ROWS), triton.cdiv(dim, OUT))](
            query_ND.contiguous(), key_PD.contiguous(), key_PD if group_P is None else group_P,
            own_N.contiguous(), other_P.contiguous(), out_ND, rows, keys, dim, offset, 1 / temperature,
            GROUPS=group_P is not None, ROWS=ROWS, KEYS=KEYS, DIMS=DIMS, OUT=OUT,
        )  # fmt: skip
    return out_ND
