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
from ratchet.orchestrator.reporting.sweep_data import SweepReport, TrialReport, build_trials, format_trials

NASTY = "</title></pre><script>alert('x')</script> \"q\" | `t` $a_1$ \x1b[31mred\x00"
RATE, TEMPERATURE, DISTILLATION = "finetune.learning_rate", "finetune.temperature", "finetune.distillation"
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
    trials = [
        TrialReport(
            {}, "finished", 0.3581, (0.3623, 0.3539), (0.31, 0.34, 0.3581), seconds=612.0, number=1, deviation=0.0042
        )
    ]
    for number in range(2, count + 1):
        rate = 10 ** draw.uniform(-5, -2)
        word, rank = draw.choice(["none", "kl_div", "margin_mse"]), draw.choice([8, 16, 32])
        value = 0.42 - 0.03 * (math.log10(rate) + 3.2) ** 2 + 0.0005 * rank + draw.gauss(0, 0.004)
        chosen = {
            RATE: f"{rate:.8g}",
            TEMPERATURE: f"{draw.uniform(0.01, 0.1):.6f}",
            DISTILLATION: word,
            RANK: str(rank),
        }
        if number % 5 == 3:
            trials.append(
                TrialReport(chosen, "stopped", value - 0.05, curve=(value - 0.05,), seconds=201.5, number=number)
            )
        elif number % 11 == 6:
            reason = "finetune: loss is not finite at step 31; expected numbers; lower learning_rate"
            trials.append(TrialReport(chosen, "failed", None, seconds=88.0, reason=reason, number=number))
        else:
            seeds = (value + 0.003, value - 0.003)
            curve = (value - 0.06, value - 0.01, value)
            about = {"seconds": 431.0 + number, "number": number, "deviation": 0.0042}
            trials.append(TrialReport(chosen, "finished", value, seeds, curve, **about))
    winner = max((t for t in trials if t.status == "finished"), key=lambda t: t.value or 0)
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
        winner=winner.number,
        default=1,
        conclusion=f"Trial {winner.number} is better than the recipe's defaults by 0.062 ± 0.006: beyond noise.",
        winner_command=f"ratchet run misconceptions --set {RATE}={winner.settings.get(RATE, 1e-3)}",
        importance={RATE: 0.71, TEMPERATURE: 0.04, DISTILLATION: 0.07, RANK: 0.18},
        notes=["Epochs do not continue: the learning rate's schedule ends with them."],
        provenance={"ratchet": "0.1.0", "machine": "Linux x86_64, 2 CPUs, no GPU"},
    )


def read(text: str) -> str:
    """Markdown as a reader sees it, raw HTML let through as GitHub would."""
    return MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(text)


def build_rows(data: SweepReport) -> dict[str, dict[str, float | str | None]]:
    """Label -> column -> value of the table of trials."""
    columns = build_trials(data).columns
    labels = columns[0].texts if columns else ()
    return {label: {c.name: c.values[i] for c in columns[1:]} for i, label in enumerate(labels)}


def changed(**fields) -> SweepReport:
    """The sample with the same change to every trial."""
    data = sample()
    return replace(data, trials=[replace(t, **fields) for t in data.trials])


def nasty() -> SweepReport:
    """The sample with every text replaced by one that tries to break out."""
    data = sample()
    trials = [
        replace(t, settings={NASTY: f"{NASTY}{t.number % 3}"} if t.settings else {}, reason=NASTY if t.reason else "")
        for t in data.trials
    ]
    texts = dict.fromkeys(("recipe", "sweep_id", "metric", "command", "conclusion", "winner_command"), NASTY)
    listed = {"notes": [NASTY], "fixed": [NASTY], "space": {NASTY: NASTY}, "provenance": {NASTY: NASTY}}
    return replace(data, trials=trials, importance={NASTY: 1.0}, **texts, **listed)


EDGES = {
    "sample": sample(),
    "nasty": nasty(),
    "no trials": replace(sample(), trials=[], winner=None, default=None, importance={}),
    "none finished": replace(
        changed(status="failed", value=None, deviation=None, values=(), curve=(), reason="boom"), winner=None
    ),
    "interrupted": replace(changed(status="unfinished", value=None, deviation=None, values=(), curve=()), winner=None),
    "one trial": replace(sample(), trials=[sample().trials[3]], winner=4, default=None),
    "defaults alone": replace(sample(1), winner=1, importance={}),
    "one setting": replace(
        sample(), space={RATE: SPACE[RATE]}, trials=[replace(t, settings={RATE: "1e-3"}) for t in sample().trials]
    ),
    "64 trials": sample(64),
    "equal values": changed(value=0.3, deviation=0.0, status="finished"),
    "not numbers": changed(value=math.nan, deviation=math.inf, curve=(math.nan, math.inf), values=(math.nan, math.inf)),
    "loss": replace(sample(), metric="valid_loss", maximize=False, winner=4),
    "long names": replace(
        sample(),
        trials=[replace(t, settings={f"{'long_' * 30}{i}": "x" * 200 for i in range(12)}) for t in sample().trials],
    ),
    "a setting called as the metric": replace(
        sample(), trials=[replace(t, settings={"a.map@25": "1", "status": str(t.number)}) for t in sample().trials]
    ),
}


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
    loading = {"src", "srcset", "href", "xlink:href", "action", "data", "poster", "background", "formaction"}
    for tag, attributes in page.tags:
        assert tag not in {"link", "iframe", "object", "embed", "base", "form", "img", "image", "use"}
        assert not loading & set(attributes)
        assert not any(attribute.startswith("on") for attribute in attributes)
    assert not re.search(r"https?:|url\(|@import", text)
    assert sum(tag == "script" for tag, _ in page.tags) == 1
    assert "alert('x')</script>" not in text
    assert "<script" not in read(told)
    assert not {"\x1b", "\x00"} & set(text + told)


def test_the_page_reads_from_the_answer_to_the_evidence():
    text = render(sample(), "html")
    order = re.findall(r"<h2>([^<]+)</h2>", text)
    assert order == ["Result", "Trials", "Important settings", "Failures", "Trial 6 failed", "Notes", "Reproduce"]
    page = Page(text)
    assert "9 trials finished 2 trials stopped 1 trial failed" in page.text


def test_every_number_is_in_both_files():
    data = sample()
    page, told = Page(render(data, "html")).text, re.sub(r"<[^>]+>", " ", read(render(data, "md")))
    for seen in (page, told):
        for trial in data.trials:
            assert f"trial {trial.number}" in seen
            if trial.value is not None:
                assert f"{trial.value:.4f}" in seen
            assert trial.reason in seen
        for name, written in data.space.items():
            assert name in seen
            assert written in seen
        for share in data.importance.values():
            assert f"{100 * share:.0f} %" in seen
        for value in data.trials[data.winner - 1].settings.values():
            assert value in seen  # in full, not as the table rounds it
        for words in (data.conclusion, data.command, data.winner_command, data.sweep_id, *data.notes, *data.fixed):
            assert words in seen
    for trial in data.trials:
        for value in trial.values:
            assert f"{value:.4f}" in page


def test_the_table_is_sorted_by_status_and_then_by_the_metric():
    for data in (sample(64), replace(sample(64), maximize=False)):
        rows = build_rows(data)
        statuses = [row["status"] for row in rows.values()]
        assert statuses == sorted(statuses, key=["finished", "stopped", "failed", "unfinished"].index)
        for status in ("finished", "stopped"):
            values = [row["map@25"] for row in rows.values() if row["status"] == status]
            assert values == sorted(values, reverse=data.maximize)
    labels = list(build_rows(sample()))
    assert labels[0] == "trial 5 (winner)"
    assert "trial 1 (defaults)" in labels
    assert list(build_rows(replace(sample(1), winner=1))) == ["trial 1 (winner) (defaults)"]


def test_columns_are_what_varies_by_the_shortest_name():
    row = build_rows(sample())["trial 5 (winner)"]
    assert list(row) == [
        "learning_rate", "temperature", "distillation", "lora_rank", "map@25", "±", "status", "time",
    ]  # fmt: skip
    assert (row["learning_rate"], row["distillation"], row["lora_rank"]) == (0.00049700537, "none", 32)
    assert format_trials(sample())["trial 5 (winner)"]["learning_rate"] == "0.000497"
    assert format_trials(sample())["trial 1 (defaults)"]["learning_rate"] == "default"
    trials = [
        TrialReport(
            {"a.x.rate": "0.5", "b.x.rate": str(i), "b.rank": word, "status": str(i)}, "finished", 0.1, number=i
        )
        for i, word in ((1, "8"), (2, "none"))
    ]
    columns = build_rows(replace(sample(), space={}, trials=trials, winner=None, default=None))["trial 2"]
    assert columns == {
        "b.x.rate": 2, "rank": "none", "status (setting)": 2, "map@25": 0.1, "status": "finished", "time": 0.0,
    }  # fmt: skip


def test_a_trial_that_was_stopped_is_never_the_best():
    data = sample()
    trials = [replace(t, value=0.9) if t.status == "stopped" else t for t in data.trials]
    told = render(replace(data, trials=trials), "md")
    assert "**0.4407**" in told
    assert "**0.9000**" not in told
    assert "<b>0.9000</b>" not in render(replace(data, trials=trials), "html")


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.text(max_size=9), st.floats(), st.sampled_from(["finished", "stopped", "failed"])), max_size=9
    )
)
def test_any_texts_and_numbers_can_be_reported(given):
    trials = [TrialReport({"a": text}, status, value, number=i) for i, (text, value, status) in enumerate(given, 1)]
    data = replace(sample(), space={"a": "choice()"}, trials=trials, default=None, winner=None)
    assert len(build_rows(data)) == len(given)
    Page(render(data, "html"))
    render(data, "md")
