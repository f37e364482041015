"""The inner loops on CPUs of exact ranks (counts of scores above bounds) and of exact scores (dot products of pairs).

Compiled by numba and cached beside this file. numpy would write and sum a mask for each comparison, and copy the
vectors of every pair to float64 first, which takes several times as long.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def count_above(
    scores_QN: np.ndarray, count_Q: np.ndarray, low_P: np.ndarray, high_P: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Count, for each of P pairs (count_Q consecutive pairs per query), the query's scores above high_P and those from
    low_P to high_P.

    Arguments: float32 [Q, N] with N below 2**31, int64 [Q], float32 [P] twice. Returns int64 [P] twice.
    """
    above_P = np.empty(len(low_P), np.int64)
    near_P = np.empty(len(low_P), np.int64)
    p = 0
    for q in range(len(scores_QN)):
        row = scores_QN[q]
        for _ in range(count_Q[q]):
            low = low_P[p]
            high = high_P[p]
            above = np.int32(0)
            reaching = np.int32(0)
            # By index, and kept to 32 bits: only then does the compiler compare eight at a time.
            for n in range(len(row)):
                above = np.int32(above + np.int32(row[n] > high))
                reaching = np.int32(reaching + np.int32(row[n] >= low))
            above_P[p], near_P[p] = above, reaching - above
            p += 1
    return above_P, near_P


@njit(nogil=True, cache=True)
def find_near_columns(
    scores_QN: np.ndarray, row_p: np.ndarray, low_p: np.ndarray, high_p: np.ndarray, near_p: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the scores from low_p to high_p in the rows scores_QN[row_p]: near_p of them in each, as counted by
    `count_above`. Returns (p, column), both int64 [near_p.sum()], by p and column."""
    found_P = np.empty(near_p.sum(), np.int64)
    column_P = np.empty(near_p.sum(), np.int64)
    at = 0
    for p in range(len(row_p)):
        row = scores_QN[row_p[p]]
        low = low_p[p]
        high = high_p[p]
        end = at + near_p[p]
        n = 0
        while at < end:
            if row[n] >= low and row[n] <= high:
                found_P[at], column_P[at] = p, n
                at += 1
            n += 1
    return found_P, column_P


@njit(nogil=True, cache=True, fastmath={"reassoc"})
def dot_pairs(
    query_QD: np.ndarray, query_P: np.ndarray, corpus_ND: np.ndarray, row_P: np.ndarray, out_P: np.ndarray
) -> None:
    """Set out_P[p] to the dot product of query_QD[query_P[p]] and corpus_ND[row_P[p]], summed in float64.

    float32 [Q, D] and [N, D], both contiguous, int64 [P] twice, float32 [P]. Sums may be taken in another order, which
    depends on D and the processor alone: without that the compiler may not add several terms at a time.
    """
    for p in range(len(query_P)):
        left = query_QD[query_P[p]]
        right = corpus_ND[row_P[p]]
        total = 0.0
        for n in range(len(left)):
            total += np.float64(left[n]) * np.float64(right[n])  # exact: 48 bits at most
        out_P[p] = total
