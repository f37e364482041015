"""Misconceptions about areas, angles and right-angled triangles."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from ratchet.data.synthetic_misconceptions.mal_rules import Answer, MalRule, Params, Problem, num, root

AREA = "Area"
ANGLES = "Angles"
PYTHAGORAS = "Pythagoras' theorem"
UNITS = ("cm", "m", "mm")


def _triangle(r: Random) -> Params | None:
    """An isosceles or other triangle, with its base, its height and one slant side, which is longer than the height."""
    b, h = r.randint(3, 30), r.randint(3, 20)
    s = h + r.randint(1, 8)
    return None if b == s else Params(b=b, h=h, s=s, unit=r.choice(UNITS))


def _circle(r: Random) -> Params:
    return Params(d=2 * r.randint(2, 60), unit=r.choice(UNITS))


def _pi(value: int | Fraction, unit: str) -> Answer:
    text = num(value).text
    return Answer(f"{'' if text == '1' else text}π {unit}^2", Fraction(value))


def _angles(r: Random) -> Params | None:
    a, b = r.randint(20, 110), r.randint(20, 110)
    return None if a + b > 165 or a == b else Params(a=a, b=b)


def _legs(r: Random) -> Params | None:
    a, b = r.randint(3, 30), r.randint(3, 30)
    return None if a == b else Params(a=a, b=b, square=a * a + b * b, unit=r.choice(UNITS))


def _one_leg(r: Random) -> Params | None:
    a, c = r.randint(3, 30), r.randint(8, 40)
    return None if a >= c - 1 else Params(a=a, c=c, square=c * c - a * a, unit=r.choice(UNITS))


def _length(square: int, unit: str) -> Answer:
    answer = root(square, f" {unit}")
    assert answer is not None  # the draws give positive squares only
    return answer


NO_ROOT = MalRule(
    "pythagoras.no_root",
    PYTHAGORAS,
    "Ends with the squared length and never undoes the squaring.",
    lambda p: num(p.square, after=f" {p.unit}"),
)

# fmt: off
PROBLEMS = (
    Problem(id="area_of_triangle", topic=AREA, construct="Calculate the area of a triangle", draw=_triangle,
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
        correct=lambda p: num(Fraction(p.b * p.h, 2), after=f" {p.unit}^2"),
        rules=(
            MalRule("area.not_halved", AREA, "Uses the rule for a rectangle and does not halve.",
                lambda p: num(p.b * p.h, after=f" {p.unit}^2")),
            MalRule("area.slant_for_height", AREA, "Uses a sloping edge as the height.",
                lambda p: num(Fraction(p.b * p.s, 2), after=f" {p.unit}^2")),
            MalRule("area.multiplies_everything", AREA, "Multiplies together every length that is given.",
                lambda p: num(p.b * p.h * p.s, after=f" {p.unit}^2")),
            MalRule("area.adds_lengths", AREA, "Adds up the measurements as if going round the outside.",
                lambda p: num(p.b + p.h + p.s, after=f" {p.unit}^2")),
        )),
    Problem(id="area_of_circle", topic=AREA, construct="Calculate the area of a circle from its diameter",
        draw=_circle,
        phrasings=(
            "A circle has diameter {d} {unit}. What is its area, in terms of π?",
            "{name} paints a round {thing} that is {d} {unit} across. What area is painted? Leave π in the answer.",
            "Find the area of a circle whose diameter is {d} {unit}. Give it as a multiple of π.",
            "The widest chord of a circle measures {d} {unit}. Which of these is the area inside the circle?",
        ),
        words={"thing": ("table top", "sign", "target", "lid", "badge")},
        correct=lambda p: _pi(Fraction(p.d**2, 4), p.unit),
        rules=(
            MalRule("area.whole_width_squared", AREA, "Squares the full width where half of it is needed.",
                lambda p: _pi(p.d**2, p.unit)),
            MalRule("area.circumference", AREA,
                "Mixes up the formula for the distance round the edge with the one for the space inside.",
                lambda p: _pi(p.d, p.unit)),
            MalRule("area.halves_after_squaring", AREA,
                "Halves after squaring and not before, so is out by a factor of two.",
                lambda p: _pi(Fraction(p.d**2, 2), p.unit)),
            MalRule("area.radius_not_squared", AREA, "Finds the radius but leaves out the squaring.",
                lambda p: _pi(Fraction(p.d, 2), p.unit)),
        )),
    Problem(id="third_angle", topic=ANGLES, construct="Find a missing angle in a triangle", draw=_angles,
        phrasings=(
            "Two angles of a triangle are {a}° and {b}°. What is the third?",
            "In triangle ABC, angle A = {a}° and angle B = {b}°. Work out angle C.",
            "{name} measures two corners of a triangular {thing} as {a}° and {b}°. How big is the remaining corner?",
            "Find x if the angles of a triangle are {a}°, {b}° and x.",
        ),
        words={"thing": ("garden", "sail", "field", "flag", "shelf")},
        correct=lambda p: num(180 - p.a - p.b, after="°"),
        rules=(
            MalRule("angles.full_turn", ANGLES, "Believes the corners make a full turn in total.",
                lambda p: num(360 - p.a - p.b, after="°")),
            MalRule("angles.one_subtracted", ANGLES, "Takes only the first of the known sizes from the total.",
                lambda p: num(180 - p.a, after="°")),
            MalRule("angles.sum_given", ANGLES, "Adds the known sizes and forgets to take this from the total.",
                lambda p: num(p.a + p.b, after="°")),
            MalRule("angles.assumes_isosceles", ANGLES,
                "Assumes without reason that two of the corners are equal and halves what the first leaves for them.",
                lambda p: num(Fraction(180 - p.a, 2), after="°")),
        )),
    Problem(id="longest_side", topic=PYTHAGORAS, construct="Use Pythagoras' theorem to find the hypotenuse",
        draw=_legs,
        phrasings=(
            "The two shorter sides of a right-angled triangle are {a} {unit} and {b} {unit}. "
            "How long is the hypotenuse, to 1 d.p.?",
            "A rectangle measures {a} {unit} by {b} {unit}. Find the length of its diagonal to one decimal place.",
            "{name} walks {a} {unit} east and then {b} {unit} north. How far is {name} from the start, to 1 d.p.?",
            "In a triangle the right angle lies between sides of {a} {unit} and {b} {unit}. What is the third side?",
        ),
        correct=lambda p: _length(p.square, p.unit),
        rules=(
            NO_ROOT,
            MalRule("pythagoras.adds_sides", PYTHAGORAS, "Adds the two given lengths as they are, without squaring.",
                lambda p: num(p.a + p.b, after=f" {p.unit}")),
            MalRule("pythagoras.subtracts_for_longest", PYTHAGORAS,
                "Subtracts the squares although the longest side is wanted.",
                lambda p: root(abs(p.a**2 - p.b**2), f" {p.unit}")),
            MalRule("pythagoras.doubles", PYTHAGORAS, "Doubles the given lengths where they should be squared.",
                lambda p: root(2 * p.a + 2 * p.b, f" {p.unit}")),
        )),
    Problem(id="shorter_side", topic=PYTHAGORAS, construct="Use Pythagoras' theorem to find a shorter side",
        draw=_one_leg,
        phrasings=(
            "A right-angled triangle has hypotenuse {c} {unit} and another side of {a} {unit}. "
            "How long is the third side, to 1 d.p.?",
            "A ladder of {c} {unit} leans on a wall with its foot {a} {unit} away. "
            "How high does it reach, to one decimal place?",
            "The diagonal of a rectangle is {c} {unit} and its width is {a} {unit}. Find its length to 1 d.p.",
            "{name} holds a kite on a tight string of {c} {unit} above a point {a} {unit} away. How high is the kite?",
        ),
        correct=lambda p: _length(p.square, p.unit),
        rules=(
            NO_ROOT,
            MalRule("pythagoras.adds_for_shorter", PYTHAGORAS,
                "Adds the squares although the longest side is already known.",
                lambda p: root(p.c**2 + p.a**2, f" {p.unit}")),
            MalRule("pythagoras.subtracts_sides", PYTHAGORAS,
                "Takes one given length from the other, without squaring.",
                lambda p: num(p.c - p.a, after=f" {p.unit}")),
            MalRule("pythagoras.root_halves", PYTHAGORAS,
                "Halves at the end, mistaking a square root for division by two.",
                lambda p: num(Fraction(p.square, 2), after=f" {p.unit}")),
        )),
)
# fmt: on
