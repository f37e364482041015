"""Misconceptions about expressions, indices, equations and inequalities."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from ratchet.data.synthetic_misconceptions.mal_rules import (
    Answer,
    MalRule,
    Params,
    Problem,
    fraction,
    phrase,
    poly,
    signed,
    term,
)

EXPRESSIONS = "Algebraic expressions"
INDICES = "Indices"
EQUATIONS = "Equations"
INEQUALITIES = "Inequalities"
LETTERS = ("x", "y", "n", "t", "p")


def _square(r: Random) -> Params:
    p, a = r.randint(2, 9), r.choice((-1, 1)) * r.randint(2, 12)
    return Params(p=p, a=a, x=r.choice(LETTERS), tail=signed(a))


def _bracket(r: Random) -> Params:
    return Params(a=r.randint(5, 20), b=r.randint(2, 9), c=r.randint(2, 9), d=r.randint(2, 9), x=r.choice(LETTERS))


def _product(r: Random) -> Params | None:
    p, q, a, b = r.randint(2, 9), r.randint(2, 9), r.randint(2, 9), r.randint(2, 9)
    return None if a == b else Params(p=p, q=q, a=a, b=b, x=r.choice(LETTERS))


def _linear(r: Random) -> Params:
    a, b, x = r.randint(2, 9), r.randint(2, 20), r.randint(2, 12)
    return Params(a=a, b=b, c=a * x + b, x=r.choice(LETTERS))


def _both_sides(r: Random) -> Params | None:
    a, c, b, x = r.randint(4, 12), r.randint(2, 9), r.randint(2, 15), r.randint(2, 9)
    d = (a - c) * x + b
    return None if a - c < 2 else Params(a=a, b=b, c=c, d=d, x=r.choice(LETTERS))


def _inequality(r: Random) -> Params | None:
    """b - ax < c, whose solution is x > (b - c) / a, a whole number that may be negative."""
    a, b, v = r.randint(2, 9), r.randint(1, 20), r.choice((-1, 1)) * r.randint(2, 9)
    sign = r.choice(("<", ">", "≤", "≥"))
    return Params(a=a, b=b, v=v, c=b - a * v, sign=sign, x=r.choice(LETTERS))


_TURNED = {"<": ">", ">": "<", "≤": "≥", "≥": "≤"}
_STRICT = {"<": "≤", ">": "≥", "≤": "<", "≥": ">"}


def _solution(p: Params, sign: str, value: int) -> Answer:
    return Answer(f"{p.x} {sign} {value}", (sign, value))


# A table of rules reads better with one rule on two lines.
# fmt: off
PROBLEMS = (
    Problem(id="expand_square", topic=EXPRESSIONS, construct="Expand the square of a bracket with two terms",
        draw=_square,
        phrasings=(
            "Expand and simplify ({p}{x}{tail})^2.",
            "Multiply out ({p}{x}{tail})^2.",
            "A square has sides of length {p}{x}{tail}. Which expression gives its area?",
            "{name} and {other} write ({p}{x}{tail})^2 without brackets. Which is right?",
        ),
        correct=lambda p: poly((p.p**2, 2 * p.p * p.a, p.a**2), p.x),
        rules=(
            MalRule("expressions.square_distributed", EXPRESSIONS,
                "Distributes a square over a sum, squaring each part and losing the middle term.",
                lambda p: poly((p.p**2, 0, p.a**2), p.x)),
            MalRule("expressions.middle_not_doubled", EXPRESSIONS,
                "Counts the cross product only once, so the middle term is half of what it should be.",
                lambda p: poly((p.p**2, p.p * p.a, p.a**2), p.x)),
            MalRule("expressions.coefficient_not_squared", EXPRESSIONS,
                "Squares the letter but leaves the number in front of it alone.",
                lambda p: poly((p.p, 2 * p.p * p.a, p.a**2), p.x)),
            MalRule("expressions.constant_doubled", EXPRESSIONS,
                "Multiplies the constant by two where it should be multiplied by itself.",
                lambda p: poly((p.p**2, 2 * p.p * p.a, 2 * p.a), p.x)),
            MalRule("expressions.bracket_doubled", EXPRESSIONS, "Reads the small 2 outside as two lots of the bracket.",
                lambda p: poly((2 * p.p, 2 * p.a), p.x)),
        )),
    Problem(id="subtract_bracket", topic=EXPRESSIONS,
        construct="Expand a single bracket with a negative multiplier and simplify", draw=_bracket,
        phrasings=(
            "Expand and simplify {a} - {b}({c}{x} - {d}).",
            "Which expression is equal to {a} - {b}({c}{x} - {d})?",
            "{name} starts with {a} and subtracts {b} lots of ({c}{x} - {d}). What is left?",
            "Simplify {a} - {b}({c}{x} - {d}) as far as possible.",
        ),
        correct=lambda p: poly((-p.b * p.c, p.a + p.b * p.d), p.x),
        rules=(
            MalRule("expressions.second_sign_kept", EXPRESSIONS,
                "Does not realise that a negative multiplier changes the sign of the second term inside.",
                lambda p: poly((-p.b * p.c, p.a - p.b * p.d), p.x)),
            MalRule("expressions.first_term_only", EXPRESSIONS,
                "Multiplies only the first term inside and copies the other one down.",
                lambda p: poly((-p.b * p.c, p.a - p.d), p.x)),
            MalRule("expressions.subtracts_before_expanding", EXPRESSIONS,
                "Does the subtraction in front first and multiplies out with its result.",
                lambda p: poly(((p.a - p.b) * p.c, -(p.a - p.b) * p.d), p.x)),
            MalRule("expressions.minus_lost", EXPRESSIONS, "Multiplies out as though the number outside were positive.",
                lambda p: poly((p.b * p.c, p.a - p.b * p.d), p.x)),
        )),
    Problem(id="multiply_powers", topic=INDICES, construct="Multiply terms that contain powers of the same letter",
        draw=_product,
        phrasings=phrase("{p}{x}^{a} × {q}{x}^{b}", "Simplify {p}{x}^{a} × {q}{x}^{b} fully."),
        correct=lambda p: term(p.p * p.q, p.x, p.a + p.b) or Answer("", None),
        rules=(
            MalRule("indices.multiplied", INDICES, "Takes the product of the powers where their sum is needed.",
                lambda p: term(p.p * p.q, p.x, p.a * p.b)),
            MalRule("indices.coefficients_added", INDICES,
                "Applies the rule for the powers to the numbers in front too, and so adds those.",
                lambda p: term(p.p + p.q, p.x, p.a + p.b)),
            MalRule("indices.rules_swapped", INDICES,
                "Swaps the two rules, adding the numbers in front and multiplying the powers.",
                lambda p: term(p.p + p.q, p.x, p.a * p.b)),
            MalRule("indices.subtracted", INDICES, "Uses the rule for dividing and takes one power from the other.",
                lambda p: term(p.p * p.q, p.x, abs(p.a - p.b))),
        )),
    Problem(id="solve_linear", topic=EQUATIONS, construct="Solve a linear equation in two steps", draw=_linear,
        phrasings=(
            "Solve {a}{x} + {b} = {c}.",
            "What value of {x} makes {a}{x} + {b} = {c} true?",
            "{name} thinks of a number, multiplies it by {a} and adds {b}. The result is {c}. What was the number?",
            "A taxi charges £{b} plus £{a} a mile. {name} pays £{c}. How many miles was the ride?",
        ),
        correct=lambda p: fraction(Fraction(p.c - p.b, p.a)),
        rules=(
            MalRule("equations.same_operation", EQUATIONS,
                "Moves the constant across without using the inverse operation.",
                lambda p: fraction(Fraction(p.c + p.b, p.a))),
            MalRule("equations.subtracts_coefficient", EQUATIONS,
                "Removes the multiplier of the unknown by taking it away rather than dividing.",
                lambda p: fraction(p.c - p.b - p.a)),
            MalRule("equations.divides_one_term", EQUATIONS,
                "Divides first but not every term, leaving the constant undivided.",
                lambda p: fraction(Fraction(p.c, p.a) - p.b)),
            MalRule("equations.stops_early", EQUATIONS, "Stops after undoing one of the two steps.",
                lambda p: fraction(p.c - p.b)),
        )),
    Problem(id="unknown_on_both_sides", topic=EQUATIONS,
        construct="Solve a linear equation with the unknown on both sides", draw=_both_sides,
        phrasings=(
            "Solve {a}{x} + {b} = {c}{x} + {d}.",
            "For which value of {x} is {a}{x} + {b} equal to {c}{x} + {d}?",
            "A plan costs £{b} plus £{a} a month, another £{d} plus £{c} a month. When, in months, are they equal?",
            "{name} has {b} coins and gets {a} a day; {other} has {d} and gets {c} a day. When are they level,?",
        ),
        correct=lambda p: fraction(Fraction(p.d - p.b, p.a - p.c)),
        rules=(
            MalRule("equations.letters_added", EQUATIONS,
                "Adds the terms in the unknown from the two sides together when gathering them.",
                lambda p: fraction(Fraction(p.d - p.b, p.a + p.c))),
            MalRule("equations.constants_added", EQUATIONS,
                "Adds the plain numbers from the two sides together when gathering them.",
                lambda p: fraction(Fraction(p.d + p.b, p.a - p.c))),
            MalRule("equations.all_added", EQUATIONS,
                "Carries everything across the equals sign with its sign unchanged.",
                lambda p: fraction(Fraction(p.d + p.b, p.a + p.c))),
            MalRule("equations.divides_wrong_way", EQUATIONS,
                "Divides the wrong way round in the last step, the multiplier by the number.",
                lambda p: fraction(Fraction(p.a - p.c, p.d - p.b))),
        )),
    Problem(id="solve_inequality", topic=INEQUALITIES,
        construct="Solve a linear inequality with a negative coefficient", draw=_inequality,
        phrasings=(
            "Solve {b} - {a}{x} {sign} {c}.",
            "Which values of {x} satisfy {b} - {a}{x} {sign} {c}?",
            "{name} solves the inequality {b} - {a}{x} {sign} {c}. What should the last line say?",
            "Find the solution set of {b} - {a}{x} {sign} {c}.",
        ),
        correct=lambda p: _solution(p, _TURNED[p.sign], p.v),
        rules=(
            MalRule("inequalities.not_flipped", INEQUALITIES,
                "Forgets to turn the symbol round when dividing by a negative.", lambda p: _solution(p, p.sign, p.v)),
            MalRule("inequalities.minus_dropped", INEQUALITIES, "Divides as though the coefficient were positive.",
                lambda p: _solution(p, p.sign, -p.v)),
            MalRule("inequalities.flipped_wrong_value", INEQUALITIES,
                "Turns the symbol round as required but loses the minus sign in the division.",
                lambda p: _solution(p, _TURNED[p.sign], -p.v)),
            MalRule("inequalities.as_equation", INEQUALITIES,
                "Replaces the symbol by an equals sign and leaves a single number.", lambda p: _solution(p, "=", p.v)),
            MalRule("inequalities.end_point", INEQUALITIES,
                "Confuses whether the end value itself belongs to the solution.",
                lambda p: _solution(p, _STRICT[_TURNED[p.sign]], p.v)),
        )),
)
# fmt: on
