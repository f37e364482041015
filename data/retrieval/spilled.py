"""Sequences that are larger than memory, and hashes in place of the texts that would be compared.

A hash is Python's own 64-bit hash, which differs between processes. Among ten million different texts, two have the
same hash with a probability of 3 in a million.
"""

from __future__ import annotations

import marshal
import tempfile
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from ratchet.data.tables import HELD_BYTES, name_tmpdir

BLOCK = 1000
"""Items that are written and read at a time."""

T = TypeVar("T", bound=tuple[Any, ...])


class Spilled(Sequence[T]):
    """The tuples of an iterable, in order: beyond HELD_BYTES / 8 in a temporary file (in TMPDIR), which is removed with
    the process. Memory holds 8 bytes per 1,000 items. Fast if read in order; for one thread."""

    def __init__(self, items: Iterable[T], make: Callable[[Any], T]) -> None:
        """make: makes an item from a stored tuple of texts, numbers, and tuples and lists of these. To read these is
        several times as fast as to read whole objects."""
        self._make = make
        # Open as long as this object is used. Several may be, so that each holds little in memory.
        self._file = tempfile.SpooledTemporaryFile(HELD_BYTES // 8, prefix="ratchet-")  # noqa: SIM115
        self._starts = array("q", [0])
        self._length = 0
        self._number = -1
        self._block = list[T]()
        rest = iter(items)
        while block := list(islice(rest, BLOCK)):
            with name_tmpdir():
                self._file.write(marshal.dumps([*map(tuple, block)]))
            self._starts.append(self._file.tell())
            self._length += len(block)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, at: Any) -> Any:
        number, inside = divmod(range(self._length)[at], BLOCK)
        return self._read(number)[inside]

    def __iter__(self) -> Iterator[T]:
        for number in range(len(self._starts) - 1):
            yield from self._read(number)

    def _read(self, number: int) -> list[T]:
        if number != self._number:
            self._file.seek(self._starts[number])
            content = self._file.read(self._starts[number + 1] - self._starts[number])
            self._block = list(map(self._make, marshal.loads(content)))
            self._number = number
        return self._block


class Selection(Sequence[T]):
    """Some items of a sequence, by their places in it."""

    def __init__(self, items: Sequence[T], places: np.ndarray) -> None:
        """places: int64, not decreasing."""
        self.items = items
        self.places = places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, at: Any) -> Any:
        return self.items[int(self.places[at])]


def hash_each(texts: Iterable[str]) -> np.ndarray:
    """Return the hash of each text, int64 [N]."""
    return np.fromiter(map(hash, texts), np.int64)


def hash_names(names: Iterable[Collection[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes of the P names in all collections, int64 [P], and for each name the index of its collection,
    int64 [P]."""
    hashes = array("q")
    sizes = array("q")
    for own in names:
        hashes.extend(map(hash, own))
        sizes.append(len(own))
    return np.asarray(hashes), np.repeat(np.arange(len(sizes)), np.asarray(sizes, np.int64))


def number_by_appearance(values_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the U distinct values in the order in which they appear. Return the number of each value, int64 [N], and
    the index at which each distinct value appears first, int64 [U], ascending."""
    _, first_U, value_N = np.unique(values_N, return_index=True, return_inverse=True)
    number_U = np.argsort(np.argsort(first_U))
    return number_U[value_N], np.sort(first_U)
