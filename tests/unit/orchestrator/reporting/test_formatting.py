"""How numbers, times and texts are shown."""

from __future__ import annotations

import math

from ratchet.orchestrator.job_interface.clean_output import clean
from ratchet.orchestrator.reporting.formatting import (
    Estimate,
    format_duration,
    format_value,
    judge_difference,
    shorten,
)


def test_texts_for_people():
    assert [format_duration(s) for s in (None, 0.42, 9.96, 59.7, 125, 3599.8, 11_040, 180_000)] == [
        "–",
        "0.42 s",
        "10 s",
        "1 m 00 s",
        "2 m 05 s",
        "1 h 00 m",
        "3 h 04 m",
        "2 d 02 h",
    ]
    assert [format_value(v) for v in (0.5, None, 0.12345, math.nan, 2e-5)] == [
        "0.5000",
        "–",
        "0.1235",
        "–",
        "2e-05",
    ]
    assert [format_value(v) for v in (True, "x", 1234567, 1234.0)] == [
        "yes",
        "x",
        "1,234,567",
        "1,234",
    ]
    assert format_value(61.0, "time") == "1 m 01 s"
    assert [
        format_value(61.0, c) == "1 m 01 s"
        for c in ("time", "train_s", "tokens_per_s", "seconds", "runtime", "times")
    ] == [True, True, False, True, False, False]
    assert shorten("iter0/finetune_embedder", 12) == "iter0…bedder"
    assert shorten("short", 12) == "short"
    assert clean("a\x1b]0;title\x07b\x1b[1;31mc\r\nd\ud800") == "abc\nd?"


def test_a_difference_is_judged_by_both_deviations() -> None:
    assert judge_difference(Estimate(0.5, 0.03), Estimate(0.54, 0.04)) == "within noise"
    assert judge_difference(Estimate(0.5, 0.03), Estimate(0.56, 0.04)) == "more than noise"
    assert judge_difference(Estimate(0.5, 0.03), Estimate(0.449, 0.04)) == "more than noise"
    assert judge_difference(0.5, Estimate(0.6, 0.01)) == ""
