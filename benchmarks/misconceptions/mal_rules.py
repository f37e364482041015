"""Mal-rules (executable wrong procedures), the problems that they apply to, and the formatting of answers.

A mal-rule (Sleeman, 1982; Brown and Burton's BUGGY, 1978) models a misconception as a systematic wrong procedure.
Arithmetic is exact (`Fraction`), so that two procedures either agree or differ.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from math import isqrt
from random import Random
from types import MappingProxyType, SimpleNamespace
from typing import Any

DRAWN = range | tuple[int, ...] | tuple[str, ...]
"""Values from which one is drawn."""


class Params(SimpleNamespace):
    """The numbers of one question, by name. Two questions of a problem with equal numbers are the same question."""

    def identity(self) -> Hashable:
        """Return a key that is equal for equal numbers."""
        return tuple(sorted((name, repr(value)) for name, value in vars(self).items()))


@dataclass(frozen=True)
class Answer:
    """An answer as written (`text`) and its value (`key`): 2/4 and 1/2 differ in text and are equal in value."""

    text: str
    key: Hashable


Formula = Callable[[Params], Any]
"""Computes an answer from the numbers of a problem, in which whole numbers are Fractions. Returns an Answer, a value
that the problem's `write` converts to one, or None if there is no answer."""


@dataclass(frozen=True)
class MalRule:
    """A wrong procedure."""

    id: str
    """`topic.name`."""
    apply: Formula
    sentence: str
    """One sentence that describes the misconception: the document to be retrieved."""


@dataclass(frozen=True)
class Problem:
    """A problem template: the numbers to draw, phrasings, the correct procedure and the wrong ones."""

    construct: str
    """The skill that is tested, as a syllabus names it."""
    draw: Callable[[Random], Params | None]
    """Draws the numbers. None: draw again."""
    phrasings: tuple[str, ...]
    """Format strings over the numbers, `words`, `name` and `other` (two different first names)."""
    correct: Formula
    rules: tuple[MalRule, ...]
    write: Callable[[Any, Params], Answer | None] = lambda value, p: num(value)
    """Makes an Answer of the value of a formula, or None if the value cannot be written."""
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Slots that change the story but not the problem: slot -> possible texts."""

    def answer(self, formula: Formula, params: Params) -> Answer | None:
        """Return the answer of the correct procedure, or of a wrong one."""
        exact = {
            name: Fraction(value) if isinstance(value, int) else value
            for name, value in vars(params).items()
        }
        value = formula(p := Params(**exact))
        return value if value is None or isinstance(value, Answer) else self.write(value, p)


def between(first: int, last: int) -> range:
    """Return the whole numbers from `first` to `last`."""
    return range(first, last + 1)


DIGIT = between(2, 9)


def make_draw(
    numbers: Mapping[str, DRAWN],
    *,
    unless: Callable[[Params], bool] = lambda p: False,
    then: Mapping[str, DRAWN] = MappingProxyType({}),
    derive: Callable[[Params], dict[str, Any]] = lambda p: {},
) -> Callable[[Random], Params | None]:
    """Return a `Problem.draw`. It draws `numbers`, returns None if `unless` holds for them, then draws `then` and adds
    the values of `derive`."""

    def draw(random: Random) -> Params | None:
        params = Params(**{name: random.choice(values) for name, values in numbers.items()})
        if unless(params):
            return None
        vars(params).update({name: random.choice(values) for name, values in then.items()})
        vars(params).update(derive(params))
        return params

    return draw


def phrase(expression: str, *more: str) -> tuple[str, ...]:
    """Return the usual phrasings that ask for the value of `expression`, and `more`, which are whole sentences."""
    return (
        f"Work out {expression}.",
        f"What is {expression}?",
        f"{{name}} has to find {expression}. What should {{name}} write?",
        f"{{name}} and {{other}} each work out {expression} and disagree. Which answer is right?",
        *more,
    )


def decimal(value: Fraction) -> str | None:
    """`value` written out exactly, such as -0.125; None where it needs more than six decimal places."""
    scaled = value * 10**6
    return (
        None if scaled.denominator != 1 else f"{Decimal(scaled.numerator).scaleb(-6).normalize():f}"
    )


def num(value: Fraction, before: str = "", after: str = "") -> Answer:
    """A number as a whole number or a decimal where that is exact, else as a fraction in lowest terms."""
    return Answer(f"{before}{decimal(value) or value}{after}", value)


def fraction(value: Fraction) -> Answer:
    """`value` as a fraction in lowest terms."""
    return Answer(str(value), value)


def round_half_up(value: Fraction, places: int) -> Fraction:
    """`value` rounded to `places` decimals, halves away from zero, as schools do it."""
    scaled = abs(value) * Fraction(10) ** places
    size = (
        Fraction((2 * scaled.numerator + scaled.denominator) // (2 * scaled.denominator))
        / Fraction(10) ** places
    )
    return -size if value < 0 else size


def rounded(value: Fraction, places: int, before: str = "", after: str = "") -> Answer:
    """`value` rounded and always written with `places` decimals."""
    near = round_half_up(value, places)
    digits = Decimal(int(near * 10**places)).scaleb(-places)
    return Answer(f"{before}{digits:f}{after}", near)


def money(value: Fraction) -> Answer:
    """Pounds: £12 or £12.50, to the nearest penny."""
    near = round_half_up(value, 2)
    return num(near, before="£") if near.denominator == 1 else rounded(near, 2, before="£")


def root(value: Fraction, after: str = "") -> Answer | None:
    """The square root of a whole number to one decimal place, exactly rounded; None below 1."""
    if value <= 0:
        return None
    twentieths = isqrt(
        int(400 * value)
    )  # floor(20 * root): tells on which side of a half the tenth lies
    return rounded(Fraction((twentieths + 1) // 2, 10), 1, after=after)


def power(base: str, index: int | Fraction) -> str:
    """A power such as x^5; the base alone for the index 1."""
    return base if index == 1 else f"{base}^{index}"


def poly(coefficients: Sequence[int | Fraction], letter: str) -> Answer:
    """A polynomial from the highest power down, such as (1, -6, 9): x^2 - 6x + 9."""
    degree = len(coefficients) - 1
    text = ""
    for index, c in enumerate(coefficients):
        if c == 0:
            continue
        rest = "" if index == degree else power(letter, degree - index)
        size = str(abs(c)) if abs(c) != 1 or not rest else ""
        sign = ("-" if c < 0 else "") if not text else (" - " if c < 0 else " + ")
        text += f"{sign}{size}{rest}"
    first = next((i for i, c in enumerate(coefficients) if c), degree)
    return Answer(text or "0", tuple(coefficients[first:]))


def term(parts: tuple[Fraction, Fraction], letter: str) -> Answer | None:
    """A single term such as 6x^5 from (6, 5); None for an index below 1, which this level does not write."""
    coefficient, index = parts
    if index < 1:
        return None
    return Answer(f"{'' if coefficient == 1 else coefficient}{power(letter, index)}", parts)


def signed(value: int) -> str:
    """` + 3` or ` - 3`, to follow another term."""
    return f" - {-value}" if value < 0 else f" + {value}"
