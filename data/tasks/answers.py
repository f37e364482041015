"""Schemas and statistics of answers: pass@k, failures, collapsed checkpoints."""

from collections import Counter
from collections.abc import Sequence
from math import comb

import pyarrow as pa

from ratchet.data.tasks.task import CORRECT

COMPLETIONS = pa.schema(
    {
        "id": pa.string(),
        "group": pa.string(),
        "questions": pa.list_(pa.string()),
        "gold": pa.string(),
        "answers": pa.list_(pa.list_(pa.string())),
        "truncated": pa.list_(pa.list_(pa.bool_())),
        "prompt_tokens": pa.list_(pa.int64()),
        "new_prompt_tokens": pa.list_(pa.int64()),
        "shared_tokens": pa.int64(),
        "generated_tokens": pa.list_(pa.int64()),
        "seconds": pa.float64(),
    }
)
"""answers: [completions][turns], and whether each was truncated. Token counts are per completion: prompt_tokens counts
the whole conversation at every turn, as an API would; new_prompt_tokens leaves out what the previous turn already
contained. shared_tokens: length of the prefix that the samples of a group share. seconds: the group's time, divided
evenly among its samples."""

TEACHER_LOGPROBS = pa.schema(
    {
        "id": pa.string(),
        "top_k": pa.int32(),
        "token_ids": pa.list_(pa.int32()),
        "logprobs": pa.list_(pa.float32()),
    }
)
"""The teacher's `top_k` most likely tokens at each label of a sample, flattened by label, with log-probabilities."""

VERIFICATIONS = pa.schema(
    {
        "id": pa.string(),
        "group": pa.string(),
        "verifications": pa.list_(pa.list_(pa.string())),
        "scores": pa.list_(pa.list_(pa.list_(pa.float32()))),
    }
)
"""verifications: labels, [completions][questions]. scores: [completions][questions][names in Task.scores]."""


def pass_at_k(num_completions: int, correct: int, k: int) -> float:
    """Return the probability that k <= num_completions completions drawn without replacement contain a correct one:
    1 - C(n-c, k) / C(n, k), the unbiased estimator of Chen et al. 2021 (Codex), section 2.1."""
    return 1.0 - comb(num_completions - correct, k) / comb(num_completions, k)


def count_failures(labels: Sequence[Sequence[str]]) -> Counter[str]:
    """Count the label of the last completion over the questions without a correct completion. labels:
    [questions][completions]."""
    return Counter(own[-1] for own in labels if own and CORRECT not in own)


def find_collapses(accuracy_C: Sequence[float], rows: int) -> list[int]:
    """Return the indices of checkpoints that are clearly worse than the previous one: accuracy over `rows` rows fell by
    more than two standard errors of the difference of two proportions, and by more than a tenth of its value."""
    found = []
    for number in range(1, len(accuracy_C)):
        before = accuracy_C[number - 1]
        after = accuracy_C[number]
        variance = before * (1 - before) + after * (1 - after)
        error = (variance / max(1, rows)) ** 0.5
        if before - after > max(2 * error, 0.1 * before):
            found.append(number)
    return found
