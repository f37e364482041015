"""Judged answers, added up: pass@k, and what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb

import pyarrow as pa

from data.tasks.task import CORRECT

COMPLETIONS = pa.schema(
    [
        ("id", pa.string()),
        ("group", pa.string()),
        ("questions", pa.list_(pa.string())),
        ("gold", pa.string()),
        ("answers", pa.list_(pa.list_(pa.string()))),
        ("prompt_tokens", pa.list_(pa.int64())),
        ("new_prompt_tokens", pa.list_(pa.int64())),
        ("shared_tokens", pa.int64()),
        ("generated_tokens", pa.list_(pa.int64())),
        ("seconds", pa.float64()),
    ]
)
"""answers: of each sample, of each turn. Tokens of each sample: prompt_tokens as a service would count them, the whole
conversation at every turn; new_prompt_tokens without what stood in the turn before; shared_tokens: of the beginning
that the examples of a group have in common. seconds: of the group, an equal share for each of its examples."""

TAUGHT = pa.schema(
    [("id", pa.string()), ("top", pa.int32()), ("ids", pa.list_(pa.int32())), ("logs", pa.list_(pa.float32()))]
)
"""A teacher's `top` likeliest tokens at each label of an example, row by row, and their log-probabilities."""

VERDICTS = pa.schema(
    [
        ("id", pa.string()),
        ("group", pa.string()),
        ("verdicts", pa.list_(pa.list_(pa.string()))),
        ("scores", pa.list_(pa.list_(pa.list_(pa.float32())))),
    ]
)
"""verdicts: of each sample, of each question; scores: the same, by the task's score names."""


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """The chance that k of these samples, drawn without putting back, hold a correct one: 1 - C(n-c, k) / C(n, k),
    the unbiased estimate of Chen et al. 2021 (Codex), section 2.1. Needs samples >= k."""
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k}: {correct} correct of {samples} samples; expected k within the samples")
    return 1.0 - comb(samples - correct, k) / comb(samples, k)


def failures(verdicts: Sequence[Sequence[str]]) -> Counter[str]:
    """Of questions without a correct sample, the verdict on the newest one. verdicts: [questions][samples], oldest
    first."""
    return Counter(own[-1] for own in verdicts if own and CORRECT not in own)


def collapses(share_C: Sequence[float], rows: int, factor: float = 2.0) -> list[int]:
    """Which checkpoints are clearly worse than the one before: the share of solved rows fell by more than `factor`
    standard errors of the difference of two shares over `rows` rows, and by a tenth of what it was."""
    found = []
    for number in range(1, len(share_C)):
        before, after = share_C[number - 1], share_C[number]
        error = ((before * (1 - before) + after * (1 - after)) / max(1, rows)) ** 0.5
        if before - after > max(factor * error, 0.1 * before):
            found.append(number)
    return found
