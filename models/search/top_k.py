"""Exact nearest neighbours by inner product over a corpus in blocks.

The order does not depend on device, block size or machine: a document is ranked before another if its score
(`exact_scores.py`) is higher, or if the scores are equal and its row is lower.

A matrix multiplication only proposes candidates: every document whose position is uncertain by twice the error bound is
scored exactly. In float32 these are a few per cent of the candidates. In bfloat16 they are nearly all of many more
candidates, so that its faster multiplication does not pay (measured). `ranks.py` counts in the same order.

Shapes: Q queries, N corpus rows, D dimensions, K neighbours, W candidates kept (K and those that may still tie).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ratchet.errors import ModelError
from ratchet.models.search.exact_scores import Array, Blocks, Corpus, check_finite, multiply_all, single_threaded_pool

EMPTY = np.uint64(0xFFFF_FFFF_FFFF_FFFF)  # sorts last; unpacks to NaN, which compares false with everything
_LOW = np.uint64(0xFFFF_FFFF)
_SIGN = np.uint32(0x8000_0000)

UseScores = Callable[[np.ndarray, torch.Tensor, int, Corpus], None]
"""use(queries, scores [queries, n], first row of the block, the corpus so far), called for chunks of queries in
parallel. It may change the scores."""


def top_k(
    query_QD: Array,
    corpus: Blocks,
    k: int,
    *,
    device: str = "cpu",
    query_rows: int = 512,
    block_rows: int = 4096,
    also: UseScores | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best rows of the corpus (k >= 1) for each query: scores float32 and rows int64, both [Q, min(k, N)],
    best first.

    Rows and scores are the same for every `device` and block size. `merge_top_k` merges results over shards.

    Blocks are held by reference until the call returns: a corpus in memory or memory-mapped costs nothing more, one
    that does not fit is searched shard by shard. Memory besides: about 12 bytes x Q x k, and query_rows x block_rows.

    also: called with all multiplied scores too (`RankCounter.count`), which saves multiplying twice.

    Raises ModelError for vectors that are not finite, or of different dimensions.
    """
    seen = Corpus(*check_finite(query_QD, "top_k: query_QD"))
    chunks = []
    for start in range(0, len(seen.query_QD), query_rows):
        chunks.append(slice(start, start + query_rows))
    pools = []
    for chunk in chunks:
        pools.append(Pool(chunk.start, np.empty((len(seen.query_QD[chunk]), 0), np.uint64)))

    def absorb(number: int, offset: int, scores_QN: torch.Tensor) -> None:
        pools[number].absorb(scores_QN, seen, k, offset)
        if also:
            also(pools[number].start + np.arange(len(scores_QN)), scores_QN, offset, seen)

    multiply_all(seen.query_QD, chunks, seen.add_all(corpus, block_rows), device, absorb)
    with single_threaded_pool() as executor:
        best = list(executor.map(lambda pool: _resolve(seen, pool.start, pool.keys_QW, k, True), pools))
    if best:
        keys_QK = np.concatenate(best)
    else:
        keys_QK = np.empty((0, min(k, seen.rows)), np.uint64)
    return decode_scores(keys_QK), decode_rows(keys_QK)


def merge_top_k(parts: Sequence[tuple[np.ndarray, np.ndarray]], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Merge (scores_QK, rows_QK) over disjoint shards of a corpus; rows are indices into the whole corpus.

    Exact if each part holds its shard's k best (or all of it)."""
    if not parts:
        raise ModelError("merge_top_k: no parts were given; expected at least one; search at least one shard")
    keys = np.concatenate([encode_keys(scores.astype(np.float32), rows) for scores, rows in parts], axis=1)
    keys = np.sort(keys, axis=1)[:, :k]
    return decode_scores(keys), decode_rows(keys)


def encode_keys(scores: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return uint64 keys whose ascending order is the order of documents: higher score first, then lower row."""
    bits = (scores + np.float32(0)).view(np.uint32)
    falling = np.where(bits & _SIGN, bits, ~(bits | _SIGN))
    return (falling.astype(np.uint64) << np.uint64(32)) | rows.astype(np.uint64)


def decode_scores(keys: np.ndarray) -> np.ndarray:
    """The float32 scores in keys of `encode_keys`."""
    falling = (keys >> np.uint64(32)).astype(np.uint32)
    return np.where(falling & _SIGN, falling, ~falling & ~_SIGN).view(np.float32)


def decode_rows(keys: np.ndarray) -> np.ndarray:
    """The rows in keys of `encode_keys`, int64."""
    return (keys & _LOW).astype(np.int64)


class Pool:
    """The candidates of a chunk of queries: rows that may be among the k best so far."""

    def __init__(self, start: int, keys_QW: np.ndarray) -> None:
        self.start = start
        self.keys_QW = keys_QW
        self.floor_Q = np.full(len(keys_QW), -np.inf, np.float32)
        """No document with a lower multiplied score can be among the k best."""

    def absorb(self, scores_QN: torch.Tensor, seen: Corpus, k: int, offset: int) -> None:
        """Add the documents of a block. Candidates are appended, and sorted and cut when there are many."""
        rows, (queries, width) = scores_QN.shape[1], self.keys_QW.shape
        slack_Q = 2 * seen.bound_error(slice(self.start, self.start + queries))
        if width < k < rows:
            self.floor_Q = np.maximum(self.floor_Q, estimate_kth(scores_QN, k) - slack_Q)
        query, column, value = select_reaching(scores_QN, self.floor_Q)
        count_Q = np.bincount(query, minlength=queries)
        first_Q = np.cumsum(count_Q) - count_Q
        keys_QW = np.full((queries, width + int(count_Q.max(initial=0))), EMPTY)
        keys_QW[:, :width] = self.keys_QW
        keys_QW[query, np.arange(width, width + len(query)) - first_Q[query]] = encode_keys(value, column + offset)
        if keys_QW.shape[1] >= k > width or keys_QW.shape[1] > 2 * k + 32:
            keys_QW.sort(axis=1)
            if keys_QW.shape[1] > k:
                # fmax: a query with fewer than k so far has an empty place there, NaN, and keeps its floor.
                self.floor_Q = np.fmax(self.floor_Q, decode_scores(keys_QW[:, k - 1]) - slack_Q)
                more = np.count_nonzero(decode_scores(keys_QW[:, k:]) >= self.floor_Q[:, None], axis=1)
                keys_QW = np.ascontiguousarray(keys_QW[:, : k + int(more.max(initial=0))])
            if keys_QW.shape[1] > 2 * k + 1024:  # many near ties at the k-th place: decide, or the pool only grows
                keys_QW = _resolve(seen, self.start, keys_QW, k, False)
        self.keys_QW = keys_QW


def select_reaching(scores_QN: torch.Tensor, floor_Q: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (query, column, score) of every score that reaches its query's floor, ordered by query."""
    if scores_QN.device.type == "cpu":
        scores = scores_QN.numpy()
        flat = np.flatnonzero(scores >= floor_Q[:, None])
        value = scores.reshape(-1)[flat]
    else:
        floor = torch.from_numpy(floor_Q).to(scores_QN.device)
        found = torch.nonzero((scores_QN >= floor[:, None]).flatten()).flatten()
        flat = found.cpu().numpy()
        value = scores_QN.flatten()[found].cpu().numpy()
    query = flat // scores_QN.shape[1]  # not divmod: numpy has vector instructions for this one only
    return query, flat - query * scores_QN.shape[1], value


def estimate_kth(scores_QN: torch.Tensor, k: int) -> np.ndarray:
    """Return a value per query that at least k of its scores reach, and not many more: float32 [Q].

    It is estimated from every eighth column; where fewer than k scores reach the estimate, all columns are used.
    """
    if scores_QN.device.type != "cpu":
        return scores_QN.topk(k, dim=1, sorted=False).values.amin(1).cpu().numpy()
    scores = scores_QN.numpy()
    rows = scores.shape[1]
    sample = scores[:, ::8]
    share = k * sample.shape[1] / rows
    wanted = int(np.ceil(share + 2.5 * share**0.5)) + 1
    if wanted >= sample.shape[1]:
        return np.partition(scores, rows - k, axis=1)[:, rows - k]
    kth_Q = np.partition(sample, sample.shape[1] - wanted, axis=1)[:, sample.shape[1] - wanted]
    short = np.flatnonzero(np.count_nonzero(scores >= kth_Q[:, None], axis=1) < k)
    kth_Q[short] = np.partition(scores[short], rows - k, axis=1)[:, rows - k]
    return kth_Q


def _resolve(seen: Corpus, start: int, keys: np.ndarray, k: int, everything: bool) -> np.ndarray:
    """Return the k best candidates in the exact order. Candidates closer to a neighbour than the slack are scored
    exactly (all with `everything`); the others cannot change places."""
    keys = np.sort(keys, axis=1)
    real = keys != EMPTY
    if everything:
        doubtful = real
    else:
        value = decode_scores(keys)
        close = value[:, :-1] - value[:, 1:] <= 2 * seen.bound_error(slice(start, start + len(keys)))[:, None]
        doubtful = np.zeros(keys.shape, bool)
        doubtful[:, :-1] = close
        doubtful[:, 1:] |= close
        doubtful &= real
    flat = np.flatnonzero(doubtful)
    rows = decode_rows(keys.reshape(-1)[flat])
    keys.reshape(-1)[flat] = encode_keys(seen.compute_scores(flat // keys.shape[1] + start, rows), rows)
    keys.sort(axis=1)
    return np.ascontiguousarray(keys[:, :k])
