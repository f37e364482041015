"""The loss of held-out queries: a continuous measure of a ranking, which also shows gains that change no rank.

    loss(q) = log sum_d exp(score(q, d) / t) - mean over the relevant d of score(q, d) / t

It is computed for all `TEMPERATURES`; models are compared at the temperature t that suits each of them best. A model
whose scores are only those of another one, multiplied by a factor, therefore has the same loss up to the grid.

Legend: Q queries, N documents, D dimensions, R (query, relevant document) pairs, T temperatures.
"""

from collections.abc import Sequence

import numpy as np
import torch

from ratchet.models.search.products import multiply
from ratchet.models.search.ranks import Relevant

TEMPERATURES = np.geomspace(0.01, 10.24, 21)
"""From that of embedders' cosines to that of rerankers' logits; each is sqrt(2) times the one before."""
MAX_SCORES = 1 << 24
"""Maximum number of scores, Q x N, of which the loss is computed: about a second on a CPU core."""


def sum_exponentials(
    query_QD: np.ndarray,
    document_ND: np.ndarray,
    first_row: int,
    exclude_Q: np.ndarray,
    device: str,
) -> np.ndarray:
    """Return log sum_d exp(score / t) over documents, float64 [Q, T]; add parts of a corpus with np.logaddexp.

    first_row: the corpus row of the first document. exclude_Q: see `multiply`."""
    found_QT = np.full((len(query_QD), len(TEMPERATURES)), -np.inf)
    for queries, _, scores_qn in multiply(query_QD, [(first_row, document_ND)], device, exclude_Q):
        for column, temperature in enumerate(TEMPERATURES):
            tile_q = torch.logsumexp(scores_qn / temperature, dim=1).cpu().numpy()
            found_QT[queries, column] = np.logaddexp(found_QT[queries, column], tile_q)
    return found_QT


def compute_losses(
    exponentials_QT: np.ndarray, scores_R: np.ndarray, relevant: Relevant
) -> np.ndarray:
    """Return the loss of each query at the temperature whose mean is lowest, float64 [Q]. NaN: nothing is relevant.

    exponentials_QT: see `sum_exponentials`. scores_R: the scores of the relevant documents."""
    counts_Q = np.diff(relevant.indptr).astype(np.float64)
    known_Q = counts_Q > 0
    sums_Q = np.bincount(relevant.query_R, scores_R, len(counts_Q))
    means_Q = sums_Q[known_Q] / counts_Q[known_Q]
    losses_QT = exponentials_QT[known_Q] - means_Q[:, None] / TEMPERATURES
    losses_Q = np.full(len(counts_Q), np.nan)
    if known_Q.any():
        losses_Q[known_Q] = losses_QT[:, losses_QT.mean(0).argmin()]
    return losses_Q


def compute_list_losses(lists: Sequence[np.ndarray], positives: Sequence[np.ndarray]) -> np.ndarray:
    """Return the loss of each list of scores, float64 [Q], as `compute_losses` does. NaN: no positive in the list.

    lists: the scores of each query's documents. positives: the places of its relevant documents in the list."""
    relevant = Relevant.from_lists([places.tolist() for places in positives])
    exponentials_QT = np.full((len(lists), len(TEMPERATURES)), -np.inf)
    for row, scores in enumerate(lists):
        if len(scores):
            exponentials_QT[row] = np.logaddexp.reduce(scores[:, None] / TEMPERATURES, axis=0)
    scores_R = np.concatenate(
        [scores[places] for scores, places in zip(lists, positives, strict=True)]
    )
    return compute_losses(exponentials_QT, scores_R, relevant)
