"""Misconceptions about decimals, rounding, standard form, negative numbers and the order of operations."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from ratchet.data.synthetic_misconceptions.mal_rules import (
    Answer,
    MalRule,
    Params,
    Problem,
    decimal,
    num,
    phrase,
    round_half_up,
    rounded,
)

DECIMALS = "Decimals"
ROUNDING = "Rounding and standard form"
NEGATIVES = "Negative numbers"
ORDER = "Order of operations"


def _four_decimals(r: Random) -> Params | None:
    """Four decimals below 1 (as digits after the point) of several lengths, one of them with a 0 after the point."""
    digits = [str(r.randint(1, 9)), str(r.randint(11, 99)), f"0{r.randint(11, 99)}", str(r.randint(101, 999))]
    digits += [f"0{r.randint(101, 999)}"] if r.random() < 0.5 else []
    r.shuffle(digits)
    if any(d.endswith("0") for d in digits):
        return None
    return Params(digits=tuple(digits), listed=", ".join(f"0.{d}" for d in digits))


def _zero_point(digits: str) -> Answer:
    return Answer(f"0.{digits}", Fraction(int(digits), 10 ** len(digits)))


def _add_decimals(r: Random) -> Params | None:
    a, b, c = r.randint(1, 19), r.randint(11, 99), r.randint(1, 19)
    d = r.randint(1, 9)
    return None if b % 10 == 0 else Params(a=a, b=b, c=c, d=d)


def _rounding(r: Random) -> Params | None:
    n = r.randint(1_001, 99_999)
    n = n * 10 + r.randint(1, 9)
    places = r.choice((1, 2))
    return Params(n=n, places=places, x=f"{n // 10_000}.{n % 10_000:04d}", column=("tenth", "hundredth")[places - 1])


def _cut(p: Params, places: int, up: int) -> Answer:
    unit = 10 ** (4 - places)
    return rounded(Fraction((p.n // unit + up) * unit, 10_000), places)


def _significant(p: Params) -> Answer | None:
    """`places` significant figures of a number with a whole part; those are its leading digits."""
    digits = len(str(p.n // 10_000)) if p.n >= 10_000 else 0
    if digits == 0:
        return None
    near = round_half_up(Fraction(p.n, 10_000), p.places - digits)
    return Answer(decimal(near) or "", near)


def _standard(r: Random) -> Params | None:
    lead, more, zeros = r.randint(1, 9), r.randint(11, 999), r.randint(2, 5)
    if more % 10 == 0:
        return None
    small = r.random() < 0.5
    digits = f"{lead}{more}"
    x = f"0.{'0' * zeros}{digits}" if small else f"{digits}{'0' * zeros}"
    return Params(mantissa=f"{lead}.{more}", digits=len(digits), zeros=zeros, small=small, x=x)


def _times_ten(p: Params, index: int) -> Answer:
    return Answer(f"{p.mantissa} × 10^{index}", Fraction(p.mantissa) * Fraction(10) ** index)


def _negative(r: Random) -> Params | None:
    a, b = r.randint(2, 40), r.randint(2, 40)
    return None if a == b else Params(a=a, b=b)


def _chain(r: Random) -> Params:
    return Params(a=r.randint(2, 20), b=r.randint(2, 9), c=r.randint(3, 9), d=r.randint(2, 9), e=r.randint(2, 9))


# fmt: off
PROBLEMS = (
    Problem(id="largest_decimal", topic=DECIMALS, construct="Compare decimals with different numbers of digits",
        draw=_four_decimals,
        phrasings=(
            "Which of these is the largest: {listed}?",
            "{name} and {other} put these in order of size: {listed}. Which one is greatest?",
            "These are lengths in metres: {listed}. Which is the longest?",
            "Four or more runners are ahead of the pack by these distances in km: {listed}. What is the biggest lead?",
        ),
        correct=lambda p: max((_zero_point(d) for d in p.digits), key=lambda a: a.key),  # type: ignore[arg-type,return-value]  # numbers, here
        rules=(
            MalRule("decimals.longer_is_larger", DECIMALS,
                "Reads what follows the point as a whole number, so that having more digits wins.",
                lambda p: _zero_point(max(p.digits, key=int))),
            MalRule("decimals.shorter_is_larger", DECIMALS,
                "Believes that fewer digits make a greater value, since hundredths are smaller pieces than tenths.",
                lambda p: _zero_point(min(p.digits, key=len))),
            MalRule("decimals.ignores_zero", DECIMALS,
                "Skips a zero straight after the point and compares the first other digit.",
                lambda p: _zero_point(max(p.digits, key=lambda d: Fraction(f"0.{d.lstrip('0')}")))),
            MalRule("decimals.picks_smallest", DECIMALS,
                "Orders the wrong way round, as if numbers after the point ran backwards like negatives.",
                lambda p: _zero_point(min(p.digits, key=lambda d: Fraction(f"0.{d}")))),
        )),
    Problem(id="add_decimals", topic=DECIMALS, construct="Add decimals with different numbers of decimal places",
        draw=_add_decimals,
        phrasings=phrase(
            "{a}.{b} + {c}.{d}",
            "{name} cycles {a}.{b} km and then {c}.{d} km more. How many kilometres is that?",
            "A parcel of {a}.{b} kg and one of {c}.{d} kg go on the scales together. What do the scales show, in kg?",
            "A plank of {a}.{b} m is laid end to end with one of {c}.{d} m. How long are they together, in metres?",
        ),
        correct=lambda p: num(p.a + Fraction(p.b, 100) + p.c + Fraction(p.d, 10)),
        rules=(
            MalRule("decimals.aligned_right", DECIMALS,
                "Lines up the last digits in the column layout where the points should be lined up.",
                lambda p: num(Fraction(100 * p.a + p.b + 10 * p.c + p.d, 100))),
            MalRule("decimals.two_whole_numbers", DECIMALS,
                "Sees two separate whole numbers either side of the point and totals each side by itself.",
                lambda p: num(Fraction(f"{p.a + p.c}.{p.b + p.d}"))),
            MalRule("decimals.point_ignored", DECIMALS,
                "Leaves the points out of the calculation and never puts one back.",
                lambda p: num(100 * p.a + p.b + 10 * p.c + p.d)),
            MalRule("decimals.carry_lost", DECIMALS, "Does not carry from the tenths column into the ones.",
                lambda p: num(p.a + p.c + Fraction((p.b + 10 * p.d) % 100, 100))),
        )),
    Problem(id="round_decimal", topic=ROUNDING, construct="Round a number to a given number of decimal places",
        draw=_rounding,
        phrasings=(
            "Round {x} correct to {places} d.p.",
            "A calculator shows {x}. What is this to {places} decimal place(s)?",
            "{name} measures {x} and rounds it to the nearest {column}. What does {name} write?",
            "Give {x} to the nearest {column}.",
        ),
        correct=lambda p: rounded(Fraction(p.n, 10_000), p.places),
        rules=(
            MalRule("rounding.truncates", ROUNDING, "Chops off the unwanted digits without looking at the next one.",
                lambda p: _cut(p, p.places, 0)),
            MalRule("rounding.always_up", ROUNDING,
                "Always raises the last digit kept, however small the digit that comes next.",
                lambda p: _cut(p, p.places, 1)),
            MalRule("rounding.significant", ROUNDING,
                "Starts counting digits at the front of the number where only those behind the point count.",
                _significant),
            MalRule("rounding.one_too_many", ROUNDING, "Keeps one digit more than was asked for.",
                lambda p: rounded(Fraction(p.n, 10_000), p.places + 1)),
            MalRule("rounding.one_too_few", ROUNDING,
                "Counts the ones digit as the first place and so keeps one digit fewer than was asked for.",
                lambda p: rounded(Fraction(p.n, 10_000), p.places - 1)),
        )),
    Problem(id="standard_form", topic=ROUNDING, construct="Write a number in standard form", draw=_standard,
        phrasings=phrase(
            "{x} in standard form",
            "Write {x} in the form A × 10^n, where A is at least 1 and less than 10.",
            "A scientist records {x}. How is it written in standard form?",
        ),
        correct=lambda p: _times_ten(p, -p.zeros - 1 if p.small else p.digits + p.zeros - 1),
        rules=(
            MalRule("rounding.index_sign", ROUNDING,
                "Gives the power of ten the opposite sign, mixing up very big and very tiny numbers.",
                lambda p: _times_ten(p, p.zeros + 1 if p.small else 1 - p.digits - p.zeros)),
            MalRule("rounding.counts_zeros", ROUNDING,
                "Uses the count of zeros as the power of ten and not how far the point moves.",
                lambda p: _times_ten(p, -p.zeros if p.small else p.zeros)),
            MalRule("rounding.counts_digits", ROUNDING, "Uses how many digits the number has as the power of ten.",
                lambda p: _times_ten(p, -p.zeros - p.digits if p.small else p.digits + p.zeros)),
        )),
    Problem(id="subtract_negative", topic=NEGATIVES, construct="Subtract a negative number from a negative number",
        draw=_negative,
        phrasings=phrase(
            "-{a} - (-{b})",
            "Take -{b} away from -{a}. What is left?",
            "The temperature in {name}'s freezer is -{a} °C and outside it is -{b} °C. "
            "Outside is subtracted from inside. What is the result in degrees?",
        ),
        correct=lambda p: num(p.b - p.a),
        rules=(
            MalRule("negatives.second_sign_ignored", NEGATIVES,
                "Ignores the sign of the number being taken away and moves further below zero.",
                lambda p: num(-p.a - p.b)),
            MalRule("negatives.all_positive", NEGATIVES,
                "Stretches 'two minuses make a plus' to every number in sight, making all of them positive.",
                lambda p: num(p.a + p.b)),
            MalRule("negatives.sign_reversed", NEGATIVES,
                "Finds how far apart the two numbers are but gives the result the opposite sign.",
                lambda p: num(p.a - p.b)),
            MalRule("negatives.multiplies", NEGATIVES,
                "Takes two signs next to each other as an instruction to multiply.", lambda p: num(p.a * p.b)),
        )),
    Problem(id="chain_of_operations", topic=ORDER,
        construct="Use the order of operations with addition, subtraction and multiplication", draw=_chain,
        phrasings=phrase("{a} + {b} × {c} - {d} + {e}", "Evaluate {a} + {b} × {c} - {d} + {e} without a calculator."),
        correct=lambda p: num(p.a + p.b * p.c - p.d + p.e),
        rules=(
            MalRule("order.left_to_right", ORDER, "Carries out every operation strictly in reading order.",
                lambda p: num((p.a + p.b) * p.c - p.d + p.e)),
            MalRule("order.plus_first", ORDER, "Gives sums and differences priority over products.",
                lambda p: num((p.a + p.b) * (p.c - p.d + p.e))),
            MalRule("order.addition_before_subtraction", ORDER,
                "Believes that adding outranks taking away because it comes earlier in the mnemonic.",
                lambda p: num(p.a + p.b * p.c - (p.d + p.e))),
            MalRule("order.right_to_left", ORDER, "Starts at the end and works backwards through the operations.",
                lambda p: num(p.a + p.b * (p.c - (p.d + p.e)))),
        )),
)
# fmt: on
