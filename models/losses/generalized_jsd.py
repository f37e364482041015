"""Generalized Jensen-Shannon divergence between a teacher and a student over the labels of conversations.

With p the teacher's distribution and q the student's (Agarwal et al. 2024, "On-Policy Distillation of Language Models",
equation 1):

    JSD(p, q) = beta KL(p || m) + (1 - beta) KL(q || m),  m = beta p + (1 - beta) q

beta = 0 is KL(p || q), the forward KL divergence, and beta = 1 is KL(q || p), the reverse one. TRL computes it. As in
`causal_lm_loss`, memory holds the logits of one chunk of labels, which the backward pass computes again.

Legend: D dimensions, V rows of a head, S tokens of both vocabularies, T labels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ratchet.models.decoder.conversation import Tokens
from ratchet.models.decoder.decoder import Decoder
from ratchet.models.losses.causal_lm_loss import states_at_labels

CHUNK = 256
"""Labels per chunk. The divergence keeps about ten arrays [T, S] in float32 where cross-entropy keeps two."""


def compute_loss(
    student: Decoder,
    teacher: Decoder,
    samples: Sequence[Tokens],
    teacher_samples: Sequence[Tokens],
    shared_S: Tensor,
    *,
    beta: float,
    temperature: float = 1.0,
    multiple: int = 8,
) -> Tensor:
    """Return the sum over labels of the divergence, float32. Only the student gets a gradient.

    samples, teacher_samples: the same answers after the prompts of each model. shared_S: ids of the tokens that both
    vocabularies have, int64 [S]; both distributions are over these tokens. temperature: divides the logits of both."""
    with torch.no_grad():  # first, while no activations of the student are in memory
        teacher_TD, _ = states_at_labels(teacher, teacher_samples, multiple)
    hidden_TD, _ = states_at_labels(student, samples, multiple)
    total = hidden_TD.new_zeros((), dtype=torch.float32)
    for start in range(0, len(hidden_TD), CHUNK):
        part = slice(start, start + CHUNK)
        chunk = (student, teacher, hidden_TD[part], teacher_TD[part], shared_S, beta, temperature)
        total = total + checkpoint(_compute_chunk_loss, *chunk, use_reentrant=False)
    return total


def _compute_chunk_loss(
    student: Decoder,
    teacher: Decoder,
    hidden_TD: Tensor,
    teacher_TD: Tensor,
    shared_S: Tensor,
    beta: float,
    temperature: float,
) -> Tensor:
    from trl.experimental.gkd import GKDTrainer

    with torch.no_grad():
        teacher_TS = teacher.logits(teacher_TD).float()[:, shared_S]
    student_TS = student.logits(hidden_TD).float()[:, shared_S]
    return GKDTrainer.generalized_jsd_loss(
        student_TS, teacher_TS, beta=beta, temperature=temperature, reduction="sum"
    )
