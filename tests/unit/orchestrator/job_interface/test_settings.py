"""Settings: texts become typed values, bounds hold, and help and JSON Schema follow from the fields."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Gt, Interval
from hypothesis import given
from hypothesis import strategies as st

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import Unit
from ratchet.orchestrator.job_interface.settings import (
    convert,
    describe_settings,
    suggest,
    validate,
)
from ratchet.orchestrator.recipe.single_job import list_jobs


@dataclass(frozen=True)
class Config:
    lr: Annotated[float, Gt(0)]
    """Peak learning rate."""
    window: tuple[int, int] = (2, 200)
    ks: tuple[Annotated[int, Ge(1)], ...] = (1, 5)
    order: Literal["random", "top"] = "random"
    max_length: Annotated[int, Ge(4), Unit("tokens")] | None = None
    """Longer texts are truncated."""
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    symmetric: bool = False
    name: str = ""


@given(st.integers())
def test_integers_survive_text(value: int) -> None:
    assert convert(str(value), int, "x") == value
    assert convert(str(value), int | None, "x") == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_survive_text(value: float) -> None:
    assert convert(repr(value), float, "x") == value
    assert convert(repr(value), float | None, "x") == value


@given(st.lists(st.integers()))
def test_tuples_survive_text(values: list[int]) -> None:
    assert convert(",".join(map(str, values)), tuple[int, ...], "x") == tuple(values)
    assert convert(str(tuple(values)), tuple[int, ...], "x") == tuple(values)


@given(st.text())
def test_strings_stay_as_they_are(value: str) -> None:
    assert convert(value, str, "x") == value


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("true", bool, True),
        ("Off", bool, False),
        ("none", float | None, None),
        ("none", str | None, None),
        ("2, 200", tuple[int, int], (2, 200)),
        ("1e-4,x", tuple[float, str], (1e-4, "x")),
        ("[END], base (1)", tuple[str, ...], ("[END]", "base (1)")),
        ("[]", tuple[str, ...], ()),
        ("top", Literal["sample", "top"], "top"),
        ("top", Literal["sample", "top"] | None, "top"),
        ("16_384", int, 16_384),
        ("16", Annotated[int, Ge(4)] | None, 16),
    ],
)
def test_texts_become_typed_values(text: str, annotation: Any, value: Any) -> None:
    converted = convert(text, annotation, "x")
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(
    ("text", "annotation", "message"),
    [
        ("1.5", int, "x: '1.5' given; expected a valid integer"),
        ("", int, "x: '' given; expected a valid integer"),
        ("fast", float, "x: 'fast' given; expected a valid number"),
        ("nan", float, "expected a finite number"),
        ("1e999", float, "expected a finite number"),
        ("maybe", bool, "x: 'maybe' given; expected a valid boolean"),
        ("2,200,3", tuple[int, int], "Tuple should have at most 2 items"),
        ("2,x", tuple[int, int], "expected a valid integer"),
        ("tpo", Literal["sample", "top"], "expected one of sample, top; did you mean 'top'?"),
        ("fast", float | None, "x: 'fast' given; expected a valid number"),
        ("3", Annotated[int, Ge(4)] | None, "x: '3' given; expected >= 4"),
        ("1", Annotated[float, Interval(ge=0, lt=1)], "x: '1' given; expected < 1"),
    ],
)
def test_errors_say_what_was_expected(text: str, annotation: Any, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        convert(text, annotation, "x")


def test_integers_become_floats_where_the_field_is_one() -> None:
    config = validate(Config, {"lr": 1, "ks": (1, 10), "max_length": 16}, "job")
    assert config == Config(lr=1.0, ks=(1, 10), max_length=16)
    assert type(config.lr) is float


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr": "high"}, "job.lr: 'high' given; expected a valid number"),
        ({"lr": 0.0}, r"job.lr: 0.0 given; expected > 0"),
        ({"lr": float("inf")}, "job.lr: inf given; expected a finite number"),
        (
            {"lr": 1, "order": "tpo"},
            "job.order: 'tpo' given; expected one of random, top; did you mean 'top'?",
        ),
        ({"lr": 1, "ks": (1, 0)}, r"job.ks: \(1, 0\) given; expected >= 1"),
        ({}, "job.lr: not given; expected a value"),
    ],
)
def test_errors_name_the_setting(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        validate(Config, values, "job")


def test_help_follows_from_the_fields() -> None:
    described = {setting.name: setting for setting in describe_settings(Config)}
    assert described["lr"].type == "float > 0"
    assert described["lr"].default == ""
    assert described["lr"].help == "Peak learning rate."
    assert described["max_length"].type == "int >= 4 (tokens) | none"
    assert described["window"].default == "2,200"
    assert described["dropout"].type == "float >= 0 < 1"


@pytest.mark.parametrize("verb", sorted(list_jobs()))
def test_every_setting_of_every_job_is_described(verb: str) -> None:
    job = importlib.import_module(list_jobs()[verb]).JOB
    assert job.name == verb
    assert all(setting.help for setting in describe_settings(job.config))


def test_a_far_name_suggests_nothing() -> None:
    assert suggest("zzz", ["window", "margin"]) == ""
