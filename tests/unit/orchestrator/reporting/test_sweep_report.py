"""The report of a sweep, for any outcome: the conclusion first, every number, escaped values, nothing loaded."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from page import Page

from ratchet.orchestrator.reporting.report import render, write_report
from ratchet.orchestrator.reporting.sweep_data import (
    SweepReport,
    Trial,
    build_trials,
    list_rows,
    rank_trials,
)

NASTY = "</title></pre><script>alert('x')</script> \"q\" | `t` $a_1$ \x1b[31mred\x00"
RATE, TEMPERATURE, DISTILLATION = (
    "finetune.learning_rate",
    "finetune.temperature",
    "finetune.distillation",
)
RANK = "lora_rank"
SPACE = {
    RATE: "loguniform(1e-5, 1e-2)",
    TEMPERATURE: "uniform(0.01, 0.1)",
    DISTILLATION: "choice(none, kl_div, margin_mse)",
    RANK: "grid(8, 16, 32)",
}


def sample(count: int = 12) -> SweepReport:
    """A sweep in which all that can happen to a trial has happened to one."""
    draw = random.Random(7)
    trials = [Trial({}, "finished", 0.3581, (0.3623, 0.3539), (0.31, 0.34, 0.3581), seconds=612.0)]
    for number in range(2, count + 1):
        rate = 10 ** draw.uniform(-5, -2)
        word, rank = draw.choice(["none", "kl_div", "margin_mse"]), draw.choice([8, 16, 32])
        value = 0.42 - 0.03 * (math.log10(rate) + 3.2) ** 2 + 0.0005 * rank + draw.gauss(0, 0.004)
        chosen = {RATE: f"{rate:.8g}", TEMPERATURE: f"{draw.uniform(0.01, 0.1):.6f}"}
        chosen |= {DISTILLATION: word, RANK: str(rank)}
        if number % 5 == 3:
            trials.append(
                Trial(chosen, "stopped", value - 0.05, curve=(value - 0.05,), seconds=201.5)
            )
        elif number % 11 == 6:
            reason = (
                "finetune: loss is not finite at step 31; expected numbers; lower learning_rate"
            )
            trials.append(Trial(chosen, "failed", None, seconds=88.0, reason=reason))
        else:
            curve = (value - 0.06, value - 0.01, value)
            trials.append(
                Trial(
                    chosen, "finished", value, (value + 0.003, value - 0.003), curve, seconds=431.0
                )
            )
    finished = [i for i, trial in enumerate(trials, 1) if trial.status == "finished"]
    winner = max(finished, key=lambda number: trials[number - 1].value or 0)
    best = trials[winner - 1]
    return SweepReport(
        recipe="misconceptions",
        sweep_id="20250301-140200-b7c1",
        metric="map@25",
        maximize=True,
        started=1_740_837_720.0,
        seconds=5321.0,
        command="ratchet sweep misconceptions --space space.toml --trials 12 --set iterations=2",
        space=SPACE,
        fixed=["iterations=2", "questions=350"],
        trials=trials,
        conclusion=f"Trial {winner} is better than the recipe's defaults by 0.062 ± 0.006: beyond noise.",
        winner_command=f"ratchet run misconceptions --set {RATE}={best.settings.get(RATE, 1e-3)}",
        notes=["Epochs do not continue: the learning rate's schedule ends with them."],
        provenance={"ratchet": "0.1.0", "machine": "Linux x86_64, 2 CPUs, no GPU"},
    )


def read(text: str) -> str:
    """Markdown as a reader sees it, raw HTML let through as GitHub would."""
    return MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(text)


def changed(**fields) -> SweepReport:
    """The sample with the same change to every trial."""
    data = sample()
    return replace(data, trials=[replace(t, **fields) for t in data.trials])


def nasty() -> SweepReport:
    """The sample with every text replaced by one that tries to break out."""
    data = sample()
    trials = []
    for number, trial in enumerate(data.trials):
        settings = {NASTY: f"{NASTY}{number % 3}"} if trial.settings else {}
        trials.append(replace(trial, settings=settings, reason=NASTY if trial.reason else ""))
    texts = dict.fromkeys(
        ("recipe", "sweep_id", "metric", "command", "conclusion", "winner_command"), NASTY
    )
    listed = {
        "notes": [NASTY],
        "fixed": [NASTY],
        "space": {NASTY: NASTY},
        "provenance": {NASTY: NASTY},
    }
    return replace(data, trials=trials, **texts, **listed)


EDGES = {
    "sample": sample(),
    "nasty": nasty(),
    "no trials": replace(sample(), trials=[]),
    "none finished": changed(status="failed", value=None, values=(), curve=(), reason="boom"),
    "interrupted": (changed(status="unfinished", value=None, values=(), curve=())),
    "defaults alone": sample(1),
    "64 trials": sample(64),
    "equal values": changed(value=0.3, values=(0.3, 0.3), status="finished"),
    "not numbers": changed(value=math.nan, curve=(math.nan, math.inf), values=(math.nan,)),
    "loss": replace(sample(), metric="valid_loss", maximize=False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EDGES)
def test_any_sweep_makes_whole_files(tmp_path, name):
    data = EDGES[name]
    paths = write_report(tmp_path, data)
    assert [path.name for path in paths] == ["report.html", "report.md"]
    text, told = (path.read_text(encoding="utf-8") for path in paths)
    page = Page(text)
    assert not re.search(r"\b(?:nan|NaN|inf|None)\b", page.text + told)
    assert not re.search(r'(?:[dxy]|width|height|points|viewBox)="[^"]*(?:nan|inf)', text)
    # Nothing is loaded, and nothing but the page's own script can run.
    loading = {
        "src",
        "srcset",
        "href",
        "xlink:href",
        "action",
        "data",
        "poster",
        "background",
        "formaction",
    }
    for tag, attributes in page.tags:
        if tag == "use":  # a mark of a chart, defined in the same drawing
            assert attributes["xlink:href"].startswith("#")
            continue
        assert tag not in {"link", "iframe", "object", "embed", "base", "form", "img", "image"}
        assert not loading & set(attributes)
        assert not any(attribute.startswith("on") for attribute in attributes)
    bare = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert not re.search(r"https?:|url\((?!#)|@import", bare)
    assert not any(tag == "script" for tag, _ in page.tags)
    assert "alert('x')</script>" not in text
    assert "<script" not in read(told)
    assert not {"\x1b", "\x00"} & set(text + told)


def test_the_page_reads_from_the_answer_to_the_evidence():
    text = render(sample(), "html")
    order = re.findall(r"<h2>([^<]+)</h2>", text)
    assert order == ["Result", "Trials", "Curves", "Trial 6 failed", "Notes", "Reproduce"]
    page = Page(text)
    assert "9 trials finished 2 trials stopped 1 trial failed" in page.text


def test_every_number_is_in_both_files():
    data = sample()
    page, told = Page(render(data, "html")).text, re.sub(r"<[^>]+>", " ", read(render(data, "md")))
    for seen in (page, told):
        for number, trial in enumerate(data.trials, 1):
            assert f"trial {number}" in seen
            if trial.value is not None:
                assert f"{trial.value:.4f}" in seen
            assert trial.reason in seen
        for name, written in data.space.items():
            assert name in seen
            assert written in seen
        for value in data.trials[data.winner - 1].settings.values():
            assert value in seen
        for words in (
            data.conclusion,
            data.command,
            data.winner_command,
            data.sweep_id,
            *data.notes,
            *data.fixed,
        ):
            assert words in seen


def test_the_table_is_sorted_by_status_and_then_by_the_metric():
    for data in (sample(64), replace(sample(64), maximize=False)):
        rows = list_rows(data)
        statuses = [row["status"] for row in rows]
        assert statuses == sorted(
            statuses, key=["finished", "stopped", "failed", "unfinished"].index
        )
        for status in ("finished", "stopped"):
            values = [row["map@25"] for row in rows if row["status"] == status]
            assert values == sorted(values, reverse=data.maximize)
    labels = [row[""] for row in list_rows(sample())]
    assert labels[0] == f"trial {sample().winner} (winner)"
    assert "trial 1 (defaults)" in labels


def test_columns_are_what_varies_by_a_short_name():
    names = [column.name for column in build_trials(sample()).columns]
    assert names == [
        "",
        "learning_rate",
        "temperature",
        "distillation",
        "lora_rank",
        "map@25",
        "status",
        "time",
    ]
    given = [
        {"a.rate": "0.5", "b.rate": str(i), "c.rate": str(i), "b.rank": word}
        for i, word in ((1, "8"), (2, "none"))
    ]
    trials = [Trial(settings, "finished", 0.1) for settings in given]
    data = replace(sample(), space=dict.fromkeys(given[0], ""), trials=trials)
    assert list(list_rows(data)[0]) == ["", "b.rate", "c.rate", "rank", "map@25", "status", "time"]
    assert rank_trials(data) == [1, 2]


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.text(max_size=9), st.floats(), st.sampled_from(["finished", "stopped", "failed"])
        ),
        max_size=9,
    )
)
def test_any_texts_and_numbers_can_be_reported(given):
    trials = [Trial({"a": text}, status, value) for text, value, status in given]
    data = replace(sample(), space={"a": "choice()"}, trials=trials)
    assert len(list_rows(data)) == len(given)
    Page(render(data, "html"))
    render(data, "md")
