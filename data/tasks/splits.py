"""Splits of a task's samples into train, valid and test. No question is on both sides of a split."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    seen: set[Any] = set()
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
    if held_out is not None:
        test = []
        for i in random.permutation(len(held_out)):
            test.append(held_out[i])
    else:
        test, order = _cut(order, test_fraction)
        test = [test[i] for i in random.permutation(len(test))]
    test = test[:max_test]
    tested = {}
    for sample in itertools.chain.from_iterable(test):
        tested[task.key(sample)] = sample
    remaining = []
    for group in order:
        if tested.keys().isdisjoint(map(task.key, group)):
            remaining.append(group)
    valid, train = _cut(remaining, validation_fraction)
    held = set()
    for sample in itertools.chain.from_iterable(valid):
        held.add(task.key(sample))
    train = [group for group in train if held.isdisjoint(map(task.key, group))]
    left_out = len(order) - len(remaining)
    if not train:
        documents = len({_document(group) for group in groups})
        counted = f"{len(groups)} groups" + (
            f" in {documents} documents" if documents < len(groups) else ""
        )
        if left_out:
            repeated = next(
                one for one in itertools.chain.from_iterable(order) if task.key(one) in tested
            )
            other = tested[task.key(repeated)]
            counted += f", {left_out} of them in the test split ({repeated.where} is {other.where})"
        raise DataError(
            f"{source}: {counted}; expected at least {2 if held_out else 3} that are not test rows, for a split; give"
            " more, or another test file"
        )
    train = [train[i] for i in random.permutation(len(train))]
    if max_train is not None:  # whole groups, at least one, with at most max_train questions
        questions = np.cumsum([sum(len(sample.turns) for sample in group) for group in train])
        train = train[: max(1, int(np.searchsorted(questions, max_train, "right")))]
    return Splits({"train": train, "valid": valid, "test": test}, left_out)


def _shuffle_documents(
    groups: list[list[Sample]], random: np.random.Generator
) -> list[list[Sample]]:
    """Return the groups by document, the documents in random order."""
    documents: dict[str, list[list[Sample]]] = {}
    for group in groups:
        documents.setdefault(_document(group), []).append(group)
    held = list(documents.values())
    return [group for i in random.permutation(len(held)) for group in held[i]]


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
