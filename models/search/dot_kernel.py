"""Exact dot products of pairs: the inner loop of exact scores on CPUs.

Compiled by numba and cached beside this file. numpy would copy the vectors of every pair to float64 first, which takes
nine times as long as the products.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True, fastmath={"reassoc"})
def dot_pairs(
    query_QD: np.ndarray, query_P: np.ndarray, corpus_ND: np.ndarray, row_P: np.ndarray, out_P: np.ndarray
) -> None:
    """Set out_P[p] to the dot product of query_QD[query_P[p]] and corpus_ND[row_P[p]], summed in float64.

    float32 [Q, D] and [N, D], both contiguous, int64 [P] twice, float32 [P]. Sums may be taken in another order, which
    depends on D and the processor alone: without that the compiler may not add several terms at a time.
    """
    for p in range(len(query_P)):
        left, right = query_QD[query_P[p]], corpus_ND[row_P[p]]
        total = 0.0
        for n in range(len(left)):
            total += np.float64(left[n]) * np.float64(right[n])  # exact: 48 bits at most
        out_P[p] = total
