"""The dot products that define the order of documents, for pairs: the inner loop of every exact score on CPUs.

Compiled by numba, and kept beside this file for the next process: numpy has to write every pair's vectors out in
float64 first, which takes nine times as long as to multiply them.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True, fastmath={"reassoc"})
def dots_of_pairs(
    query_QD: np.ndarray, query_P: np.ndarray, corpus_ND: np.ndarray, row_P: np.ndarray, out_P: np.ndarray
) -> None:
    """out_P[p] = the product of query_QD[query_P[p]] and corpus_ND[row_P[p]], summed in float64.

    float32 [Q, D] and [N, D], both contiguous, int64 [P] twice, float32 [P]. Sums may be taken in another order, which
    depends on D and the processor alone: without that the compiler may not add several terms at a time.
    """
    for p in range(len(query_P)):
        left, right = query_QD[query_P[p]], corpus_ND[row_P[p]]
        total = 0.0
        for n in range(len(left)):
            total += np.float64(left[n]) * np.float64(right[n])  # exact: 48 bits at most
        out_P[p] = total
