"""Misconceptions about expressions, indices, equations and inequalities."""

from __future__ import annotations

from benchmarks.misconceptions.mal_rules import (
    DIGIT,
    Answer,
    MalRule,
    Params,
    Problem,
    between,
    fraction,
    make_draw,
    phrase,
    poly,
    signed,
    term,
)

LETTERS = ("x", "y", "n", "t", "p")
TURNED = {"<": ">", ">": "<", "≤": "≥", "≥": "≤"}
STRICT = {"<": "≤", ">": "≥", "≤": "<", "≥": ">"}


def _write_solution(solution: tuple[str, int], p: Params) -> Answer:
    return Answer(f"{p.x} {solution[0]} {solution[1]}", solution)


# A table of rules reads better with one rule on two lines.
# fmt: off
PROBLEMS = (
    Problem("Expand the square of a bracket with two terms",
        draw=make_draw({"p": DIGIT, "sign": (-1, 1), "size": between(2, 12), "x": LETTERS},
            derive=lambda p: {"a": p.sign * p.size, "tail": signed(p.sign * p.size)}),
        phrasings=(
            "Expand and simplify ({p}{x}{tail})^2.",
            "Multiply out ({p}{x}{tail})^2.",
            "A square has sides of length {p}{x}{tail}. Which expression gives its area?",
            "{name} and {other} write ({p}{x}{tail})^2 without brackets. Which is right?",
        ),
        write=lambda value, p: poly(value, p.x),
        correct=lambda p: (p.p**2, 2 * p.p * p.a, p.a**2),
        rules=(
            MalRule("expressions.square_distributed", lambda p: (p.p**2, 0, p.a**2),
                "Distributes a square over a sum, squaring each part and losing the middle term."),
            MalRule("expressions.middle_not_doubled", lambda p: (p.p**2, p.p * p.a, p.a**2),
                "Counts the cross product only once, so the middle term is half of what it should be."),
            MalRule("expressions.coefficient_not_squared", lambda p: (p.p, 2 * p.p * p.a, p.a**2),
                "Squares the letter but leaves the number in front of it alone."),
            MalRule("expressions.constant_doubled", lambda p: (p.p**2, 2 * p.p * p.a, 2 * p.a),
                "Multiplies the constant by two where it should be multiplied by itself."),
            MalRule("expressions.bracket_doubled", lambda p: (2 * p.p, 2 * p.a),
                "Reads the small 2 outside as two lots of the bracket."),
        )),
    Problem("Expand a single bracket with a negative multiplier and simplify",
        draw=make_draw({"a": between(5, 20), "b": DIGIT, "c": DIGIT, "d": DIGIT, "x": LETTERS}),
        phrasings=(
            "Expand and simplify {a} - {b}({c}{x} - {d}).",
            "Which expression is equal to {a} - {b}({c}{x} - {d})?",
            "{name} starts with {a} and subtracts {b} lots of ({c}{x} - {d}). What is left?",
            "Simplify {a} - {b}({c}{x} - {d}) as far as possible.",
        ),
        write=lambda value, p: poly(value, p.x),
        correct=lambda p: (-p.b * p.c, p.a + p.b * p.d),
        rules=(
            MalRule("expressions.second_sign_kept", lambda p: (-p.b * p.c, p.a - p.b * p.d),
                "Does not realise that a negative multiplier changes the sign of the second term inside."),
            MalRule("expressions.first_term_only", lambda p: (-p.b * p.c, p.a - p.d),
                "Multiplies only the first term inside and copies the other one down."),
            MalRule("expressions.subtracts_before_expanding", lambda p: ((p.a - p.b) * p.c, -(p.a - p.b) * p.d),
                "Does the subtraction in front first and multiplies out with its result."),
            MalRule("expressions.minus_lost", lambda p: (p.b * p.c, p.a - p.b * p.d),
                "Multiplies out as though the number outside were positive."),
        )),
    Problem("Multiply terms that contain powers of the same letter",
        draw=make_draw({"p": DIGIT, "q": DIGIT, "a": DIGIT, "b": DIGIT}, unless=lambda p: p.a == p.b,
            then={"x": LETTERS}),
        phrasings=phrase("{p}{x}^{a} × {q}{x}^{b}", "Simplify {p}{x}^{a} × {q}{x}^{b} fully."),
        write=lambda value, p: term(value, p.x),
        correct=lambda p: (p.p * p.q, p.a + p.b),
        rules=(
            MalRule("indices.multiplied", lambda p: (p.p * p.q, p.a * p.b),
                "Takes the product of the powers where their sum is needed."),
            MalRule("indices.coefficients_added", lambda p: (p.p + p.q, p.a + p.b),
                "Applies the rule for the powers to the numbers in front too, and so adds those."),
            MalRule("indices.rules_swapped", lambda p: (p.p + p.q, p.a * p.b),
                "Swaps the two rules, adding the numbers in front and multiplying the powers."),
            MalRule("indices.subtracted", lambda p: (p.p * p.q, abs(p.a - p.b)),
                "Uses the rule for dividing and takes one power from the other."),
        )),
    Problem("Solve a linear equation in two steps",
        draw=make_draw({"a": DIGIT, "b": between(2, 20), "v": between(2, 12), "x": LETTERS},
            derive=lambda p: {"c": p.a * p.v + p.b}),
        phrasings=(
            "Solve {a}{x} + {b} = {c}.",
            "What value of {x} makes {a}{x} + {b} = {c} true?",
            "{name} thinks of a number, multiplies it by {a} and adds {b}. The result is {c}. What was the number?",
            "A taxi charges £{b} plus £{a} a mile. {name} pays £{c}. How many miles was the ride?",
        ),
        write=lambda value, p: fraction(value),
        correct=lambda p: (p.c - p.b) / p.a,
        rules=(
            MalRule("equations.same_operation", lambda p: (p.c + p.b) / p.a,
                "Moves the constant across without using the inverse operation."),
            MalRule("equations.subtracts_coefficient", lambda p: p.c - p.b - p.a,
                "Removes the multiplier of the unknown by taking it away rather than dividing."),
            MalRule("equations.divides_one_term", lambda p: p.c / p.a - p.b,
                "Divides first but not every term, leaving the constant undivided."),
            MalRule("equations.stops_early", lambda p: p.c - p.b,
                "Stops after undoing one of the two steps."),
        )),
    Problem("Solve a linear equation with the unknown on both sides",
        draw=make_draw({"a": between(4, 12), "c": DIGIT, "b": between(2, 15), "v": DIGIT},
            unless=lambda p: p.a - p.c < 2, then={"x": LETTERS}, derive=lambda p: {"d": (p.a - p.c) * p.v + p.b}),
        phrasings=(
            "Solve {a}{x} + {b} = {c}{x} + {d}.",
            "For which value of {x} is {a}{x} + {b} equal to {c}{x} + {d}?",
            "A plan costs £{b} plus £{a} a month, another £{d} plus £{c} a month. When, in months, are they equal?",
            "{name} has {b} coins and gets {a} a day; {other} has {d} and gets {c} a day. When are they level,?",
        ),
        write=lambda value, p: fraction(value),
        correct=lambda p: (p.d - p.b) / (p.a - p.c),
        rules=(
            MalRule("equations.letters_added", lambda p: (p.d - p.b) / (p.a + p.c),
                "Adds the terms in the unknown from the two sides together when gathering them."),
            MalRule("equations.constants_added", lambda p: (p.d + p.b) / (p.a - p.c),
                "Adds the plain numbers from the two sides together when gathering them."),
            MalRule("equations.all_added", lambda p: (p.d + p.b) / (p.a + p.c),
                "Carries everything across the equals sign with its sign unchanged."),
            MalRule("equations.divides_wrong_way", lambda p: (p.a - p.c) / (p.d - p.b),
                "Divides the wrong way round in the last step, the multiplier by the number."),
        )),
    Problem("Solve a linear inequality with a negative coefficient",
        draw=make_draw(  # b - ax < c, whose solution is x > (b - c) / a, a whole number that may be negative
            {"a": DIGIT, "b": between(1, 20), "side": (-1, 1), "size": DIGIT, "sign": tuple(TURNED), "x": LETTERS},
            derive=lambda p: {"v": p.side * p.size, "c": p.b - p.a * p.side * p.size}),
        phrasings=(
            "Solve {b} - {a}{x} {sign} {c}.",
            "Which values of {x} satisfy {b} - {a}{x} {sign} {c}?",
            "{name} solves the inequality {b} - {a}{x} {sign} {c}. What should the last line say?",
            "Find the solution set of {b} - {a}{x} {sign} {c}.",
        ),
        write=_write_solution,
        correct=lambda p: (TURNED[p.sign], p.v),
        rules=(
            MalRule("inequalities.not_flipped", lambda p: (p.sign, p.v),
                "Forgets to turn the symbol round when dividing by a negative."),
            MalRule("inequalities.minus_dropped", lambda p: (p.sign, -p.v),
                "Divides as though the coefficient were positive."),
            MalRule("inequalities.flipped_wrong_value", lambda p: (TURNED[p.sign], -p.v),
                "Turns the symbol round as required but loses the minus sign in the division."),
            MalRule("inequalities.as_equation", lambda p: ("=", p.v),
                "Replaces the symbol by an equals sign and leaves a single number."),
            MalRule("inequalities.end_point", lambda p: (STRICT[TURNED[p.sign]], p.v),
                "Confuses whether the end value itself belongs to the solution."),
        )),
)
# fmt: on
