"""How many of a query's scores stand above each of its bounds: the inner loop of exact ranks on CPUs.

Compiled by numba, and kept beside this file for the next process: numpy needs a mask for each comparison, and to write
the masks and add them up takes several times as long as to compare.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def count_above(
    scores_QN: np.ndarray,
    first_Q: np.ndarray,
    count_Q: np.ndarray,
    own_R: np.ndarray,
    slack_Q: np.ndarray,
    before_R: np.ndarray,
) -> np.ndarray:
    """Adds to before_R[r], for each pair r of query q (first_Q[q] <= r < first_Q[q] + count_Q[q]), how many of
    scores_QN[q] are above own_R[r] + slack_Q[q]. Returns how many are within the slack of own_R[r], pair after pair.

    float32 [Q, N] with N below 2**31, int64 [Q] twice, float32 [R], float32 [Q], int64 [R]; int64 [count_Q.sum()].
    """
    near_P = np.zeros(count_Q.sum(), np.int64)
    p = 0
    for q in range(len(scores_QN)):
        row = scores_QN[q]
        for r in range(first_Q[q], first_Q[q] + count_Q[q]):
            high, low = own_R[r] + slack_Q[q], own_R[r] - slack_Q[q]
            above, reaching = np.int32(0), np.int32(0)
            # By index, and kept to 32 bits: only then does the compiler compare eight at a time.
            for n in range(len(row)):
                above = np.int32(above + np.int32(row[n] > high))
                reaching = np.int32(reaching + np.int32(row[n] >= low))
            before_R[r] += above
            near_P[p] = reaching - above
            p += 1
    return near_P


@njit(nogil=True, cache=True)
def near_columns(
    scores_QN: np.ndarray, row_p: np.ndarray, own_p: np.ndarray, slack_p: np.ndarray, near_p: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Where the scores within slack_p of own_p stand in the rows scores_QN[row_p], near_p of them in each, as
    `count_above` found: (p, column), both int64 [near_p.sum()], by p and column."""
    found_P, column_P = np.empty(near_p.sum(), np.int64), np.empty(near_p.sum(), np.int64)
    at = 0
    for p in range(len(row_p)):
        row, high, low = scores_QN[row_p[p]], own_p[p] + slack_p[p], own_p[p] - slack_p[p]
        end, n = at + near_p[p], 0
        while at < end:
            if row[n] >= low and row[n] <= high:
                found_P[at], column_P[at] = p, n
                at += 1
            n += 1
    return found_P, column_P
