"""Makes multiple-choice questions whose wrong options are what the wrong procedures really compute.

Three promises, each kept by construction: an option belongs to exactly one procedure of its kind of problem (numbers
for which two procedures agree, or one is right by luck, are drawn again); no question comes twice, neither its text nor
its numbers in other words, so that a split by question shares none; and every procedure is used about equally often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from data.errors import DataError
from data.mistakes import algebra, chance, fractions, lines, numbers, proportion, shapes
from data.mistakes.rules import Answer, MalRule, Params, Problem

PROBLEMS: tuple[Problem, ...] = (
    *fractions.PROBLEMS,
    *proportion.PROBLEMS,
    *numbers.PROBLEMS,
    *algebra.PROBLEMS,
    *lines.PROBLEMS,
    *shapes.PROBLEMS,
    *chance.PROBLEMS,
)
"""Every kind of problem."""

RULES: tuple[MalRule, ...] = tuple({rule.id: rule for problem in PROBLEMS for rule in problem.rules}.values())
"""Every wrong procedure once, in a fixed order; their sentences are the corpus."""

NAMES = [
    "Ada",
    "Amir",
    "Anna",
    "Bea",
    "Ben",
    "Carlos",
    "Chen",
    "Chloe",
    "Dana",
    "Elif",
    "Emeka",
    "Eva",
    "Farah",
    "Finn",
    "Grace",
    "Hana",
    "Hugo",
    "Ines",
    "Ivan",
    "Jada",
    "Jin",
    "Kai",
    "Kofi",
    "Lena",
    "Leo",
    "Lucy",
    "Maya",
    "Mei",
    "Milo",
    "Nadia",
    "Nils",
    "Noor",
    "Olga",
    "Omar",
    "Priya",
    "Quinn",
    "Rosa",
    "Ravi",
    "Sam",
    "Sofia",
    "Tariq",
    "Tess",
    "Uma",
    "Vera",
    "Will",
    "Yuki",
    "Zoe",
]

WRONG = 3
"""Wrong options per question."""
DRAWS = 2_000
"""How often new numbers are tried for one question before its kind counts as used up."""


@dataclass(frozen=True)
class Question:
    """A multiple-choice question with four options."""

    id: str
    topic: str
    construct: str
    text: str
    options: tuple[str, ...]
    correct: int
    """Index into `options`."""
    rules: tuple[str | None, ...]
    """For each option the id of the procedure that gives it; None for the correct one."""


@dataclass(frozen=True)
class Worked:
    """A question with what it was made from, so that every option can be worked out again."""

    question: Question
    problem: Problem
    params: Params


def questions(count: int, seed: int) -> list[Question]:
    """`count` different questions. The same seed gives the same ones, and a longer list begins with the shorter.

    Make one list and split it: lists from two seeds may share questions. Raises DataError where there are not `count`
    different ones.
    """
    return [worked.question for worked in work(count, seed)]


def work(count: int, seed: int, problems: Sequence[Problem] = PROBLEMS) -> list[Worked]:
    """As `questions`, with the numbers behind each, and from `problems` only."""
    if count < 0:
        raise DataError(f"mistakes: {count} questions were asked for; expected 0 or more; give another count")
    found: list[Worked] = []
    for worked in _endless(problems, seed):
        if len(found) == count:
            break
        found.append(worked)
    if len(found) < count:
        raise DataError(
            f"mistakes: {count} questions were asked for; only {len(found)} different ones were found in which every "
            f"mistake comes up equally often; ask for at most {len(found)}, or try another seed"
        )
    return found


def query_text(question: Question, option: int) -> str:
    """The text to search with, in the format of the Eedi competition (2024), for the wrong answer `option`."""
    if option == question.correct or not 0 <= option < len(question.options):
        wrong = [i for i in range(len(question.options)) if i != question.correct]
        raise DataError(f"question {question.id}: option {option} was given; expected a wrong one; give one of {wrong}")
    return (
        f"Question: {question.text}\nHint: {question.construct}\n"
        f"Correct answer: {question.options[question.correct]}\nWrong answer: {question.options[option]}"
    )


def identified(problem: Problem, params: Params) -> dict[str, Answer]:
    """The wrong answers that give their procedure away: rule id -> answer, in the order of the problem's rules.

    Left out are those equal to the correct answer or to another procedure's, in value or as written.
    """
    correct = problem.correct(params)
    answers = {rule.id: answer for rule in problem.rules if (answer := rule.apply(params)) is not None}
    keys = Counter([correct.key, *(answer.key for answer in answers.values())])
    texts = Counter([correct.text, *(answer.text for answer in answers.values())])
    return {rule: answer for rule, answer in answers.items() if keys[answer.key] == 1 and texts[answer.text] == 1}


def _endless(problems: Sequence[Problem], seed: int) -> Iterator[Worked]:
    """Questions until a kind of problem has no new ones, always for the procedure that was used least so far."""
    random = Random(f"mistakes {seed}")
    homes: dict[str, list[Problem]] = {}
    for problem in problems:
        for rule in problem.rules:
            homes.setdefault(rule.id, []).append(problem)
    used = dict.fromkeys(homes, 0)
    seen: set[Hashable] = set()
    number = 0
    while used:
        rule_id = min(used, key=lambda rule: (used[rule], random.random()))
        problem = random.choice(homes[rule_id])
        drawn = _draw(problem, rule_id, random, seen)
        if drawn is None:
            return
        params, answers, text = drawn
        # The least used first; the target is among those by choice, and kept there where it is tied.
        others = sorted((rule for rule in answers if rule != rule_id), key=lambda rule: (used[rule], random.random()))
        chosen = [rule_id, *others[: WRONG - 1]]
        for chosen_id in chosen:
            used[chosen_id] += 1
        yield Worked(
            _question(f"mistakes-{seed}-{number:06d}", problem, params, text, chosen, answers, random), problem, params
        )
        number += 1


def _draw(
    problem: Problem, rule_id: str, random: Random, seen: set[Hashable]
) -> tuple[Params, dict[str, Answer], str] | None:
    """Numbers and words not seen before in which the procedure `rule_id` and two others can be told apart."""
    for _ in range(DRAWS):
        params = problem.draw(random)
        if params is None or (problem.id, params.identity()) in seen:
            continue
        answers = identified(problem, params)
        if rule_id not in answers or len(answers) < WRONG:
            continue
        name, other = random.sample(NAMES, 2)
        words = {slot: random.choice(choices) for slot, choices in problem.words.items()}
        text = random.choice(problem.phrasings).format(**vars(params), **words, name=name, other=other)
        if text.casefold() in seen:
            continue
        seen.add((problem.id, params.identity()))
        seen.add(text.casefold())
        return params, answers, text
    return None


def _question(
    name: str,
    problem: Problem,
    params: Params,
    text: str,
    chosen: list[str],
    answers: dict[str, Answer],
    random: Random,
) -> Question:
    options: list[tuple[str | None, str]] = [(None, problem.correct(params).text)]
    options += [(rule, answers[rule].text) for rule in chosen]
    random.shuffle(options)
    rules = tuple(rule for rule, _ in options)
    return Question(
        name, problem.topic, problem.construct, text, tuple(answer for _, answer in options), rules.index(None), rules
    )
