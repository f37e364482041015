"""Misconceptions about ratio, proportion and percentages."""

from __future__ import annotations

from fractions import Fraction
from math import gcd
from random import Random

from ratchet.data.synthetic_misconceptions.mal_rules import MalRule, Params, Problem, money, num, phrase

RATIO = "Ratio and proportion"
PERCENT = "Percentages"


def _share(r: Random) -> Params | None:
    a, b = r.randint(2, 9), r.randint(2, 9)
    return None if gcd(a, b) > 1 else Params(a=a, b=b, n=(a + b) * a * b * r.randint(1, 12))


def _recipe(r: Random) -> Params | None:
    m, n = r.randint(2, 9), r.randint(2, 15)
    return None if m == n else Params(m=m, n=n, x=m * n // gcd(m, n) * 5 * r.randint(1, 12))


def _price(r: Random) -> Params:
    return Params(price=20 * r.randint(2, 45), rate=r.choice((2, 3, 4, 5, 6, 7, 8, 9)))


def _sale(r: Random) -> Params:
    rate = r.choice((5, 10, 15, 20, 30, 35, 40, 45, 60))
    old = 20 * r.randint(2, 60)
    return Params(rate=rate, sale=old * (100 - rate) // 100)


# fmt: off
PROBLEMS = (
    Problem(id="share_in_ratio", topic=RATIO, construct="Share an amount in a given ratio", draw=_share,
        phrasings=(
            "{name} and {other} share £{n} in the ratio {a}:{b}. How many pounds does {name} get?",
            "£{n} is split between {name} and {other} in the ratio {a} : {b}. What is {name}'s part, in pounds?",
            "A {mix} of {n} g is made from two powders in the ratio {a}:{b}. How many grams of the first are used?",
            "In a club of {n} members, juniors and seniors are in the ratio {a}:{b}. How many juniors are there?",
        ),
        words={"mix": ("mixture", "blend", "bag of plant food", "batch of plaster")},
        correct=lambda p: num(Fraction(p.n * p.a, p.a + p.b)),
        rules=(
            MalRule("ratio.own_number_only", RATIO,
                "Divides the total by that person's own number without counting all the shares.",
                lambda p: num(Fraction(p.n, p.a))),
            MalRule("ratio.as_fraction", RATIO,
                "Reads a comparison of two parts as a fraction of the whole, part over part.",
                lambda p: num(Fraction(p.n * p.a, p.b))),
            MalRule("ratio.other_share", RATIO,
                "Takes the numbers in the wrong order and gives the amount belonging to the second one.",
                lambda p: num(Fraction(p.n * p.b, p.a + p.b))),
            MalRule("ratio.stops_at_one_part", RATIO,
                "Finds what a single share is worth and stops without scaling it up.",
                lambda p: num(Fraction(p.n, p.a + p.b))),
            MalRule("ratio.halves", RATIO, "Shares equally between the two, whatever the ratio says.",
                lambda p: num(Fraction(p.n, 2))),
        )),
    Problem(id="scale_recipe", topic=RATIO, construct="Scale a recipe or a quantity in direct proportion",
        draw=_recipe,
        phrasings=(
            "A recipe for {m} people needs {x} g of {food}. How many grams of {food} are needed for {n} people?",
            "{name} uses {x} g of {food} to bake {m} loaves. How many grams does {other} need for {n} loaves?",
            "{m} identical bags weigh {x} g in total. How much, in grams, do {n} of these bags weigh?",
            "A machine fills {x} bottles in {m} minutes at a steady rate. How many does it fill in {n} minutes?",
        ),
        words={"food": ("flour", "rice", "sugar", "butter", "oats")}, correct=lambda p: num(Fraction(p.x * p.n, p.m)),
        rules=(
            MalRule("ratio.additive", RATIO,
                "Thinks additively, raising one quantity by the same difference as the other instead of scaling.",
                lambda p: num(p.x + p.n - p.m)),
            MalRule("ratio.no_unit_value", RATIO,
                "Multiplies straight by the new number without first finding what belongs to one.",
                lambda p: num(p.x * p.n)),
            MalRule("ratio.inverse", RATIO,
                "Treats the relationship as inverse, so that more of one thing means less of the other.",
                lambda p: num(Fraction(p.x * p.m, p.n))),
            MalRule("ratio.unit_value_only", RATIO,
                "Works out what belongs to one and forgets to multiply up afterwards.",
                lambda p: num(Fraction(p.x, p.m))),
        )),
    Problem(id="percentage_increase", topic=PERCENT, construct="Increase an amount by a percentage", draw=_price,
        phrasings=phrase(
            "£{price} increased by {rate}%",
            "A {item} costs £{price}. The price rises by {rate}%. What is the new price?",
            "{name} puts £{price} in an account that pays {rate}% after a year. How much is there after one year?",
            "Rent of £{price} goes up by {rate}%. What does {name} pay now?",
        ),
        words={"item": ("bike", "phone", "coat", "desk", "ticket", "guitar")},
        correct=lambda p: money(p.price * Fraction(100 + p.rate, 100)),
        rules=(
            MalRule("percent.as_amount", PERCENT,
                "Handles the percentage as if it were a number of pounds and just adds it on.",
                lambda p: money(p.price + p.rate)),
            MalRule("percent.change_only", PERCENT, "Gives the size of the change and not the amount that results.",
                lambda p: money(p.price * Fraction(p.rate, 100))),
            MalRule("percent.tenths_multiplier", PERCENT,
                "Writes a single-digit percentage in the tenths place of the multiplier, as in 1.4 for 1.04.",
                lambda p: money(p.price * Fraction(10 + p.rate, 10))),
            MalRule("percent.divides_by_rate", PERCENT,
                "Generalises from ten percent, finding any percentage by dividing by its number.",
                lambda p: money(p.price + Fraction(p.price, p.rate))),
            MalRule("percent.wrong_direction", PERCENT, "Takes the change off where it should be put on.",
                lambda p: money(p.price * Fraction(100 - p.rate, 100))),
        )),
    Problem(id="reverse_percentage", topic=PERCENT, construct="Find the original amount before a percentage decrease",
        draw=_sale,
        phrasings=(
            "In a sale all prices are reduced by {rate}%. A {item} costs £{sale} in the sale. What did it cost before?",
            "{name} pays £{sale} for a {item} after {rate}% off. What was the full price?",
            "After losing {rate}% of its value a {item} is worth £{sale}. What was it worth at first?",
            "A number of pounds is decreased by {rate}% and becomes £{sale}. What was it?",
        ),
        words={"item": ("jacket", "laptop", "watch", "sofa", "camera", "tent")},
        correct=lambda p: money(p.sale * Fraction(100, 100 - p.rate)),
        rules=(
            MalRule("percent.adds_back", PERCENT,
                "Undoes a reduction by putting the same percentage of the reduced value back on.",
                lambda p: money(p.sale * Fraction(100 + p.rate, 100))),
            MalRule("percent.reduces_again", PERCENT,
                "Takes the reduction off a second time instead of working backwards.",
                lambda p: money(p.sale * Fraction(100 - p.rate, 100))),
            MalRule("percent.divides_by_cut", PERCENT,
                "Works backwards from the percentage removed and not from the percentage that remains.",
                lambda p: money(p.sale * Fraction(100, p.rate))),
            MalRule("percent.as_amount_back", PERCENT,
                "Works backwards by adding the percentage figure itself as a sum of money.",
                lambda p: money(p.sale + p.rate)),
        )),
)
# fmt: on
