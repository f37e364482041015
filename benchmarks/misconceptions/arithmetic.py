"""Misconceptions about decimals, rounding, standard form, negative numbers and the order of operations."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from benchmarks.misconceptions.mal_rules import (
    DIGIT,
    Answer,
    MalRule,
    Params,
    Problem,
    between,
    make_draw,
    phrase,
    round_half_up,
    rounded,
)


def _draw_four_decimals(r: Random) -> Params | None:
    """Four decimals below 1 (as digits after the point) of several lengths, one of them with a 0 after the point."""
    digits = [
        str(r.randint(1, 9)),
        str(r.randint(11, 99)),
        f"0{r.randint(11, 99)}",
        str(r.randint(101, 999)),
    ]
    digits += [f"0{r.randint(101, 999)}"] if r.random() < 0.5 else []
    r.shuffle(digits)
    if any(d.endswith("0") for d in digits):
        return None
    return Params(digits=tuple(digits), listed=", ".join(f"0.{d}" for d in digits))


def _write_digits(digits: str, p: Params) -> Answer:
    return Answer(f"0.{digits}", Fraction(f"0.{digits}"))


def _round(p: Params, places: Fraction) -> Answer:
    return rounded(p.n / 10_000, int(places))


def _cut(p: Params, up: int) -> Answer:
    unit = 10 ** (4 - p.places)
    return rounded(Fraction((p.n // unit + up) * unit, 10_000), int(p.places))


def _keep_significant(p: Params) -> Fraction | None:
    """`places` significant figures of a number that is 1 or more; None below 1."""
    if p.n < 10_000:
        return None
    return round_half_up(p.n / 10_000, int(p.places) - len(str(p.n // 10_000)))


def _draw_standard_form(r: Random) -> Params | None:
    lead, more, zeros = r.randint(1, 9), r.randint(11, 999), r.randint(2, 5)
    if more % 10 == 0:
        return None
    small = r.random() < 0.5
    digits = f"{lead}{more}"
    x = f"0.{'0' * zeros}{digits}" if small else f"{digits}{'0' * zeros}"
    return Params(mantissa=f"{lead}.{more}", digits=len(digits), zeros=zeros, small=small, x=x)


def _write_standard_form(index: Fraction, p: Params) -> Answer:
    return Answer(f"{p.mantissa} × 10^{index}", Fraction(p.mantissa) * Fraction(10) ** index)


# A table of rules reads better with one rule on two lines.
# fmt: off
PROBLEMS = (
    Problem("Compare decimals with different numbers of digits",
        draw=_draw_four_decimals,
        phrasings=(
            "Which of these is the largest: {listed}?",
            "{name} and {other} put these in order of size: {listed}. Which one is greatest?",
            "These are lengths in metres: {listed}. Which is the longest?",
            "Four or more runners are ahead of the pack by these distances in km: {listed}. What is the biggest lead?",
        ),
        write=_write_digits,
        correct=lambda p: max(p.digits, key=lambda d: Fraction(f"0.{d}")),
        rules=(
            MalRule("decimals.longer_is_larger", lambda p: max(p.digits, key=int),
                "Reads what follows the point as a whole number, so that having more digits wins."),
            MalRule("decimals.shorter_is_larger", lambda p: min(p.digits, key=len),
                "Believes that fewer digits make a greater value, since hundredths are smaller pieces than tenths."),
            MalRule("decimals.ignores_zero", lambda p: max(p.digits, key=lambda d: Fraction(f"0.{d.lstrip('0')}")),
                "Skips a zero straight after the point and compares the first other digit."),
            MalRule("decimals.picks_smallest", lambda p: min(p.digits, key=lambda d: Fraction(f"0.{d}")),
                "Orders the wrong way round, as if numbers after the point ran backwards like negatives."),
        )),
    Problem("Add decimals with different numbers of decimal places",
        draw=make_draw({"a": between(1, 19), "b": between(11, 99), "c": between(1, 19), "d": between(1, 9)},
            unless=lambda p: p.b % 10 == 0),
        phrasings=phrase(
            "{a}.{b} + {c}.{d}",
            "{name} cycles {a}.{b} km and then {c}.{d} km more. How many kilometres is that?",
            "A parcel of {a}.{b} kg and one of {c}.{d} kg go on the scales together. What do the scales show, in kg?",
            "A plank of {a}.{b} m is laid end to end with one of {c}.{d} m. How long are they together, in metres?",
        ),
        correct=lambda p: p.a + p.b / 100 + p.c + p.d / 10,
        rules=(
            MalRule("decimals.aligned_right", lambda p: (100 * p.a + p.b + 10 * p.c + p.d) / 100,
                "Lines up the last digits in the column layout where the points should be lined up."),
            MalRule("decimals.two_whole_numbers", lambda p: Fraction(f"{p.a + p.c}.{p.b + p.d}"),
                "Sees two separate whole numbers either side of the point and totals each side by itself."),
            MalRule("decimals.point_ignored", lambda p: 100 * p.a + p.b + 10 * p.c + p.d,
                "Leaves the points out of the calculation and never puts one back."),
            MalRule("decimals.carry_lost", lambda p: p.a + p.c + (p.b + 10 * p.d) % 100 / 100,
                "Does not carry from the tenths column into the ones."),
        )),
    Problem("Round a number to a given number of decimal places",
        draw=make_draw({"lead": between(1_001, 99_999), "last": between(1, 9), "places": (1, 2)},
            derive=lambda p: {
                "n": 10 * p.lead + p.last,
                "x": f"{p.lead // 1000}.{p.lead % 1000:03d}{p.last}",
                "column": ("tenth", "hundredth")[p.places - 1],
            }),
        phrasings=(
            "Round {x} correct to {places} d.p.",
            "A calculator shows {x}. What is this to {places} decimal place(s)?",
            "{name} measures {x} and rounds it to the nearest {column}. What does {name} write?",
            "Give {x} to the nearest {column}.",
        ),
        correct=lambda p: _round(p, p.places),
        rules=(
            MalRule("rounding.truncates", lambda p: _cut(p, 0),
                "Chops off the unwanted digits without looking at the next one."),
            MalRule("rounding.always_up", lambda p: _cut(p, 1),
                "Always raises the last digit kept, however small the digit that comes next."),
            MalRule("rounding.significant", _keep_significant,
                "Starts counting digits at the front of the number where only those behind the point count."),
            MalRule("rounding.one_too_many", lambda p: _round(p, p.places + 1),
                "Keeps one digit more than was asked for."),
            MalRule("rounding.one_too_few", lambda p: _round(p, p.places - 1),
                "Counts the ones digit as the first place and so keeps one digit fewer than was asked for."),
        )),
    Problem("Write a number in standard form",
        draw=_draw_standard_form,
        phrasings=phrase(
            "{x} in standard form",
            "Write {x} in the form A × 10^n, where A is at least 1 and less than 10.",
            "A scientist records {x}. How is it written in standard form?",
        ),
        write=_write_standard_form,
        correct=lambda p: -p.zeros - 1 if p.small else p.digits + p.zeros - 1,
        rules=(
            MalRule("rounding.index_sign", lambda p: p.zeros + 1 if p.small else 1 - p.digits - p.zeros,
                "Gives the power of ten the opposite sign, mixing up very big and very tiny numbers."),
            MalRule("rounding.counts_zeros", lambda p: -p.zeros if p.small else p.zeros,
                "Uses the count of zeros as the power of ten and not how far the point moves."),
            MalRule("rounding.counts_digits", lambda p: -p.zeros - p.digits if p.small else p.digits + p.zeros,
                "Uses how many digits the number has as the power of ten."),
        )),
    Problem("Subtract a negative number from a negative number",
        draw=make_draw({"a": between(2, 40), "b": between(2, 40)}, unless=lambda p: p.a == p.b),
        phrasings=phrase(
            "-{a} - (-{b})",
            "Take -{b} away from -{a}. What is left?",
            "The temperature in {name}'s freezer is -{a} °C and outside it is -{b} °C. "
            "Outside is subtracted from inside. What is the result in degrees?",
        ),
        correct=lambda p: p.b - p.a,
        rules=(
            MalRule("negatives.second_sign_ignored", lambda p: -p.a - p.b,
                "Ignores the sign of the number being taken away and moves further below zero."),
            MalRule("negatives.all_positive", lambda p: p.a + p.b,
                "Stretches 'two minuses make a plus' to every number in sight, making all of them positive."),
            MalRule("negatives.sign_reversed", lambda p: p.a - p.b,
                "Finds how far apart the two numbers are but gives the result the opposite sign."),
            MalRule("negatives.multiplies", lambda p: p.a * p.b,
                "Takes two signs next to each other as an instruction to multiply."),
        )),
    Problem("Use the order of operations with addition, subtraction and multiplication",
        draw=make_draw({"a": between(2, 20), "b": DIGIT, "c": between(3, 9), "d": DIGIT, "e": DIGIT}),
        phrasings=phrase("{a} + {b} × {c} - {d} + {e}", "Evaluate {a} + {b} × {c} - {d} + {e} without a calculator."),
        correct=lambda p: p.a + p.b * p.c - p.d + p.e,
        rules=(
            MalRule("order.left_to_right", lambda p: (p.a + p.b) * p.c - p.d + p.e,
                "Carries out every operation strictly in reading order."),
            MalRule("order.plus_first", lambda p: (p.a + p.b) * (p.c - p.d + p.e),
                "Gives sums and differences priority over products."),
            MalRule("order.addition_before_subtraction", lambda p: p.a + p.b * p.c - (p.d + p.e),
                "Believes that adding outranks taking away because it comes earlier in the mnemonic."),
            MalRule("order.right_to_left", lambda p: p.a + p.b * (p.c - (p.d + p.e)),
                "Starts at the end and works backwards through the operations."),
        )),
)
# fmt: on
