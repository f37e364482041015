"""Tasks: reading, prompts and verifiers, compared with the official definitions and with brute force."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from fractions import Fraction
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from public_data import FOLDER, needs_public_data

from ratchet.data.tasks import TASKS, get_task, gsm8k, squad
from ratchet.data.tasks.answers import count_failures, find_collapses, pass_at_k
from ratchet.data.tasks.countdown import classify, extract_answer
from ratchet.data.tasks.expressions import BadExpression, parse
from ratchet.data.tasks.solver import find_reachable, generate_tasks, solve
from ratchet.data.tasks.task import Sample, row_to_sample, sample_to_row, verify_samples
from ratchet.errors import DataError


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 12))
def test_pass_at_k_is_the_share_of_draws_with_a_correct_one(right: int, wrong: int, k: int) -> None:
    from itertools import combinations

    samples = [True] * right + [False] * wrong
    assume(k <= len(samples))
    draws = list(combinations(samples, k)) if len(samples) <= 12 else None
    if draws is not None:
        expected = Fraction(sum(any(draw) for draw in draws), len(draws))
        assert pass_at_k(len(samples), right, k) == pytest.approx(float(expected), abs=1e-12)


def test_failures_of_unsolved_questions() -> None:
    given_ = [
        ["wrong", "empty"],
        ["correct", "empty"],
        ["empty", "correct"],
        ["empty", "wrong"],
        ["wrong"],
    ]
    assert count_failures(given_) == Counter({"wrong": 2, "empty": 1})


def test_a_collapse_is_a_fall_that_chance_does_not_explain() -> None:
    assert find_collapses([0.126, 0.604, 0.58, 0.262], 1000) == [3]
    assert find_collapses([0.5, 0.45], 20) == []  # of so few rows, chance
    assert find_collapses([0.5, 0.49], 10**6) == []  # certain, and small
    assert find_collapses([], 10) == find_collapses([0.0, 0.0], 10) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(1 + 2) / 3", 1),
        (" 8/(3 - 8/3) ", 24),
        ("-3 + +5", 2),
        ("1/3*3", 1),
        ("2\n* 3", 6),
        ("((((7))))", 7),
    ],
)
def test_arithmetic_is_exact(text: str, value: int) -> None:
    assert parse(text)[0] == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 +",
        "2 ** 3",
        "7 // 2",
        "1 / 0",
        "1 / (2 - 2)",
        "x",
        "__import__('os')",
        "1; 2",
        "1, 2",
        "()",
        "3(4)",
        "007",
        "1_000",
        "1.5",
        "1e9",
        "0x10",
        "٣ + ٤",
        "²",
        "１",
        "1 == 1",
        "(1",
        "1)",
        "(" * 101 + "1" + ")" * 101,
        "1+" * 100 + "1",
        "- " * 99 + "\x00",
        "# 1",
        "1 # 2",
        "1 if 1 else 2",
    ],
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(BadExpression):
        parse(text)


@pytest.mark.slow
@settings(deadline=None, max_examples=400)
@given(
    st.text(st.sampled_from("0123456789+-*/() =<>answer/\n٣²x."), max_size=230)
    | st.text(max_size=300)
)
def test_no_text_breaks_the_verifiers(text: str) -> None:
    allowed = {"correct", *TASKS["countdown"].failures}
    assert classify([1, 2], 3, f"<answer>{text}</answer>") in allowed
    assert classify([1, 2], 3, text) in allowed
    assert gsm8k.TASK.verify({"answer": "3"}, [f"#### {text}"])[0].label in {
        "correct",
        *gsm8k.FAILURES,
    }
    assert gsm8k.BOXED.verify({"answer": "3"}, ["\\boxed{" + text + "}"])[0].label in {
        "correct",
        *gsm8k.FAILURES,
    }
    assert squad.verify({"answers": [["a"]]}, [text])[0].label in {"correct", *squad.FAILURES}


def test_long_outputs_are_verified_in_time() -> None:
    for text in (
        "<answer>" * 100_000,
        "</answer>" * 100_000,
        "(" * 10**6,
        "#### " * 10**5,
        "\\boxed{" * 10**5,
        "1," * 10**6,
    ):
        assert classify([1], 1, text) == "missing_answer_tags" or "answer" in text
        gsm8k.TASK.verify({"answer": "3"}, [text])
        gsm8k.BOXED.verify({"answer": "3"}, [text])
        squad.verify({"answers": [["a"]]}, [text])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("<answer>(2 + 3) * 4 = 20</answer>", "correct"),
        ("<think>no</think><answer>(2 + 3) * 4</answer> and more", "correct"),
        ("(2 + 3) * 4 = 20", "missing_answer_tags"),
        ("<answer>(2 + 3) * 4", "missing_answer_tags"),
        ("</answer><answer>", "missing_answer_tags"),
        ("", "missing_answer_tags"),
        ("<answer>two plus three = 20</answer>", "lhs_parse_or_eval_error"),
        ("<answer>4 / (3 - 3) = x</answer>", "lhs_parse_or_eval_error"),
        ("<answer>= 20</answer>", "lhs_parse_or_eval_error"),
        ("<answer>(2 + 3) * 4 = twenty</answer>", "rhs_parse_or_eval_error"),
        ("<answer>(2 + 3) * 4 = 20 = 20</answer>", "lhs_parse_or_eval_error"),
        ("<answer>2 * 10 = twenty</answer>", "invalid_number_usage"),
        ("<answer>(2 + 3) × 4 = 20</answer>", "correct"),
        ("<answer>(2 + 3) * 4 =</answer>", "correct"),
        ("<answer> </answer>", "missing_answer_tags"),
        ("<answer>(2 + 3) * 4 = 21</answer>", "equation_not_balanced"),
        ("<answer>2 * 10 = 20</answer>", "invalid_number_usage"),
        ("<answer>2 * 10 = 21</answer>", "invalid_number_usage"),
        ("<answer>(2 + 3) * 4 * 4 / 4 = 20</answer>", "invalid_number_usage"),
        ("<answer>20</answer>", "invalid_number_usage"),
        ("<answer>2 + 3 * 4 = 14</answer>", "wrong_value"),
        ("<answer>1</answer><answer>(2+3)*4=20</answer>", "correct"),
        ("<answer>x <answer>(2+3)*4</answer></answer>", "lhs_parse_or_eval_error"),
    ],
)
def test_the_first_failure_is_the_label(text: str, name: str) -> None:
    assert classify([4, 2, 3], 20, text) == name


def test_the_last_complete_answer_counts() -> None:
    assert extract_answer("<answer>1</answer> <answer>2") == "1"
    assert extract_answer("<answer>1</answer> <answer>2</answer>") == "2"


def brute(numbers: tuple[int, ...]) -> set[int]:
    """All whole values from 0, by trying every order, every operation and every way of putting parentheses."""
    reached: set[Fraction] = set()

    def combine(values: list[Fraction]) -> set[Fraction]:
        if len(values) == 1:
            return {values[0]}
        found: set[Fraction] = set()
        for cut in range(1, len(values)):
            for a, b in product(combine(values[:cut]), combine(values[cut:])):
                found |= {a + b, a - b, a * b} | ({a / b} if b else set())
        return found

    for order in set(permutations(numbers)):
        reached |= combine([Fraction(n) for n in order])
    return {int(value) for value in reached if value.denominator == 1 and value >= 0}


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, 13), min_size=1, max_size=3)
    | st.lists(st.integers(1, 9), min_size=4, max_size=4)
)
def test_the_solver_reaches_what_can_be_reached(numbers: list[int]) -> None:
    own = tuple(sorted(numbers))
    found = find_reachable(own, fractions=True)
    assert set(found) == brute(own)
    assert set(find_reachable(own)) <= set(found)
    for value, text in [*found.items(), *find_reachable(own).items()]:
        total, used, _ = parse(text)
        assert total == value
        assert sorted(used) == list(own)
    assert (
        classify(numbers, max(found), f"<answer>{solve(numbers, max(found))}</answer>") == "correct"
    )


def test_solutions_with_and_without_fractions() -> None:
    assert parse(solve((3, 3, 8, 8), 24) or "0")[0] == 24
    assert solve((1, 1), 5) is None
    assert parse("26 * (88 / 44)")[2] == ["88 / 44 = 2", "26 * 2 = 52"]


@pytest.mark.slow
def test_generated_tasks_are_different_and_solved() -> None:
    made = generate_tasks(300, (3, 4), 30, (10, 50), seed=5)
    assert len({(tuple(sorted(numbers)), target) for numbers, target, _ in made}) == 300
    assert {len(numbers) for numbers, _, _ in made} == {3, 4}
    for numbers, target, text in made:
        assert 10 <= target <= 50
        assert classify(numbers, target, f"<answer>{text} = {target}</answer>") == "correct"
    assert generate_tasks(20, (3,), 30, (10, 50), seed=5) == generate_tasks(
        20, (3,), 30, (10, 50), seed=5
    )
    with pytest.raises(ValueError, match="1000 tasks asked for"):
        generate_tasks(1000, (1,), 3, (1, 3), seed=0)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("so\n#### 72", "correct"),
        ("#### $72.00", "correct"),
        ("#### 1\n#### 72", "correct"),
        ("#### 72 apples", "correct"),
        ("#### 72 fractions", "correct"),
        ("72", "missing_answer"),
        ("\\boxed{72}", "missing_answer"),
        ("#### none", "not_a_number"),
        ("#### 7.2", "wrong_value"),
        ("#### .72", "wrong_value"),
    ],
)
def test_gsm8k_answers(text: str, name: str) -> None:
    assert gsm8k.TASK.verify({"answer": "72"}, [text])[0].label == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("\\boxed{72}", "correct"),
        ("\\boxed{1} \\boxed{\\$1,072}", "wrong_value"),
        ("\\boxed{\\text{72}}", "correct"),
        ("#### 72", "missing_answer"),
        ("\\boxed{72", "missing_answer"),
        ("\\boxed{}", "not_a_number"),
        ("\\boxed{\\frac{72}{2}}", "wrong_value"),
    ],
)
def test_boxed_answers(text: str, name: str) -> None:
    assert gsm8k.BOXED.verify({"answer": "72"}, [text])[0].label == name


def official_normalize(text: str) -> str:
    """The steps of the official evaluation, written as its description has them: lower case, then punctuation away,
    then articles, then spaces."""
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


@given(
    st.text(st.sampled_from("the an aA.,'-x yZ\t1"), max_size=25),
    st.text(st.sampled_from("the a.x yZ1"), max_size=25),
)
def test_squad_scores_are_the_official_ones(prediction: str, gold: str) -> None:
    found = squad.score(prediction, [gold, "qqq"])  # the second is never said
    a, b = official_normalize(prediction), official_normalize(gold)
    assert found["em"] == float(a == b)
    same = sum((Counter(a.split()) & Counter(b.split())).values())
    expected = 2 * same / (len(a.split()) + len(b.split())) if same else 0.0
    assert found["f1"] == pytest.approx(expected)
    assert found["lenient"] == float(a == b or bool(a and b and (a in b or b in a)))


def test_several_golds_the_best_counts() -> None:
    found = squad.score("The Broncos!", ["Denver Broncos", "broncos"])
    assert found == {"em": 1.0, "f1": 1.0, "lenient": 1.0}
    (verified,) = squad.verify({"answers": [["Denver Broncos"]]}, ["Broncos won"])
    assert (verified.label, verified.scores["f1"], verified.scores["lenient"]) == (
        "partial",
        0.5,
        0.0,
    )


def write(path: Path, rows: Any) -> Path:
    path.write_text(
        rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows)
    )
    return path


def qas(answers: Any) -> str:
    asked = [{"id": "q", "question": "Who?", "answers": answers}]
    return json.dumps({"data": [{"paragraphs": [{"context": "He did.", "qas": asked}]}]})


@pytest.mark.parametrize(
    ("task", "content", "said"),
    [
        ("gsm8k", [{"question": "1+1?", "answer": "2"}], r":1: answer '2'; expected"),
        ("gsm8k", [{"question": "1+1?"}], r":1: no field 'answer'"),
        ("gsm8k", "{x", r":1: not JSON"),
        ("countdown", [{"nums": [1, 2]}], r":1: no field 'target'"),
        ("countdown", [{"nums": [1, -2], "target": 3}], r":1: nums is \[1, -2\]"),
        ("countdown", [{"nums": [1, 2], "target": 99}], r":1: 99 cannot be reached"),
        ("countdown", [{"nums": [1, 2], "target": 3, "solution": "2 ** 1"}], r":1: the solution"),
        (
            "countdown",
            [{"nums": [1, 2], "target": 4, "solution": "1 + 2"}],
            r":1: the verifier of countdown returns",
        ),
        ("squad-batch", qas([]), r"paragraphs\[0\].qas\[0\]: question 'Who\?' with answers \[\]"),
        ("squad-batch", qas([{"text": " "}]), r"qas\[0\]: question 'Who\?' with answers \[' '\]"),
        ("squad-batch", "[]", "other values given than objects; expected the official JSON"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, task: str, content: Any, said: str) -> None:
    path = write(tmp_path / "given.jsonl", content)
    with pytest.raises(DataError, match=said):
        list(verify_samples(get_task(task), get_task(task).read(path)))


def test_other_files_and_tasks_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected one of countdown"):
        get_task("count")
    for name in ("nothing.jsonl", "nothing.parquet"):
        with pytest.raises(DataError, match="no such file"):
            list(TASKS["countdown"].read(tmp_path / name))
    write(tmp_path / "text.parquet", "x")
    with pytest.raises(DataError, match="cannot be read"):
        list(TASKS["countdown"].read(tmp_path / "text.parquet"))


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=3), st.text())
def test_rows_keep_samples(turns: list[tuple[str, str]], system: str) -> None:
    sample = Sample("1", "g", system, tuple(turns), {"answers": [["ä"]]})
    assert row_to_sample(sample_to_row(sample)) == sample


@needs_public_data
@pytest.mark.parametrize(
    ("task", "file", "count"),
    [
        ("gsm8k", "gsm8k/test.jsonl", 1319),
        ("gsm8k-boxed", "gsm8k/test.jsonl", 1319),
        ("countdown", "countdown/test.jsonl", 1024),
        ("countdown", "countdown/uft_test.parquet", 1024),
        ("squad-sequential", "squad/dev-v1.1-36-articles.json", 1597),
        ("squad-batch", "squad/dev-v1.1-36-articles.json", 7673),
    ],
)
def test_the_verifier_accepts_all_real_targets(task: str, file: str, count: int) -> None:
    assert (
        sum(1 for _ in verify_samples(get_task(task), get_task(task).read(FOLDER / file))) == count
    )
