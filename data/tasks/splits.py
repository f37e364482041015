"""Splits of a task's samples into train, valid and test. No question is on both sides of a split."""

from collections.abc import Iterable
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
    """Return the samples by group, each question once (if the task has repeats: once with each target)."""
    groups: dict[str, list[Sample]] = {}
    seen = set()
    for sample in samples:
        key = (task.key(sample), sample.turns if task.has_repeats else ())
        if key not in seen:
            seen.add(key)
            groups.setdefault(sample.group, []).append(sample)
    return list(groups.values())


def split_groups(
    task: Task,
    groups: list[list[Sample]],
    held_out: list[list[Sample]] | None = None,
    *,
    test_fraction: float,
    validation_fraction: float,
    seed: int,
    max_train: int | None = None,
    max_test: int | None = None,
    source: Path,
) -> Splits:
    """Split the documents at random, and their groups with them. held_out: the groups of an official test file, in
    place of test_fraction. max_train: limit of questions, in whole groups. max_test: limit of groups.

    Raises DataError, naming `source`, if no group is left to train on."""
    random = np.random.default_rng(seed)
    order = _shuffle_documents(groups, random)
    test = held_out
    if test is None:
        test, order = _cut(order, test_fraction)
    test = [test[i] for i in random.permutation(len(test))][:max_test]
    remaining = _leave_out(task, order, test)
    valid, train = _cut(remaining, validation_fraction)
    train = _leave_out(task, train, valid)
    left_out = len(order) - len(remaining)
    if not train:
        documents = len({_document(group) for group in groups})
        raise DataError(
            f"{source}: {len(groups)} groups in {documents} documents, {left_out} of them with a question of the test"
            " split; expected at least 3 that are not test rows, for a split; give more, or another test file"
        )
    train = [train[i] for i in random.permutation(len(train))]
    if max_train is not None:  # whole groups, at least one, with at most max_train questions
        left = max_train
        kept = 0
        for group in train:
            left -= sum(len(sample.turns) for sample in group)
            kept += left >= 0
        train = train[: max(1, kept)]
    return Splits({"train": train, "valid": valid, "test": test}, left_out)


def _leave_out(
    task: Task, groups: list[list[Sample]], held_out: list[list[Sample]]
) -> list[list[Sample]]:
    """Return the groups without a question of the held-out groups."""
    keys: set[str] = set()
    for group in held_out:
        keys.update(map(task.key, group))
    return [group for group in groups if keys.isdisjoint(map(task.key, group))]


def _shuffle_documents(
    groups: list[list[Sample]], random: np.random.Generator
) -> list[list[Sample]]:
    """Return the groups by document, the documents in random order."""
    documents: dict[str, list[list[Sample]]] = {}
    for group in groups:
        documents.setdefault(_document(group), []).append(group)
    own = list(documents.values())
    order = []
    for i in random.permutation(len(own)):
        order += own[i]
    return order


def _cut(
    order: list[list[Sample]], fraction: float
) -> tuple[list[list[Sample]], list[list[Sample]]]:
    """Split off that fraction of the groups, at least one, together with the other groups of the last document."""
    cut = max(1, round(fraction * len(order)))
    while 0 < cut < len(order) and _document(order[cut - 1]) == _document(order[cut]):
        cut += 1
    return order[:cut], order[cut:]


def _document(group: list[Sample]) -> str:
    return group[0].document or group[0].group


def describe_repeated(splits: Splits) -> str:
    """Return how many groups were left out of training, or an empty string for none."""
    if not splits.also_in_test:
        return ""
    return f"{splits.also_in_test:,} groups are left out of training: a question of theirs is a test question"
