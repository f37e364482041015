"""Generator of multiple-choice questions whose wrong options are computed by wrong procedures (mal-rules).

Guaranteed by construction:
- Each wrong option is the answer of exactly one procedure of its problem. Numbers for which two procedures agree, or
  one gives the correct answer, are drawn again.
- No question is repeated, neither its text nor its numbers in other words. A split by question shares none.
- Every procedure is used about equally often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from ratchet.data.synthetic_misconceptions import (
    algebra,
    arithmetic,
    geometry,
    proportion,
)
from ratchet.data.synthetic_misconceptions.mal_rules import Answer, MalRule, Params, Problem
from ratchet.errors import DataError

PROBLEMS: tuple[Problem, ...] = (
    *proportion.PROBLEMS,
    *arithmetic.PROBLEMS,
    *algebra.PROBLEMS,
    *geometry.PROBLEMS,
)
"""All problem templates."""

RULES: tuple[MalRule, ...] = tuple({rule.id: rule for problem in PROBLEMS for rule in problem.rules}.values())
"""All mal-rules, each once, in a fixed order. Their sentences are the corpus."""

# fmt: off
NAMES = [
    "Ada", "Amir", "Anna", "Bea", "Ben", "Carlos", "Chen", "Chloe", "Dana", "Elif", "Emeka", "Eva", "Farah",
    "Finn", "Grace", "Hana", "Hugo", "Ines", "Ivan", "Jada", "Jin", "Kai", "Kofi", "Lena", "Leo", "Lucy", "Maya",
    "Mei", "Milo", "Nadia", "Nils", "Noor", "Olga", "Omar", "Priya", "Quinn", "Rosa", "Ravi", "Sam", "Sofia",
    "Tariq", "Tess", "Uma", "Vera", "Will", "Yuki", "Zoe",
]
# fmt: on

WRONG = 3
"""Wrong options per question."""
DRAWS = 2_000
"""Attempts to draw new numbers for one question before its problem counts as exhausted."""


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
    """For each option the id of the mal-rule that computes it; None for the correct one."""


@dataclass(frozen=True)
class Worked:
    """A question with its problem and numbers, from which every option can be computed again."""

    question: Question
    problem: Problem
    params: Params


def generate_questions(count: int, seed: int) -> list[Question]:
    """Generate `count` distinct questions. Deterministic by seed; a longer list begins with the shorter one.

    Generate one list and split it: lists of two seeds may share questions. Raises DataError if there are fewer than
    `count` distinct ones.
    """
    return [worked.question for worked in generate_worked(count, seed)]


def generate_worked(count: int, seed: int, problems: Sequence[Problem] = PROBLEMS) -> list[Worked]:
    """Generate questions as `generate_questions` does, from `problems` only, and return their numbers too."""
    if count < 0:
        raise DataError(f"questions: {count} asked for; expected >= 0; give another number")
    found: list[Worked] = []
    for worked in _generate(problems, seed):
        if len(found) == count:
            break
        found.append(worked)
    if len(found) < count:
        raise DataError(
            f"questions: {count} asked for; only {len(found)} distinct ones exist in which every misconception is "
            f"equally frequent; ask for at most {len(found)}, or try another seed"
        )
    return found


def format_query(question: Question, option: int) -> str:
    """Format the query for the wrong answer `option` as in the Eedi competition (2024)."""
    if option == question.correct or not 0 <= option < len(question.options):
        wrong = [i for i in range(len(question.options)) if i != question.correct]
        raise DataError(f"question {question.id}: option {option} was given; expected a wrong one; give one of {wrong}")
    return (
        f"Question: {question.text}\nHint: {question.construct}\n"
        f"Correct answer: {question.options[question.correct]}\nWrong answer: {question.options[option]}"
    )


def find_distinct_answers(problem: Problem, params: Params) -> dict[str, Answer]:
    """Find the wrong answers that identify their mal-rule: rule id -> answer, in the order of the problem's rules.

    Answers that equal the correct one or that of another rule, in value or as written, are left out.
    """
    correct = problem.correct(params)
    answers = {rule.id: answer for rule in problem.rules if (answer := rule.apply(params)) is not None}
    keys = Counter([correct.key, *(answer.key for answer in answers.values())])
    texts = Counter([correct.text, *(answer.text for answer in answers.values())])
    return {rule: answer for rule, answer in answers.items() if keys[answer.key] == 1 and texts[answer.text] == 1}


def _generate(problems: Sequence[Problem], seed: int) -> Iterator[Worked]:
    """Yield questions, each for the least used rule, until a problem has no new ones."""
    random = Random(f"mistakes {seed}")
    problems_of: dict[str, list[Problem]] = {}
    for problem in problems:
        for rule in problem.rules:
            problems_of.setdefault(rule.id, []).append(problem)
    used = dict.fromkeys(problems_of, 0)
    seen: set[Hashable] = set()
    number = 0
    while used:
        rule_id = min(used, key=lambda rule: (used[rule], random.random()))
        problem = random.choice(problems_of[rule_id])
        drawn = _draw(problem, rule_id, random, seen)
        if drawn is None:
            return
        params, answers, text = drawn
        # The other options are those of the least used rules.
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
    """Draw new numbers and words for which `rule_id` and at least two other rules give distinct answers."""
    for _ in range(DRAWS):
        params = problem.draw(random)
        if params is None or (problem.id, params.identity()) in seen:
            continue
        answers = find_distinct_answers(problem, params)
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
