"""Misconceptions about sequences and straight lines."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from ratchet.data.synthetic_misconceptions.mal_rules import MalRule, Params, Problem, poly, ratio

SEQUENCES = "Sequences"
LINES = "Straight-line graphs"


def _arithmetic(r: Random) -> Params | None:
    a, d = r.randint(2, 40), r.randint(2, 15)
    return None if a == d else Params(a=a, d=d, listed=", ".join(str(a + i * d) for i in range(4)))


def _points(r: Random) -> Params | None:
    x1, y1, x2, y2 = (r.randint(-6, 12) for _ in range(4))
    if x1 == x2 or y1 == y2 or 0 in (x1 + x2, y1 + y2):
        return None
    return Params(x1=x1, y1=y1, x2=x2, y2=y2)


def _slope(top: int, bottom: int) -> Fraction:
    return Fraction(top, bottom)


# A table of rules reads better with one rule on two lines.
# fmt: off
PROBLEMS = (
    Problem(
        id="nth_term",
        topic=SEQUENCES,
        construct="Find a formula for the nth term of an arithmetic sequence",
        draw=_arithmetic,
        phrasings=(
            "Find the nth term of the sequence {listed}, ...",
            "A sequence begins {listed}. Which expression gives its nth term?",
            "{name} makes patterns from {things}. They use {listed} of them. How many does pattern n use?",
            "Which rule in n produces {listed}, ... for n = 1, 2, 3, 4?",
        ),
        words={"things": ("matchsticks", "tiles", "counters", "cubes", "dots")},
        correct=lambda p: poly((p.d, p.a - p.d), "n"),
        rules=(
            MalRule("sequences.adds_difference", SEQUENCES,
                "Describes how to get from one number to the next rather than from the position.",
                lambda p: poly((1, p.d), "n")),
            MalRule("sequences.starts_at_first", SEQUENCES,
                "Uses the starting number as the constant, as if counting began at position zero.",
                lambda p: poly((p.d, p.a), "n")),
            MalRule("sequences.roles_swapped", SEQUENCES,
                "Puts the starting number in front of the letter and the step at the end.",
                lambda p: poly((p.a, p.d), "n")),
            MalRule("sequences.multiples_only", SEQUENCES,
                "Takes the multiples of the common step as the answer with no adjustment.",
                lambda p: poly((p.d, 0), "n")),
            MalRule("sequences.adjusts_wrong_way", SEQUENCES,
                "Finds the right adjustment to the multiples of the step but applies it in the opposite direction.",
                lambda p: poly((p.d, p.d - p.a), "n")),
        ),
    ),
    Problem(
        id="gradient_between_points",
        topic=LINES,
        construct="Calculate the gradient of the line through two points",
        draw=_points,
        phrasings=(
            "What is the gradient of the line through ({x1}, {y1}) and ({x2}, {y2})?",
            "A straight line passes through A({x1}, {y1}) and B({x2}, {y2}). Work out its gradient.",
            "{name} joins the points ({x1}, {y1}) and ({x2}, {y2}). How steep is the line?",
            "Find m for the line y = mx + c that contains ({x1}, {y1}) and ({x2}, {y2}).",
        ),
        correct=lambda p: ratio(  # type: ignore[arg-type,return-value]  # never vertical: `_points` sees to it
            _slope(p.y2 - p.y1, p.x2 - p.x1).numerator, _slope(p.y2 - p.y1, p.x2 - p.x1).denominator
        ),
        rules=(
            MalRule("lines.upside_down", LINES, "Puts the horizontal change over the vertical one.",
                lambda p: ratio(p.x2 - p.x1, p.y2 - p.y1)),
            MalRule("lines.sums_for_differences", LINES,
                "Adds the coordinates of the points where they should be subtracted.",
                lambda p: ratio(p.y1 + p.y2, p.x1 + p.x2)),
            MalRule("lines.rise_only", LINES,
                "Gives the vertical change alone, without comparing it with the horizontal one.",
                lambda p: ratio(p.y2 - p.y1, 1)),
            MalRule("lines.order_mixed", LINES, "Subtracts in one order on top and in the other order underneath.",
                lambda p: ratio(p.y1 - p.y2, p.x2 - p.x1)),
        ),
    ),
)
# fmt: on
