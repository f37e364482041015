"""Misconceptions about areas, angles and right-angled triangles."""

from __future__ import annotations

from fractions import Fraction

from benchmarks.misconceptions.mal_rules import (
    Answer,
    MalRule,
    Params,
    Problem,
    between,
    make_draw,
    num,
    root,
)

UNITS = ("cm", "m", "mm")
NO_ROOT = MalRule(
    "pythagoras.no_root",
    lambda p: p.square,
    "Ends with the squared length and never undoes the squaring.",
)


def _write_multiple_of_pi(value: Fraction, p: Params) -> Answer:
    return num(value, after=f"π {p.unit}^2") if value != 1 else Answer(f"π {p.unit}^2", value)


# A table of rules reads better with one rule on two lines.
# fmt: off
PROBLEMS = (
    Problem("Calculate the area of a triangle",
        draw=make_draw({"b": between(3, 30), "h": between(3, 20), "more": between(1, 8)},
            unless=lambda p: p.b == p.h + p.more, then={"unit": UNITS}, derive=lambda p: {"s": p.h + p.more}),
        phrasings=(
            "A triangle has base {b} {unit}, perpendicular height {h} {unit} and a slant side of {s} {unit}. "
            "What is its area?",
            "{name} cuts out a triangular {thing}. The base is {b} {unit}, the height {h} {unit} and one other side "
            "{s} {unit}. How much surface does it cover?",
            "The base of a triangle is {b} {unit} long. Its height is {h} {unit} and another side is {s} {unit}. "
            "Work out the area.",
            "Find the area of a triangle with sides of {b} {unit} and {s} {unit} and a height above the first of "
            "{h} {unit}.",
        ),
        words={"thing": ("flag", "sail", "label", "tile", "banner")},
        write=lambda value, p: num(value, after=f" {p.unit}^2"),
        correct=lambda p: p.b * p.h / 2,
        rules=(
            MalRule("area.not_halved", lambda p: p.b * p.h,
                "Uses the rule for a rectangle and does not halve."),
            MalRule("area.slant_for_height", lambda p: p.b * p.s / 2,
                "Uses a sloping edge as the height."),
            MalRule("area.multiplies_everything", lambda p: p.b * p.h * p.s,
                "Multiplies together every length that is given."),
            MalRule("area.adds_lengths", lambda p: p.b + p.h + p.s,
                "Adds up the measurements as if going round the outside."),
        )),
    Problem("Calculate the area of a circle from its diameter",
        draw=make_draw({"d": range(4, 121, 2), "unit": UNITS}),
        phrasings=(
            "A circle has diameter {d} {unit}. What is its area, in terms of π?",
            "{name} paints a round {thing} that is {d} {unit} across. What area is painted? Leave π in the answer.",
            "Find the area of a circle whose diameter is {d} {unit}. Give it as a multiple of π.",
            "The widest chord of a circle measures {d} {unit}. Which of these is the area inside the circle?",
        ),
        words={"thing": ("table top", "sign", "target", "lid", "badge")},
        write=_write_multiple_of_pi,
        correct=lambda p: p.d**2 / 4,
        rules=(
            MalRule("area.whole_width_squared", lambda p: p.d**2,
                "Squares the full width where half of it is needed."),
            MalRule("area.circumference", lambda p: p.d,
                "Mixes up the formula for the distance round the edge with the one for the space inside."),
            MalRule("area.halves_after_squaring", lambda p: p.d**2 / 2,
                "Halves after squaring and not before, so is out by a factor of two."),
            MalRule("area.radius_not_squared", lambda p: p.d / 2,
                "Finds the radius but leaves out the squaring."),
        )),
    Problem("Find a missing angle in a triangle",
        draw=make_draw({"a": between(20, 110), "b": between(20, 110)}, unless=lambda p: p.a + p.b > 165 or p.a == p.b),
        phrasings=(
            "Two angles of a triangle are {a}° and {b}°. What is the third?",
            "In triangle ABC, angle A = {a}° and angle B = {b}°. Work out angle C.",
            "{name} measures two corners of a triangular {thing} as {a}° and {b}°. How big is the remaining corner?",
            "Find x if the angles of a triangle are {a}°, {b}° and x.",
        ),
        words={"thing": ("garden", "sail", "field", "flag", "shelf")},
        write=lambda value, p: num(value, after="°"),
        correct=lambda p: 180 - p.a - p.b,
        rules=(
            MalRule("angles.full_turn", lambda p: 360 - p.a - p.b,
                "Believes the corners make a full turn in total."),
            MalRule("angles.one_subtracted", lambda p: 180 - p.a,
                "Takes only the first of the known sizes from the total."),
            MalRule("angles.sum_given", lambda p: p.a + p.b,
                "Adds the known sizes and forgets to take this from the total."),
            MalRule("angles.assumes_isosceles", lambda p: (180 - p.a) / 2,
                "Assumes without reason that two of the corners are equal and halves what the first leaves for them."),
        )),
    Problem("Use Pythagoras' theorem to find the hypotenuse",
        draw=make_draw({"a": between(3, 30), "b": between(3, 30)}, unless=lambda p: p.a == p.b,
            then={"unit": UNITS}, derive=lambda p: {"square": p.a**2 + p.b**2}),
        phrasings=(
            "The two shorter sides of a right-angled triangle are {a} {unit} and {b} {unit}. "
            "How long is the hypotenuse, to 1 d.p.?",
            "A rectangle measures {a} {unit} by {b} {unit}. Find the length of its diagonal to one decimal place.",
            "{name} walks {a} {unit} east and then {b} {unit} north. How far is {name} from the start, to 1 d.p.?",
            "In a triangle the right angle lies between sides of {a} {unit} and {b} {unit}. What is the third side?",
        ),
        write=lambda value, p: num(value, after=f" {p.unit}"),
        correct=lambda p: root(p.square, f" {p.unit}"),
        rules=(
            NO_ROOT,
            MalRule("pythagoras.adds_sides", lambda p: p.a + p.b,
                "Adds the two given lengths as they are, without squaring."),
            MalRule("pythagoras.subtracts_for_longest", lambda p: root(abs(p.a**2 - p.b**2), f" {p.unit}"),
                "Subtracts the squares although the longest side is wanted."),
            MalRule("pythagoras.doubles", lambda p: root(2 * p.a + 2 * p.b, f" {p.unit}"),
                "Doubles the given lengths where they should be squared."),
        )),
    Problem("Use Pythagoras' theorem to find a shorter side",
        draw=make_draw({"a": between(3, 30), "c": between(8, 40)}, unless=lambda p: p.a >= p.c - 1,
            then={"unit": UNITS}, derive=lambda p: {"square": p.c**2 - p.a**2}),
        phrasings=(
            "A right-angled triangle has hypotenuse {c} {unit} and another side of {a} {unit}. "
            "How long is the third side, to 1 d.p.?",
            "A ladder of {c} {unit} leans on a wall with its foot {a} {unit} away. "
            "How high does it reach, to one decimal place?",
            "The diagonal of a rectangle is {c} {unit} and its width is {a} {unit}. Find its length to 1 d.p.",
            "{name} holds a kite on a tight string of {c} {unit} above a point {a} {unit} away. How high is the kite?",
        ),
        write=lambda value, p: num(value, after=f" {p.unit}"),
        correct=lambda p: root(p.square, f" {p.unit}"),
        rules=(
            NO_ROOT,
            MalRule("pythagoras.adds_for_shorter", lambda p: root(p.c**2 + p.a**2, f" {p.unit}"),
                "Adds the squares although the longest side is already known."),
            MalRule("pythagoras.subtracts_sides", lambda p: p.c - p.a,
                "Takes one given length from the other, without squaring."),
            MalRule("pythagoras.root_halves", lambda p: p.square / 2,
                "Halves at the end, mistaking a square root for division by two."),
        )),
)
# fmt: on
