"""Contrastive losses on embeddings, and the all-gather with gradient that they need.

Shapes: Q queries, P passages (positives and negatives of all queries together), N pairs, D dimensions, W workers.

**Scaling over workers.** DDP and DeepSpeed average gradients: the step uses (1/W) sum_w g_w. With passages from
`gather_with_gradient`, whose backward *sums* over workers, g_w = d(loss_1 + ... + loss_W)/d(theta through worker w).
So the averaged gradient is that of the whole batch exactly if (1/W) sum_w loss_w is the whole batch's loss, that is if

    loss_w = (sum over worker w's queries) * W / (queries of all workers)                  (`scale_for_workers`)

If all workers have equally many queries, loss_w is the mean over the worker's own queries; otherwise that mean is
wrong. The gradient does not depend on W. To log the loss, take the mean of loss_w over workers.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor


def cross_entropy(
    logits_QP: Tensor,
    positive_Q: Tensor,
    *,
    mask_QP: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the cross-entropy of each query's positive among all passages, [Q] (van den Oord et al. 2018,
    "Representation learning with contrastive predictive coding").

        loss_q = - log softmax(logits_q)[positive_q]

    positive_Q: int64, the column of each query's positive. mask_QP: bool, True where a passage does not take part
    (`false_negative_mask`); never the positive. label_smoothing: fraction of the target that is spread evenly over all
    passages that take part, including the positive.
    """
    if mask_QP is not None:
        logits_QP = logits_QP.masked_fill(mask_QP, -torch.inf)
    normaliser_Q = torch.logsumexp(logits_QP, dim=1)
    loss_Q = normaliser_Q - logits_QP.gather(1, positive_Q[:, None]).squeeze(1)
    if label_smoothing:
        taking_part_QP = torch.isfinite(logits_QP.detach())
        mean_Q = logits_QP.where(taking_part_QP, 0.0).sum(1) / taking_part_QP.sum(1)
        loss_Q = (1 - label_smoothing) * loss_Q + label_smoothing * (normaliser_Q - mean_Q)
    return loss_Q


def scale_for_workers(sum_of_losses: Tensor, queries: int, workers: int) -> Tensor:
    """Scale this worker's summed loss so that the gradient averaged over workers is that of the whole batch.

    sum_of_losses: over this worker's queries. queries: the number over all workers.
    """
    return sum_of_losses * (workers / queries)


def false_negative_mask(
    passage_text_P: np.ndarray, positive_Q: np.ndarray, known_text_Q: Sequence[Iterable[int]]
) -> Tensor:
    """Return the mask bool [Q, P] for `cross_entropy`: True where a passage must not count as a negative of the query.

    Masked are the passages with the text of the positive or a text of known_text_Q[q], such as other positives and the
    query itself. The positive itself, at row positive_Q[q], is never masked. Texts are int64 ids, equal if and only if
    the texts are. Ids that no passage has are ignored.
    """
    rows_of: dict[int, list[int]] = {}
    for row, text in enumerate(passage_text_P.tolist()):
        rows_of.setdefault(text, []).append(row)
    mask_QP = np.zeros((len(positive_Q), len(passage_text_P)), bool)
    for query, texts in enumerate(known_text_Q):
        for text in (passage_text_P[positive_Q[query]], *texts):
            mask_QP[query, rows_of.get(int(text), [])] = True
    mask_QP[np.arange(len(positive_Q)), positive_Q] = False
    return torch.from_numpy(mask_QP)


def row_offsets(rows: int) -> list[int]:
    """Return the first row of each worker after `gather_with_gradient`, and the total: W + 1 entries. Collective."""
    if not _distributed():
        return [0, rows]
    sizes = [0] * dist.get_world_size()
    dist.all_gather_object(sizes, rows)
    return list(itertools.accumulate(sizes, initial=0))


def gather_with_gradient(tensor: Tensor, *, offsets: list[int]) -> Tensor:
    """Gather the rows of all workers by worker rank: [sum of rows, ...]. Workers may hold different numbers of rows.

    The gradient of a worker's rows is the sum over all workers (in float32 for half precision): every worker must call
    backward. Without torch.distributed, or with one worker, `tensor` itself is returned. offsets: see `row_offsets`.
    Collective: all workers call it in the same order.
    """
    if _distributed():
        return _Gather.apply(tensor, offsets)
    return tensor


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, offsets: list[int]) -> Tensor:
        ctx.offsets = offsets
        ctx.rank = dist.get_rank()
        sizes = [stop - start for start, stop in itertools.pairwise(offsets)]
        # Padded to the largest: gloo and nccl gather equal shapes only.
        padded = tensor.new_zeros((max(sizes), *tensor.shape[1:]))
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # All-reduce and slice: reduce_scatter would send half of the bytes but needs equal sizes.
        if gradients[0].dtype.itemsize < 4:
            total = gradients[0].float().contiguous()
        else:
            total = gradients[0].clone()
        dist.all_reduce(total)
        own = total[ctx.offsets[ctx.rank] : ctx.offsets[ctx.rank + 1]]
        return own.to(gradients[0].dtype), None


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
