"""Misconceptions about averages and probability."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from ratchet.data.synthetic_misconceptions.mal_rules import (
    Answer,
    MalRule,
    Params,
    Problem,
    fraction,
    num,
    ratio,
    rounded,
)

AVERAGES = "Averages"
PROBABILITY = "Probability"


def _average(value: int | Fraction) -> Answer:
    """Exact where two decimals are enough, else rounded to them."""
    return num(value) if (Fraction(value) * 100).denominator == 1 else rounded(value, 2)


def _values(r: Random) -> Params | None:
    """Five numbers in no order, with one mode, and a whole-number mean."""
    values = [r.randint(1, 30) for _ in range(4)]
    values.append(values[0])
    r.shuffle(values)
    if len(set(values)) != 4 or sum(values) % 5 or values == sorted(values):
        return None
    return Params(values=tuple(values), listed=", ".join(map(str, values)), total=sum(values))


def _table(r: Random) -> Params | None:
    first = r.randint(0, 3)
    scores = tuple(range(first, first + 4))
    counts = tuple(r.randint(1, 12) for _ in scores)
    total = sum(s * c for s, c in zip(scores, counts, strict=True))
    rows = "; ".join(f"{s}: {c}" for s, c in zip(scores, counts, strict=True))
    return Params(scores=scores, counts=counts, total=total, rows=rows) if total * 20 % sum(counts) == 0 else None


def _bag(r: Random) -> Params | None:
    a, b, c = r.randint(2, 12), r.randint(1, 12), r.randint(1, 12)
    return None if len({a, b, c}) < 3 else Params(a=a, b=b, c=c, n=a + b + c)


TOTAL_ONLY = MalRule(
    "averages.total_only",
    AVERAGES,
    "Adds everything up and leaves out the division.",
    lambda p: num(p.total),
)

# A table of rules reads better with one rule on two lines.
# fmt: off
PROBLEMS = (
    Problem(
        id="mean_of_list",
        topic=AVERAGES,
        construct="Calculate the mean of a list of numbers",
        draw=_values,
        phrasings=(
            "Find the mean of {listed}.",
            "{name} scores {listed} in five games. What is the mean score?",
            "The ages in years of five {people} are {listed}. What is their mean age?",
            "Five {things} weigh {listed} grams. Work out the mean weight in grams.",
        ),
        words={"people": ("cousins", "players", "guests", "singers"), "things": ("letters", "eggs", "keys", "pens")},
        correct=lambda p: _average(Fraction(p.total, 5)),
        rules=(
            TOTAL_ONLY,
            MalRule("averages.median", AVERAGES,
                "Puts the data in order and picks the one in the middle, confusing two kinds of average.",
                lambda p: num(sorted(p.values)[2])),
            MalRule("averages.mode", AVERAGES, "Confuses this average with the one that occurs most often.",
                lambda p: num(max(p.values, key=p.values.count))),
            MalRule("averages.midrange", AVERAGES, "Goes halfway between the two extremes.",
                lambda p: _average(Fraction(max(p.values) + min(p.values), 2))),
            MalRule("averages.repeat_counted_once", AVERAGES,
                "Leaves a repeated number out when adding and when counting.",
                lambda p: _average(Fraction(sum(set(p.values)), len(set(p.values))))),
        ),
    ),
    Problem(
        id="mean_of_table",
        topic=AVERAGES,
        construct="Calculate the mean from a frequency table",
        draw=_table,
        phrasings=(
            "A table gives each score and how often it came up: {rows}. What is the mean score?",
            "{name} asks families how many {things} they have (number: families): {rows}. Find the mean number.",
            "Goals per match and number of matches: {rows}. What is the mean number of goals per match?",
            "From this frequency table (value: frequency) work out the mean: {rows}.",
        ),
        words={"things": ("pets", "cars", "bikes", "children", "televisions")},
        correct=lambda p: _average(Fraction(p.total, sum(p.counts))),
        rules=(
            TOTAL_ONLY,
            MalRule("averages.frequencies_ignored", AVERAGES,
                "Averages the listed values as though each had come up once.",
                lambda p: _average(Fraction(sum(p.scores), len(p.scores)))),
            MalRule("averages.divides_by_rows", AVERAGES,
                "Finds the overall total but divides it by the number of rows.",
                lambda p: _average(Fraction(p.total, len(p.counts)))),
            MalRule("averages.averages_frequencies", AVERAGES,
                "Averages how often things happened and not what happened.",
                lambda p: _average(Fraction(sum(p.counts), len(p.counts)))),
        ),
    ),
    Problem(
        id="probability_of_colour",
        topic=PROBABILITY,
        construct="Find the probability of a single event with equally likely outcomes",
        draw=_bag,
        phrasings=(
            "A bag holds {a} red, {b} blue and {c} green {things}. One is taken at random. "
            "What is the probability that it is red?",
            "{name} has {a} red, {b} blue and {c} green {things} in a box and picks one without looking. "
            "How likely is red?",
            "A spinner has {a} red, {b} blue and {c} green equal sectors. What is P(red)?",
            "A class sits {a} pupils at red tables, {b} at blue and {c} at green. One is chosen at random. "
            "What is the chance of a red table?",
        ),
        words={"things": ("counters", "marbles", "beads", "balls", "sweets")},
        correct=lambda p: fraction(Fraction(p.a, p.n)),
        rules=(
            MalRule("probability.odds", PROBABILITY,
                "Compares the favourable outcomes with the unfavourable ones and not with all of them.",
                lambda p: ratio(p.a, p.b + p.c)),
            MalRule("probability.kinds_equal", PROBABILITY,
                "Counts the kinds of outcome and takes each kind to be just as likely.", lambda p: ratio(1, 3)),
            MalRule("probability.one_of_all", PROBABILITY,
                "Puts one over the total since a single item is drawn, however many would do.",
                lambda p: ratio(1, p.n)),
            MalRule("probability.complement", PROBABILITY, "Gives the chance that the event does not happen.",
                lambda p: ratio(p.b + p.c, p.n)),
        ),
    ),
)
# fmt: on
