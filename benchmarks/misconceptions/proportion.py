"""Misconceptions about ratio, proportion and percentages."""

from __future__ import annotations

from math import gcd, lcm

from benchmarks.misconceptions.mal_rules import (
    DIGIT,
    MalRule,
    Problem,
    between,
    make_draw,
    money,
    phrase,
)

# A table of rules reads better with one rule on two lines.
# fmt: off
PROBLEMS = (
    Problem("Share an amount in a given ratio",
        draw=make_draw({"a": DIGIT, "b": DIGIT}, unless=lambda p: gcd(p.a, p.b) > 1, then={"k": between(1, 12)},
            derive=lambda p: {"n": (p.a + p.b) * p.a * p.b * p.k}),
        phrasings=(
            "{name} and {other} share £{n} in the ratio {a}:{b}. How many pounds does {name} get?",
            "£{n} is split between {name} and {other} in the ratio {a} : {b}. What is {name}'s part, in pounds?",
            "A {mix} of {n} g is made from two powders in the ratio {a}:{b}. How many grams of the first are used?",
            "In a club of {n} members, juniors and seniors are in the ratio {a}:{b}. How many juniors are there?",
        ),
        words={"mix": ("mixture", "blend", "bag of plant food", "batch of plaster")},
        correct=lambda p: p.n * p.a / (p.a + p.b),
        rules=(
            MalRule("ratio.own_number_only", lambda p: p.n / p.a,
                "Divides the total by that person's own number without counting all the shares."),
            MalRule("ratio.as_fraction", lambda p: p.n * p.a / p.b,
                "Reads a comparison of two parts as a fraction of the whole, part over part."),
            MalRule("ratio.other_share", lambda p: p.n * p.b / (p.a + p.b),
                "Takes the numbers in the wrong order and gives the amount belonging to the second one."),
            MalRule("ratio.stops_at_one_part", lambda p: p.n / (p.a + p.b),
                "Finds what a single share is worth and stops without scaling it up."),
            MalRule("ratio.halves", lambda p: p.n / 2,
                "Shares equally between the two, whatever the ratio says."),
        )),
    Problem("Scale a recipe or a quantity in direct proportion",
        draw=make_draw({"m": DIGIT, "n": between(2, 15)}, unless=lambda p: p.m == p.n, then={"k": between(1, 12)},
            derive=lambda p: {"x": 5 * lcm(p.m, p.n) * p.k}),
        phrasings=(
            "A recipe for {m} people needs {x} g of {food}. How many grams of {food} are needed for {n} people?",
            "{name} uses {x} g of {food} to bake {m} loaves. How many grams does {other} need for {n} loaves?",
            "{m} identical bags weigh {x} g in total. How much, in grams, do {n} of these bags weigh?",
            "A machine fills {x} bottles in {m} minutes at a steady rate. How many does it fill in {n} minutes?",
        ),
        words={"food": ("flour", "rice", "sugar", "butter", "oats")},
        correct=lambda p: p.x * p.n / p.m,
        rules=(
            MalRule("ratio.additive", lambda p: p.x + p.n - p.m,
                "Thinks additively, raising one quantity by the same difference as the other instead of scaling."),
            MalRule("ratio.no_unit_value", lambda p: p.x * p.n,
                "Multiplies straight by the new number without first finding what belongs to one."),
            MalRule("ratio.inverse", lambda p: p.x * p.m / p.n,
                "Treats the relationship as inverse, so that more of one thing means less of the other."),
            MalRule("ratio.unit_value_only", lambda p: p.x / p.m,
                "Works out what belongs to one and forgets to multiply up afterwards."),
        )),
    Problem("Increase an amount by a percentage",
        draw=make_draw({"price": range(40, 901, 20), "rate": DIGIT}),
        phrasings=phrase(
            "£{price} increased by {rate}%",
            "A {item} costs £{price}. The price rises by {rate}%. What is the new price?",
            "{name} puts £{price} in an account that pays {rate}% after a year. How much is there after one year?",
            "Rent of £{price} goes up by {rate}%. What does {name} pay now?",
        ),
        words={"item": ("bike", "phone", "coat", "desk", "ticket", "guitar")},
        write=lambda value, p: money(value),
        correct=lambda p: p.price * (100 + p.rate) / 100,
        rules=(
            MalRule("percent.as_amount", lambda p: p.price + p.rate,
                "Handles the percentage as if it were a number of pounds and just adds it on."),
            MalRule("percent.change_only", lambda p: p.price * p.rate / 100,
                "Gives the size of the change and not the amount that results."),
            MalRule("percent.tenths_multiplier", lambda p: p.price * (10 + p.rate) / 10,
                "Writes a single-digit percentage in the tenths place of the multiplier, as in 1.4 for 1.04."),
            MalRule("percent.divides_by_rate", lambda p: p.price + p.price / p.rate,
                "Generalises from ten percent, finding any percentage by dividing by its number."),
            MalRule("percent.wrong_direction", lambda p: p.price * (100 - p.rate) / 100,
                "Takes the change off where it should be put on."),
        )),
    Problem("Find the original amount before a percentage decrease",
        draw=make_draw({"rate": (5, 10, 15, 20, 30, 35, 40, 45, 60), "old": range(40, 1201, 20)},
            derive=lambda p: {"sale": p.old * (100 - p.rate) // 100}),
        phrasings=(
            "In a sale all prices are reduced by {rate}%. A {item} costs £{sale} in the sale. What did it cost before?",
            "{name} pays £{sale} for a {item} after {rate}% off. What was the full price?",
            "After losing {rate}% of its value a {item} is worth £{sale}. What was it worth at first?",
            "A number of pounds is decreased by {rate}% and becomes £{sale}. What was it?",
        ),
        words={"item": ("jacket", "laptop", "watch", "sofa", "camera", "tent")},
        write=lambda value, p: money(value),
        correct=lambda p: p.sale * 100 / (100 - p.rate),
        rules=(
            MalRule("percent.adds_back", lambda p: p.sale * (100 + p.rate) / 100,
                "Undoes a reduction by putting the same percentage of the reduced value back on."),
            MalRule("percent.reduces_again", lambda p: p.sale * (100 - p.rate) / 100,
                "Takes the reduction off a second time instead of working backwards."),
            MalRule("percent.divides_by_cut", lambda p: p.sale * 100 / p.rate,
                "Works backwards from the percentage removed and not from the percentage that remains."),
            MalRule("percent.as_amount_back", lambda p: p.sale + p.rate,
                "Works backwards by adding the percentage figure itself as a sum of money."),
        )),
)
# fmt: on
