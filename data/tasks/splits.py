"""Splits of a task's samples into train, valid and test. No question is on both sides of a split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ratchet.data.tasks.task import Sample, Task
from ratchet.errors import DataError


@dataclass(frozen=True)
class Splits:
    """Groups of samples by split."""

    groups: dict[str, list[list[Sample]]]
    """train, valid and test."""
    also_in_test: int
    """Number of groups that were left out, since a question of theirs is a test question."""


def group_samples(task: Task, samples: Iterable[Sample]) -> list[list[Sample]]:
    """Return the samples by group, each question once."""
    groups: dict[str, list[Sample]] = {}
    seen: set[str] = set()
    for sample in samples:
        if (key := task.key(sample)) not in seen:
            seen.add(key)
            groups.setdefault(sample.group, []).append(sample)
    return list(groups.values())


def split_groups(
    task: Task,
    groups: list[list[Sample]],
    held_out: list[list[Sample]] | None,
    *,
    test_fraction: float,
    validation_fraction: float,
    seed: int,
    max_test: int | None = None,
    source: Path,
) -> Splits:
    """Split groups at random. held_out: the groups of an official test file, instead of a fraction.

    Raises DataError, naming `source`, if no group is left to train on.
    """
    random = np.random.default_rng(seed)
    order = [groups[i] for i in random.permutation(len(groups))]
    if held_out is not None:
        test = [held_out[i] for i in random.permutation(len(held_out))]
    else:
        cut = max(1, round(test_fraction * len(order)))
        test, order = order[:cut], order[cut:]
    test = test[:max_test]
    tested = {task.key(sample): sample for sample in _flatten(test)}
    repeated = [sample for sample in _flatten(order) if task.key(sample) in tested]
    torn = {sample.group for sample in repeated}
    remaining = [group for group in order if group[0].group not in torn]
    cut = max(1, round(validation_fraction * len(remaining)))
    if len(remaining) <= cut:
        left_out = ""
        if repeated:
            other = tested[task.key(repeated[0])]
            left_out = (
                f", {len(order) - len(remaining)} of them in the test split ({repeated[0].where} is {other.where})"
            )
        raise DataError(
            f"{source}: {len(groups)} groups{left_out}; expected at least {2 if held_out else 3} that are not test"
            " rows, for a split; give more, or another test file"
        )
    return Splits({"train": remaining[cut:], "valid": remaining[:cut], "test": test}, len(order) - len(remaining))


def describe_repeated(splits: Splits) -> str:
    """Return how many groups were left out of training, or an empty string for none."""
    if not splits.also_in_test:
        return ""
    return f"{splits.also_in_test:,} groups are left out of training: a question of theirs is a test question"


def _flatten(groups: Iterable[list[Sample]]) -> Iterator[Sample]:
    return (sample for group in groups for sample in group)
