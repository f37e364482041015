"""Properties of the generated questions and students' mistakes."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.errors import DataError
from ratchet.examples.misconceptions import RULES, Question, format_query, generate_questions
from ratchet.examples.misconceptions.generator import generate_worked
from ratchet.examples.misconceptions.mal_rules import MalRule


def topic(rule: MalRule) -> str:
    return rule.id.partition(".")[0]


def test_there_are_many_rules_in_many_topics_each_one_sentence_of_its_own() -> None:
    assert len(RULES) >= 60
    assert len({topic(rule) for rule in RULES}) >= 12
    assert len({rule.sentence for rule in RULES}) == len({rule.id for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.sentence.endswith(".")
        assert ". " not in rule.sentence
        assert rule.sentence[0].isupper()


def test_most_topics_have_neighbours_that_are_easily_confused() -> None:
    sizes = Counter(topic(rule) for rule in RULES)
    assert sum(size >= 4 for size in sizes.values()) >= 12


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6))
def test_every_wrong_option_is_what_its_rule_computes_and_no_other_does(seed: int) -> None:
    for question, problem, params in itertools.islice(generate_worked(seed), 150):
        correct = problem.answer(problem.correct, params)
        assert correct is not None
        assert len(question.options) == len(set(question.options)) == 4
        assert question.rules[question.correct] is None
        assert question.options[question.correct] == correct.text
        computed = {rule.id: problem.answer(rule.apply, params) for rule in problem.rules}
        for option, rule in zip(question.options, question.rules, strict=True):
            if rule is not None:
                answer = computed[rule]
                assert answer is not None
                assert answer.text == option
                same = [other for other, value in computed.items() if value is not None and value.key == answer.key]
                assert same == [rule], "another procedure gives the same answer"
                assert answer.key != correct.key


def test_every_rule_comes_up_about_equally_often() -> None:
    counts = Counter(rule for question in generate_questions(600, 1) for rule in question.rules if rule)
    assert set(counts) == {rule.id for rule in RULES}
    assert max(counts.values()) <= 2 * min(counts.values())


@pytest.mark.slow
def test_no_two_questions_are_the_same_and_a_seed_gives_the_same_ones() -> None:
    made = generate_questions(1000, 7)
    assert len({question.text for question in made}) == len(made)
    assert made == generate_questions(1000, 7)
    assert {question.text for question in made} != {question.text for question in generate_questions(1000, 8)}


def test_the_wording_varies() -> None:
    texts: dict[str, set[str]] = {}
    for question in generate_questions(800, 3):
        words = "".join(letter for letter in question.text if letter.isalpha() or letter == " ")
        texts.setdefault(question.construct, set()).add(words[:12])
    assert sum(len(starts) >= 3 for starts in texts.values()) >= len(texts) * 0.8


def test_a_query_reads_like_eedis() -> None:
    question = Question("q", "Add", "What is 1 + 1?", ("2", "1", "3", "11"), 0, (None, "a", "b", "c"))
    assert format_query(question, 3) == "Question: What is 1 + 1?\nHint: Add\nCorrect answer: 2\nWrong answer: 11"


def test_a_count_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(DataError, match="asked for"):
        generate_questions(-1, 1)
