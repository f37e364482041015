"""Solver and generator for Countdown: all values reachable from a few numbers, with one expression for each.

Values are combined in pairs until one is left. Negative intermediate results reach no further values: c + (a - b)
is c - (b - a). Fractions do (8 / (3 - 8 / 3)), and are searched only on request.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import combinations

import numpy as np

Number = int | Fraction
Expressions = dict[Number, str]
"""Value -> an expression with this value."""


def solve(numbers: Sequence[int], target: int) -> str | None:
    """Return an expression that uses every number once and equals the target, or None. Expressions without intermediate
    fractions are preferred."""
    own = tuple(sorted(numbers))
    return find_reachable(own).get(target) or find_reachable(own, fractions=True).get(target)


@lru_cache(maxsize=1)  # six numbers reach values for 10 MB
def find_reachable(numbers: tuple[int, ...], *, fractions: bool = False) -> dict[int, str]:
    """Return non-negative integer -> the first expression found, over all ways to combine all of the sorted `numbers`.
    fractions: allow fractions as intermediate results."""
    found = _combine(tuple(map(Fraction, numbers)) if fractions else numbers, fractions)
    made = {}
    for n, text in found.items():
        if n == int(n):
            made[int(n)] = text.removeprefix("(").removesuffix(")")
    return made


@lru_cache(maxsize=256)
def _combine(numbers: tuple[Number, ...], fractions: bool) -> Expressions:
    # `fractions` is part of the cache key, in which 3 and Fraction(3) are equal.
    if len(numbers) == 1:
        return {numbers[0]: str(numbers[0])}
    found: Expressions = {}
    places = range(len(numbers))
    for size in range(1, len(numbers) // 2 + 1):
        for chosen in combinations(places, size):
            one = _combine(tuple(numbers[place] for place in chosen), fractions)
            other = _combine(
                tuple(numbers[place] for place in places if place not in chosen), fractions
            )
            for a, left in one.items():
                for b, right in other.items():
                    for value, text in _combine_pair(a, left, b, right):
                        found.setdefault(value, text)
    return found


def _combine_pair(a: Number, left: str, b: Number, right: str) -> Iterator[tuple[Number, str]]:
    yield a + b, f"({left} + {right})"
    yield a * b, f"({left} * {right})"
    if a >= b:
        yield a - b, f"({left} - {right})"
    else:
        yield b - a, f"({right} - {left})"
    for over, above, under, below in ((a, left, b, right), (b, right, a, left)):
        if under and isinstance(over, Fraction):
            yield over / under, f"({above} / {below})"
        elif under and over % under == 0:
            yield over // under, f"({above} / {below})"


def generate_tasks(
    count: int, sizes: Sequence[int], largest: int, targets: tuple[int, int], seed: int
) -> list[tuple[tuple[int, ...], int, str]]:
    """Return `count` distinct (numbers, target, solution).

    sizes: how many numbers, drawn uniformly; numbers from 1 to `largest`; targets between the two, inclusive. Tasks
    are distinct by sorted numbers and target, so that any split of the list is disjoint. Raises ValueError if the
    bounds do not allow `count` tasks."""
    random = np.random.default_rng(seed)
    made: dict[tuple[tuple[int, ...], int], tuple[tuple[int, ...], int, str]] = {}
    tries = 0
    while len(made) < count:
        tries += 1
        if tries > 50 * count + 1000:
            raise ValueError(
                f"countdown: {count} tasks asked for, {len(made)} found with numbers up to {largest} and targets"
                f" {targets[0]} to {targets[1]}; expected fewer, or wider bounds"
            )
        size = int(random.choice(sizes))
        numbers = tuple(int(n) for n in random.integers(1, largest + 1, size))
        reached = find_reachable(tuple(sorted(numbers)))
        within = sorted(value for value in reached if targets[0] <= value <= targets[1])
        if within:
            target = int(within[int(random.integers(len(within)))])
            key = (tuple(sorted(numbers)), target)
            made.setdefault(key, (numbers, target, reached[target]))
    return list(made.values())
