"""Misconceptions about fractions: adding, dividing, and taking a part of an amount."""

from __future__ import annotations

from fractions import Fraction
from math import gcd
from random import Random

from ratchet.data.synthetic_misconceptions.mal_rules import MalRule, Params, Problem, fraction, num, phrase, ratio

TOPIC = "Fractions"


def _proper(r: Random, most: int) -> tuple[int, int]:
    bottom = r.randint(2, most)
    top = r.randint(1, bottom - 1)
    shared = gcd(top, bottom)
    return top // shared, bottom // shared


def _two(r: Random) -> Params | None:
    (a, b), (c, d) = _proper(r, 12), _proper(r, 12)
    return None if b == d else Params(a=a, b=b, c=c, d=d)


def _amount(r: Random) -> Params | None:
    a, b = _proper(r, 12)
    return None if a < 2 else Params(a=a, b=b, n=a * b * r.randint(2, 15))


# A table of rules reads better with one rule on two lines.
# fmt: off
PROBLEMS = (
    Problem(
        id="add_fractions",
        topic=TOPIC,
        construct="Add fractions whose denominators differ",
        draw=_two,
        phrasings=phrase(
            "{a}/{b} + {c}/{d}",
            "{name} eats {a}/{b} of a {food} and {other} eats {c}/{d} of another. How much {food} is that together?",
            "A jug holds {a}/{b} of a litre. {name} pours in another {c}/{d} of a litre. How many litres are in it?",
            "{name} walks {a}/{b} of a mile before lunch and {c}/{d} of a mile after it. How far is that altogether?",
        ),
        words={"food": ("pizza", "cake", "flapjack", "pie", "melon")},
        correct=lambda p: fraction(Fraction(p.a, p.b) + Fraction(p.c, p.d)),
        rules=(
            MalRule("fractions.add_across", TOPIC,
                "Treats tops and bottoms as two separate sums, adding the numerators and adding the denominators.",
                lambda p: ratio(p.a + p.c, p.b + p.d)),
            MalRule("fractions.tops_unscaled", TOPIC,
                "Multiplies the denominators to get a common one but leaves the numerators as they were.",
                lambda p: ratio(p.a + p.c, p.b * p.d)),
            MalRule("fractions.larger_bottom", TOPIC,
                "Adds the numerators and simply keeps whichever denominator is larger.",
                lambda p: ratio(p.a + p.c, max(p.b, p.d))),
            MalRule("fractions.smaller_bottom", TOPIC,
                "Adds the numerators and simply keeps whichever denominator is smaller.",
                lambda p: ratio(p.a + p.c, min(p.b, p.d))),
            MalRule("fractions.one_top_scaled", TOPIC,
                "Moves to a common denominator but scales the numerator of the first fraction only.",
                lambda p: ratio(p.a * p.d + p.c, p.b * p.d)),
            MalRule("fractions.times_for_plus", TOPIC,
                "Uses the method for the product of two fractions, top by top and bottom by bottom, for their total.",
                lambda p: ratio(p.a * p.c, p.b * p.d)),
        ),
    ),
    Problem(
        id="divide_fractions",
        topic=TOPIC,
        construct="Divide one fraction by another",
        draw=_two,
        phrasings=phrase(
            "{a}/{b} ÷ {c}/{d}",
            "{name} cuts {a}/{b} of a metre of {stuff} into pieces of {c}/{d} of a metre. How many pieces is that?",
            "How many times does {c}/{d} go into {a}/{b}?",
        ),
        words={"stuff": ("ribbon", "rope", "wire", "string", "tape")},
        correct=lambda p: fraction(Fraction(p.a * p.d, p.b * p.c)),
        rules=(
            MalRule("fractions.no_flip", TOPIC,
                "Changes the sign to a multiplication without turning the divisor upside down.",
                lambda p: ratio(p.a * p.c, p.b * p.d)),
            MalRule("fractions.flips_first", TOPIC,
                "Inverts the first fraction instead of the one it is being shared by.",
                lambda p: ratio(p.b * p.c, p.a * p.d)),
            MalRule("fractions.flips_both", TOPIC, "Inverts both fractions before multiplying.",
                lambda p: ratio(p.b * p.d, p.a * p.c)),
            MalRule("fractions.flips_then_adds", TOPIC,
                "Inverts the correct fraction but then finds a total instead of a product.",
                lambda p: ratio(p.a * p.c + p.b * p.d, p.b * p.c)),
        ),
    ),
    Problem(
        id="fraction_of_amount",
        topic=TOPIC,
        construct="Find a fraction of an amount",
        draw=_amount,
        phrasings=phrase(
            "{a}/{b} of {n}",
            "There are {n} {things} in a shop and {a}/{b} of them are sold. How many is that?",
            "{name} has {n} {things} and gives {a}/{b} of them to {other}. How many does {other} get?",
            "A school has {n} pupils. {a}/{b} of them walk to school. How many pupils walk?",
        ),
        words={"things": ("stickers", "marbles", "cards", "beads", "stamps", "apples")},
        correct=lambda p: num(Fraction(p.n * p.a, p.b)),
        rules=(
            MalRule("fractions.roles_swapped", TOPIC,
                "Mixes up the jobs of the two parts, splitting by the numerator and multiplying by the denominator.",
                lambda p: num(Fraction(p.n * p.b, p.a))),
            MalRule("fractions.one_share", TOPIC, "Stops after splitting into equal shares and gives a single share.",
                lambda p: num(Fraction(p.n, p.b))),
            MalRule("fractions.remainder", TOPIC, "Takes the part away and answers with what is left over.",
                lambda p: num(p.n - Fraction(p.n * p.a, p.b))),
            MalRule("fractions.splits_by_top", TOPIC,
                "Splits the quantity into as many shares as the numerator says and ignores the denominator.",
                lambda p: num(Fraction(p.n, p.a))),
        ),
    ),
)
# fmt: on
