"""Final answers that are one number, in the forms that people and models write, and texts that are not."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.data.tasks import gsm8k, read_samples
from ratchet.data.tasks.gsm8k import format_number, parse_number
from ratchet.errors import DataError
from ratchet.jobs.on_policy.grpo_training import compute_reward

FORMS: dict[int | str, list[str]] = {
    18: [
        *(
            "18",
            " 18 ",
            "18.",
            "18,",
            "+18",
            "18.0",
            "18.00",
            "18!",
            "(18)",
            "`18`",
            "**18**",
            "*18*",
            "__18__",
        ),
        *(
            "$18",
            "\\$18",
            "$18$",
            "\\(18\\)",
            "€18",
            "18 €",
            "18€",
            "US$18",
            "$ 18",
            "18 dollars",
            "$18 per day",
            "$18/day",
        ),
        *(
            "18 eggs",
            "18 Eggs.",
            "18eggs",
            "18 kg",
            "18m",
            "18 m²",
            "18 km/h",
            "18%",
            "18\\%",
            "18 percent",
            "18°",
        ),
        *(
            "18^\\circ",
            "\\text{18}",
            "18 \\text{ eggs}",
            "18\\,\\text{kg}",
            "\\mathbf{18}",
            "\\boxed{18}",
            "36/2",
            "\\frac{36}{2}",
        ),
        *(
            "x = 18",
            "x=18",
            "x = $18",
            "Total cost = $18",
            "The answer is 18.",
            "Answer: 18",
            "Final answer: **$18**.",
        ),
        *(
            "So Janet makes $18 every day at the farmer\u2019s market.",
            "18 (eighteen)",
            "18 more apples than Tom",
            "18-day",
            "18th",
            "18 Ks",
        ),
    ],
    -5: [
        *(
            "-5",
            "- 5",
            "\u22125",
            "\u2212 5",
            "\u20135",
            "-$5",
            "$-5",
            "- $5",
            "\u2212$5",
            "-5 degrees",
            "x = -5",
            "x=-5",
            "= - 5",
        ),
        *("The temperature is -5 degrees.", "-10/2", "-\\frac{10}{2}"),
    ],
    1000: ["1000", "1,000", "1{,}000", "1,\\!000", "1\\,000", "$1,000.00", "1,000 m"],
    1234567: ["1,234,567", "1{,}234{,}567", "1\\,234\\,567"],
    "1/2": [
        "1/2",
        "0.5",
        ".5",
        "1 / 2",
        "\\frac{1}{2}",
        "\\dfrac{1}{2}",
        "1/2 cup",
        "$\\tfrac{1}{2}$",
        "50/100",
    ],
    "5/2": ["2.5", "5/2", "$2.50", "2.500"],
}
NO_NUMBERS = [
    *("", "none", "eighteen", "x", "\u0663", "1" * 25, "1/0", "18 " * 200),
    *("3 1/2", "3\\frac{1}{2}", "3\\frac12", "1/2/3", "1/3 of 9"),
    *("1e3", "1.5e6", "10^3", "2^{10}", "10^{-1}", "5x^2", "2\\sqrt{3}"),
    *("1.5 million", "5-million", "3 dozen", "10k", "5K", "5M", "2 Million", "3 hundred"),
    *("12 500", "1 000", "12,5", "1,0000", "12,34,567", "1.234,50", "1.234,50 \u20ac", "1..5"),
    *(
        "2 + 10 = 12",
        "2x5",
        "2*5",
        "5 * 4",
        "3 \\times 4",
        "5 = x + 2",
        "5(3)",
        "20-5",
        "5-3",
        "3\u20135",
    ),
    *("10:30", "3:30", "7 or 8", "4 apples and 5 pears", "20 to 30"),
    *("3\u00bd", "20 and a half", "half of 20", "5 squared", "minus 5", "negative 5", "not 20"),
]


@pytest.mark.parametrize(
    ("value", "text"), [(value, text) for value, texts in FORMS.items() for text in texts]
)
def test_one_number_is_read_as_a_person_would(value: Any, text: str) -> None:
    assert parse_number(text) == Fraction(value)
    gold = {"answer": format_number(Fraction(value))}
    assert gsm8k.TASK.verify(gold, [f"So.\n#### {text}\nEnd"])[0].label == "correct"
    assert gsm8k.BOXED.verify(gold, [f"So \\boxed{{{text}}}."])[0].label == "correct"


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_anything_else_is_no_number(text: str, tmp_path: Path) -> None:
    """Neither a gold answer nor a model's, nor worth a reward."""
    assert parse_number(text) is None
    file = tmp_path / "x.jsonl"
    rows = [{"question": "How much?", "answer": f"So\n#### {end}"} for end in ("1", text)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"x.jsonl:2: answer .*; expected .* ends in one number"):
        list(read_samples(gsm8k.TASK, file))
    file.write_text(json.dumps(rows[0]) + "\n")
    (sample,) = read_samples(gsm8k.TASK, file)
    assert compute_reward(gsm8k.TASK, sample, sample.turns[0][1]) == 1
    assert compute_reward(gsm8k.TASK, sample, f"#### {text}") == 0


@pytest.mark.slow
@given(
    st.fractions()
    | st.decimals(-1000, 1000, allow_nan=False).map(Fraction)
    | st.integers().map(Fraction)
)
def test_numbers_are_written_exactly(value: Fraction) -> None:
    text = format_number(value)
    assert Fraction(text) == value
    assert "/" not in text or value.denominator not in (1, 2, 4, 5, 10, 100)


@pytest.mark.parametrize(
    ("number", "written"),
    [
        *(
            ("1,000", "1000"),
            ("$2.50", "2.5"),
            ("-.125", "-0.125"),
            ("42.0", "42"),
            ("0.0000001", "0.0000001"),
        ),
        *(
            ("1/2", "0.5"),
            ("1/3", "1/3"),
            ("\u22125", "-5"),
            ("30%", "30"),
            ("18 eggs", "18"),
            ("**20**", "20"),
        ),
    ],
)
def test_targets_of_gsm8k_have_the_number_of_the_data(
    number: str, written: str, tmp_path: Path
) -> None:
    (tmp_path / "x.jsonl").write_text(
        json.dumps({"question": "How much?", "answer": f"So\n#### {number}"}) + "\n"
    )
    for task, ending in ((gsm8k.TASK, f"#### {written}"), (gsm8k.BOXED, f"\\boxed{{{written}}}")):
        (sample,) = read_samples(task, tmp_path / "x.jsonl")
        assert sample.turns[0][1].endswith(ending)
        assert task.verify(sample.gold, [f"The same: {ending}"])[0].label == "correct"


def test_calculator_annotations_are_kept_in_one_task(tmp_path: Path) -> None:
    solution = "She sells 16 - 7 = <<16-7=9>>9 eggs.\n9 * 2 = $<<9*2=18>>18.\n"
    file = tmp_path / "x.jsonl"
    file.write_text(json.dumps({"question": "How much?", "answer": f"{solution}#### 18"}) + "\n")
    (plain,) = read_samples(gsm8k.TASK, file)
    (annotated,) = read_samples(gsm8k.ANNOTATED, file)
    assert annotated.turns == ((plain.turns[0][0], f"{solution}#### 18"),)
    assert plain.turns[0][1] == "She sells 16 - 7 = 9 eggs.\n9 * 2 = $18.\n#### 18"
