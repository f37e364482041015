"""The live view: its lines on terminals and in logs."""

from __future__ import annotations

import io
import re
import threading
from typing import Any

import pytest

from ratchet.orchestrator.execution import live_view
from ratchet.orchestrator.execution.live_view import LiveView
from ratchet.orchestrator.job_interface import Progress
from ratchet.orchestrator.job_interface.clean_output import CleanConsole


def make_view(total: int, *, terminal: bool = False) -> tuple[LiveView, io.StringIO]:
    file = io.StringIO()
    file.isatty = lambda: terminal  # type: ignore[method-assign]
    console = CleanConsole(
        file=file, highlight=False, width=100, height=24, force_terminal=terminal
    )
    return LiveView(total, "recipe", "run-1", console=console), file


def event(kind: str, step: str, **details: Any) -> dict[str, Any]:
    return {"event": kind, "step": step, **details}


def read_lines(file: io.StringIO) -> list[str]:
    """The lines without the time that starts each of them."""
    return [re.sub(r"^\d\d:\d\d:\d\d  ", "", line) for line in file.getvalue().splitlines()]


def test_a_log_has_one_line_per_event():
    view, file = make_view(9)
    with view:
        for i in range(6):
            view.show(event("hit", f"s{i}"))
        view.show(event("started", "s6", attempt=1))
        view.show(event("retry", "s6", reason="a worker died", wait=8))
        view.show(event("started", "s6", attempt=2))
        view.show(event("done", "s6", seconds=72, metrics={"map@25": 0.35811, "rows": 37460}))
        view.show(event("waiting", "s7", on="run b on host x"))
        view.show(
            event("failed", "s7", reason="InputError: [bold]no[/bold] \x1b[31mrows\nsecond line")
        )
        view.show(event("skipped", "s8", because="s7"))
        view.message("word " * 100)
    assert read_lines(file)[-1].startswith("failed    7/9 steps, 6 reused, 1 failed, 1 skipped, ")
    assert read_lines(file)[:-1] == [
        "run       recipe run-1: 9 steps",
        "reused    6 steps: s0, s1, s2, s3 and 2 more",
        "started   s6",
        "retrying  s6 again in 8.0 s: a worker died",
        "started   s6  attempt 2",
        "done      s6  1 m 12 s  map@25 0.3581  rows 37,460",
        "waiting   s7: run b on host x",
        "failed    s7: InputError: [bold]no[/bold] rows",
        "    second line",
        "skipped   s8: needs s7",
        "note      " + "word " * 100,
    ]


@pytest.mark.parametrize(("ends", "word"), [(2, "finished"), (1, "stopped")])
def test_the_last_line_says_how_it_ended(ends, word):
    view, file = make_view(2)
    with view:
        for name in "ab"[:ends]:
            view.show(event("hit", name))
    assert read_lines(file)[-1].startswith(f"{word} ")
    assert f"{ends}/2 steps" in read_lines(file)[-1]


def test_a_log_shows_progress_now_and_then(monkeypatch):
    monkeypatch.setattr(live_view, "LOG_INTERVAL", 0.0)
    view, file = make_view(1)
    with view:
        view.progress("train", Progress(1))  # a late report of an ended step
        view.show(event("started", "train", attempt=1))
        view.progress(
            "train", Progress(150, 2000, "rows", "epoch 1", {"loss": 0.5, "tokens_per_s": 4613})
        )
        view.progress("train", Progress(7, stage="two\nlines"))
    said = [line for line in read_lines(file) if line.startswith("running")]
    assert (
        said[0] == "running   train  epoch 1  150/2,000 rows (8%)  loss 0.5000  tokens_per_s 4,613"
    )
    assert said[1].startswith("running   train  two lines  7 rows")


def test_a_terminal_shows_bars_and_the_end_of_each_step():
    view, file = make_view(3, terminal=True)
    assert view.is_live
    with view:
        view.show(event("started", "iter0/train", attempt=1))
        view.progress("iter0/train", Progress(5, 10, "rows", numbers={"loss": 0.5}))
        view.show(event("waiting", "iter0/mine", on="another run"))
        view.bars.refresh()
        view.show(event("done", "iter0/train", seconds=3.0, metrics={"loss": 0.25}))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    assert "5/10 rows (50%)  loss 0.5000" in text
    assert "waits: another run" in text
    assert "✓ iter0/train  3.0 s  loss 0.250" in text
    assert "■ 1/3 steps" in text


@pytest.mark.slow
def test_on_a_terminal_many_finished_steps_are_only_counted():
    view, file = make_view(100, terminal=True)
    with view:
        for i in range(100):
            view.show(event("started", f"s{i}", attempt=1))
            view.show(event("done", f"s{i}", seconds=1.0, metrics={}))
    assert "✓ s5" not in file.getvalue()
    assert "100/100 steps" in file.getvalue()


def test_any_thread_may_report():
    view, file = make_view(200)

    def report(number: int) -> None:
        for i in range(20):
            view.show(event("started", f"{number}/{i}", attempt=1))
            view.progress(f"{number}/{i}", Progress(1, 2))
            view.show(event("done", f"{number}/{i}", seconds=1.0, metrics={}))

    with view:
        threads = [threading.Thread(target=report, args=(number,)) for number in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(line.startswith("done ") for line in read_lines(file)) == 200
    assert read_lines(file)[-1].startswith("finished  200/200 steps")


def test_a_closed_output_fails_no_step(monkeypatch):
    view, file = make_view(1)

    def refuse(text):
        raise BrokenPipeError

    monkeypatch.setattr(file, "write", refuse)
    with view:
        view.show(event("started", "a", attempt=1))
        view.show(event("done", "a", seconds=1.0, metrics={}))
