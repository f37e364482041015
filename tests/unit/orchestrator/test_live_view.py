"""The live view: its lines on terminals and in logs."""

from __future__ import annotations

import io
import re
import threading

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


def read_lines(file: io.StringIO) -> list[str]:
    """The lines without the time that starts each of them."""
    return [re.sub(r"^\d\d:\d\d:\d\d  ", "", line) for line in file.getvalue().splitlines()]


def test_a_log_has_one_line_per_event():
    view, file = make_view(9)
    with view:
        for i in range(6):
            view.hit(f"s{i}")
        view.started("s6", 1)
        view.retrying("s6", "a worker died", 8)
        view.started("s6", 2)
        view.finished("s6", 72, {"map@25": 0.35811, "rows": 37460})
        view.waiting("s7", "run b on host x")
        view.failed("s7", "InputError: [bold]no[/bold] \x1b[31mrows\nsecond line")
        view.skipped("s8", "s7")
        view.message("word " * 100)
    assert read_lines(file)[-1].startswith("failed    7/9 steps, 6 reused, 1 failed, 1 skipped, ")
    assert read_lines(file)[:-1] == [
        "run       recipe run-1: 9 steps",
        "reused    6 steps: s0, s1, s2, s3 and 2 more",
        "started   s6",
        "retrying  s6 again in 8.0 s: a worker died",
        "started   s6  attempt 2",
        "done      s6  1 m 12 s  map@25 0.358  rows 37.5k",
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
            view.hit(name)
    assert read_lines(file)[-1].startswith(f"{word} ")
    assert f"{ends}/2 steps" in read_lines(file)[-1]


def test_a_log_shows_progress_now_and_then(monkeypatch):
    monkeypatch.setattr(live_view, "LOG_INTERVAL", 0.0)
    view, file = make_view(1)
    with view:
        view.progress("train", Progress(1))  # a late report of an ended step
        view.started("train", 1)
        view.progress(
            "train", Progress(150, 2000, "rows", "epoch 1", {"loss": 0.5, "tokens_per_s": 4613})
        )
        view.progress("train", Progress(7, stage="two\nlines"))
    said = [line for line in read_lines(file) if line.startswith("running")]
    assert said[0] == "running   train  epoch 1  150/2,000 rows (8%)  loss 0.500  tokens_per_s 4.6k"
    assert said[1].startswith("running   train  two lines  7 rows")


def test_a_terminal_shows_bars_and_the_end_of_each_step():
    view, file = make_view(3, terminal=True)
    assert view.is_live
    with view:
        view.started("iter0/train", 1)
        view.progress("iter0/train", Progress(5, 10, "rows", numbers={"loss": 0.5}))
        view.waiting("iter0/mine", "another run")
        view.bars.refresh()
        view.finished("iter0/train", 3.0, {"loss": 0.25})
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    assert "5/10 rows (50%)  loss 0.500" in text
    assert "waits: another run" in text
    assert "✓ iter0/train  3.0 s  loss 0.250" in text
    assert "■ 1/3 steps" in text


def test_on_a_terminal_many_finished_steps_are_only_counted():
    view, file = make_view(100, terminal=True)
    with view:
        for i in range(100):
            view.started(f"s{i}", 1)
            view.finished(f"s{i}", 1.0, {})
    assert "✓ s5" not in file.getvalue()
    assert "100/100 steps" in file.getvalue()


def test_any_thread_may_report():
    view, file = make_view(200)

    def report(number: int) -> None:
        for i in range(20):
            view.started(f"{number}/{i}", 1)
            view.progress(f"{number}/{i}", Progress(1, 2))
            view.finished(f"{number}/{i}", 1.0, {})

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
        view.started("a", 1)
        view.finished("a", 1.0, {})
