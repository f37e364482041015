"""Generator of multiple-choice questions whose wrong options are computed by wrong procedures (mal-rules).

Guaranteed by construction:
- Each wrong option is the answer of exactly one procedure of its problem. Numbers for which two procedures agree, or
  one gives the correct answer, are drawn again.
- No question is repeated, neither its text nor its numbers with other words. Splits share no question.
- Every procedure is used about equally often.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from random import Random

from benchmarks.misconceptions import algebra, arithmetic, geometry, proportion
from benchmarks.misconceptions.mal_rules import Answer, MalRule, Params, Problem
from ratchet.data.formats import eedi
from ratchet.errors import DataError

PROBLEMS = (*proportion.PROBLEMS, *arithmetic.PROBLEMS, *algebra.PROBLEMS, *geometry.PROBLEMS)
"""All problem templates."""

RULES: tuple[MalRule, ...] = tuple(
    {rule.id: rule for problem in PROBLEMS for rule in problem.rules}.values()
)
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
    construct: str
    text: str
    options: tuple[str, ...]
    correct: int
    """Index into `options`."""
    rules: tuple[str | None, ...]
    """For each option, the id of the mal-rule that computes it; None for the correct option."""


def generate_questions(count: int, seed: int) -> list[Question]:
    """Generate `count` distinct questions. Deterministic by seed; a longer list begins with the shorter one.

    Generate one list and split it: lists of two seeds may share questions. Raises DataError if there are fewer than
    `count` distinct ones.
    """
    if count < 0:
        raise DataError(f"questions: {count} asked for; expected >= 0; give another number")
    found = [question for question, _, _ in itertools.islice(generate_worked(seed), count)]
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
        raise DataError(
            f"question {question.id}: option {option} was given; expected a wrong one; give one of {wrong}"
        )
    correct, wrong_answer = question.options[question.correct], question.options[option]
    return eedi.format_query(question.text, question.construct, correct, wrong_answer)


def find_distinct_answers(problem: Problem, params: Params) -> dict[str, Answer]:
    """Find the wrong answers that identify their mal-rule: rule id -> answer, in the order of the problem's rules.

    Answers that equal the correct one or that of another rule, in value or as written, are left out.
    """
    correct = problem.answer(problem.correct, params)
    assert correct is not None
    answers = {
        rule.id: answer for rule in problem.rules if (answer := problem.answer(rule.apply, params))
    }
    keys = Counter([correct.key, *(answer.key for answer in answers.values())])
    texts = Counter([correct.text, *(answer.text for answer in answers.values())])
    return {
        rule: answer
        for rule, answer in answers.items()
        if keys[answer.key] == 1 and texts[answer.text] == 1
    }


def generate_worked(seed: int) -> Iterator[tuple[Question, Problem, Params]]:
    """Yield (question, problem, numbers), each for the least used rule, until a problem has no new question. Every
    option can be computed again from problem and numbers."""
    random = Random(f"mistakes {seed}")
    problems_of: dict[str, list[Problem]] = {}
    for problem in PROBLEMS:
        for rule in problem.rules:
            problems_of.setdefault(rule.id, []).append(problem)
    used = dict.fromkeys(problems_of, 0)
    seen: set[Hashable] = set()
    for number in itertools.count():
        rule_id = min(used, key=lambda rule: (used[rule], random.random()))
        problem = random.choice(problems_of[rule_id])
        drawn = _draw(problem, rule_id, random, seen)
        if drawn is None:
            return
        params, answers, text = drawn
        # The other options are those of the least used rules.
        others = sorted(
            (rule for rule in answers if rule != rule_id),
            key=lambda rule: (used[rule], random.random()),
        )
        chosen = [rule_id, *others[: WRONG - 1]]
        for chosen_id in chosen:
            used[chosen_id] += 1
        options = [
            (None, problem.answer(problem.correct, params)),
            *((rule, answers[rule]) for rule in chosen),
        ]
        random.shuffle(options)
        rules = tuple(rule for rule, _ in options)
        texts = tuple(answer.text for _, answer in options if answer)
        name = f"mistakes-{seed}-{number:06d}"
        yield (
            Question(name, problem.construct, text, texts, rules.index(None), rules),
            problem,
            params,
        )


def _draw(
    problem: Problem, rule_id: str, random: Random, seen: set[Hashable]
) -> tuple[Params, dict[str, Answer], str] | None:
    """Draw new numbers and words for which `rule_id` and at least two other rules give distinct answers."""
    for _ in range(DRAWS):
        params = problem.draw(random)
        if params is None or (problem.construct, params.identity()) in seen:
            continue
        answers = find_distinct_answers(problem, params)
        if rule_id not in answers or len(answers) < WRONG:
            continue
        name, other = random.sample(NAMES, 2)
        words = {slot: random.choice(choices) for slot, choices in problem.words.items()}
        text = random.choice(problem.phrasings).format(
            **vars(params), **words, name=name, other=other
        )
        if text.casefold() in seen:
            continue
        seen.add((problem.construct, params.identity()))
        seen.add(text.casefold())
        return params, answers, text
    return None
