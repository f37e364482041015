"""Texts into typed values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.values import coerce, nearest, parse


@dataclass(frozen=True)
class Config:
    lr: float
    window: tuple[int, int] = (2, 200)
    ks: tuple[int, ...] = (1, 5)
    order: Literal["sample", "top"] = "sample"
    margin: float | None = None
    symmetric: bool = False
    name: str = ""


@given(st.integers())
def test_whole_numbers_come_back(value: int) -> None:
    assert parse(str(value), int) == value
    assert parse(str(value), int | None) == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_come_back(value: float) -> None:
    assert parse(repr(value), float) == value
    assert parse(repr(value), float | None) == value


@given(st.lists(st.integers()))
def test_tuples_come_back(values: list[int]) -> None:
    assert parse(",".join(map(str, values)), tuple[int, ...]) == tuple(values)
    assert parse(str(tuple(values)), tuple[int, ...]) == tuple(values)


@given(st.text())
def test_texts_stay(value: str) -> None:
    assert parse(value, str) == value


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("true", bool, True),
        ("Off", bool, False),
        ("none", float | None, None),
        ("none", str | None, None),
        ("0.5", float | str, 0.5),
        ("2, 200", tuple[int, int], (2, 200)),
        ("1e-4,x", tuple[float, str], (1e-4, "x")),
        ("top", Literal["sample", "top"], "top"),
        ("top", Literal["sample", "top"] | None, "top"),
        ("16_384", int, 16_384),
    ],
)
def test_what_texts_mean(text: str, annotation: Any, value: Any) -> None:
    parsed = parse(text, annotation)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "annotation", "said"),
    [
        ("1.5", int, "'1.5' given; expected a whole number"),
        ("", int, "'' given; expected a whole number"),
        ("fast", float, "'fast' given; expected a number"),
        ("nan", float, "expected a number that is finite"),
        ("1e999", float, "expected a number that is finite"),
        ("maybe", bool, "'maybe' given; expected true or false"),
        ("2,200,3", tuple[int, int], "expected 2 values separated by commas"),
        ("2,x", tuple[int, int], "'x' given; expected a whole number"),
        ("tpo", Literal["sample", "top"], "expected one of sample, top; did you mean 'top'?"),
        ("fast", float | None, "'fast' given; expected a number"),
    ],
)
def test_what_was_expected_is_said(text: str, annotation: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("?", r"\?")):
        parse(text, annotation)


def test_a_config_from_texts_and_values() -> None:
    config = coerce(Config, {"lr": "2e-4", "window": (1, 40), "ks": "1,10", "margin": "0.1", "symmetric": "yes"})
    assert config == Config(lr=2e-4, window=(1, 40), ks=(1, 10), margin=0.1, symmetric=True)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"lr": "1", "windwo": "1,2"}, "'windwo' given; expected one of .*; did you mean 'window'?"),
        ({"lr": "high"}, "lr: 'high' given; expected a number"),
        ({}, "lr: not given; expected a value"),
    ],
)
def test_what_is_wrong_with_a_config_is_said(values: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("?", r"\?")):
        coerce(Config, values)


def test_nothing_near_suggests_nothing() -> None:
    assert nearest("zzz", ["window", "margin"]) == ""
