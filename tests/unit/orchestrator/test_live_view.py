"""The live view: its lines on terminals and in logs, its size, and its behaviour with threads and unusual texts."""

from __future__ import annotations

import io
import os
import pickle
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from ratchet.orchestrator.cli.live_view import LiveView
from ratchet.orchestrator.job_interface import Progress

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def logged(
    names: list[str], clock: Clock | None = None, size: tuple[int, int] = (80, 24), **options: Any
) -> tuple[LiveView, io.StringIO]:
    console = Console(file=io.StringIO(), highlight=False, width=size[0], height=size[1])
    return LiveView(names, "recipe", "run-1", console=console, clock=clock or Clock(), **options), console.file


def drawn(view: LiveView) -> list[str]:
    """The live lines as they are on the terminal."""
    with view.console.capture() as captured:
        view.console.print(view.frame())
    return captured.get().splitlines()


def lines(file: io.StringIO) -> list[str]:
    """Without the clock time that starts each line."""
    return [re.sub(r"^\d\d:\d\d:\d\d  ", "", line) for line in file.getvalue().splitlines()]


def test_a_log_has_one_line_per_event():
    clock = Clock()
    view, file = logged([f"s{i}" for i in range(9)], clock)
    with view:
        for i in range(6):
            view.hit(f"s{i}")
        view.started("s6", 1)
        clock.now = 3
        view.retrying("s6", "a worker died", 8)
        view.started("s6", 2)
        clock.now = 75
        view.finished("s6", 72, {"map@25": 0.35811, "rows": 37460})
        view.waiting("s7", "run b on host x")
        view.waiting("s7", "run b on host x")
        view.failed("s7", "InputError: [bold]no[/bold] \x1b[31mrows\nsecond line")
        view.skipped("s8", "s7")
    assert lines(file) == [
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
        "failed    7/9 steps, 6 reused, 1 failed, 1 skipped, 1 m 15 s",
    ]


@pytest.mark.parametrize(("ends", "word"), [(2, "finished"), (1, "stopped")])
def test_the_last_line_says_how_it_ended(ends, word):
    view, file = logged(["a", "b"])
    with view:
        for name in "ab"[:ends]:
            view.hit(name)
    assert lines(file)[-1].startswith(f"{word} ")
    assert f"{ends}/2 steps" in lines(file)[-1]


def test_a_log_shows_progress_now_and_then():
    clock = Clock()
    view, file = logged(["train"], clock)
    with view:
        view.started("train", 1)
        for second in range(100):
            clock.now = float(second)
            view.progress("train", Progress(second * 10, 2000, "rows", "epoch 1", {"loss": 0.5, "tokens_per_s": 4613}))
    said = [line for line in lines(file) if line.startswith("running")]
    assert len(said) == 6
    assert said[0] == "running   train  2 m 05 s left  4.6k tok/s  loss 0.500  epoch 1  150/2,000 rows (8%)".replace(
        "2 m 05 s", "3 m 05 s"
    )


def test_a_log_line_is_never_broken():
    view, file = logged(["a"])
    with view:
        view.message("word " * 200)
    assert len(lines(file)) == 3
    assert "\x1b" not in file.getvalue()


def test_force_color_does_not_animate_a_log(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    view, file = logged(["a"])
    with view:
        view.started("a", 1)
        view.finished("a", 1, {})
    assert not re.search(r"\x1b\[[0-9;?]*[A-HJKhl]", file.getvalue())


def test_late_and_unknown_reports_are_dropped():
    view, _file = logged(["a"])
    with view:
        view.progress("a", Progress(1))
        view.started("a", 1)
        view.finished("a", 1, {})
        view.progress("a", Progress(2))
        assert "a" not in " ".join(drawn(view)).split()


names = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=60)
progresses = st.builds(
    Progress,
    st.floats(0, 1e12),
    st.none() | st.floats(0, 1e12),
    st.just("rows"),
    names,
    st.dictionaries(st.sampled_from(["loss", "tokens_per_s", "lr", "x"]), st.floats()),
)


@given(
    st.dictionaries(names, st.tuples(progresses, st.sampled_from("rwt")), max_size=30),
    st.integers(1, 200),
    st.integers(1, 60),
)
@example({"a\n\nb": (Progress(0.0, stage="c\nd"), "r")}, 1, 1)
def test_a_frame_fits_any_terminal(steps, columns, height):
    view, _ = logged(list(steps), size=(columns, height))
    for name, (progress, kind) in steps.items():
        view.started(name, 1)
        view.progress(name, progress)
        if kind == "w":
            view.waiting(name, "someone [else]")
        elif kind == "t":
            view.retrying(name, "why " * 50, 3.0)
    rows = drawn(view)
    assert all(cell_len(row) <= columns for row in rows)
    assert len(rows) <= max(3, height)


def test_a_frame_tells_what_runs_first():
    clock = Clock()
    view, _ = logged([f"step{i}" for i in range(40)], clock)
    for i in range(20):
        view.waiting(f"step{i}", "run b")
    for i in range(20, 40):
        view.started(f"step{i}", 1)
    for second in range(0, 21, 5):
        clock.now = float(second)
        view.progress("step20", Progress(100 * second, 4000, "rows", "", {"loss": 0.25}))
    rows = drawn(view)
    assert len(rows) == 11
    assert re.search(r"step20 .* 20 s left +loss 0.250  2,000/4,000 rows \(50%\)  100 row", rows[0])
    assert rows[-2].rstrip() == "  11 more running, 20 waiting"
    assert "0/40 steps" in rows[-1]


def test_the_rate_follows_and_forgets():
    clock = Clock()
    view, _ = logged(["a"], clock, (200, 24))
    view.started("a", 1)
    view.progress("a", Progress(5000, 9000))  # done before a kill: not this run's merit
    for second in range(1, 101):
        clock.now = float(second)
        view.progress("a", Progress(5000 + 10 * second, 9000))
    assert "5 m 00 s left" in drawn(view)[0]
    assert "10 rows/s" in drawn(view)[0]
    for second in range(101, 301):
        clock.now = float(second)
        view.progress("a", Progress(6000 + 2 * (second - 100), 9000))
    assert " 2 rows/s" in drawn(view)[0]
    view.progress("a", Progress(0, 100, stage="a new stage begins"))
    assert "left" not in drawn(view)[0]


@given(st.lists(st.floats(0.01, 30), min_size=30, max_size=60))
def test_the_rate_does_not_mind_uneven_reports(gaps):
    clock = Clock()
    view, _ = logged(["a"], clock, (200, 24))
    view.started("a", 1)
    for gap in [*gaps, 1.0]:
        clock.now += gap
        view.progress("a", Progress(clock.now * 7, 1e6))
    assert " 7 rows/s" in drawn(view)[0] or " 7.000 rows/s" in drawn(view)[0]


def test_many_threads_at_once():
    count = 200
    view, file = logged([f"s{i}" for i in range(count)])

    def work(first: int) -> None:
        for i in range(first, count, 8):
            view.started(f"s{i}", 1)
            view.progress(f"s{i}", Progress(1, 2))
            view.frame()
            view.finished(f"s{i}", 0.1, {})

    with view:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    said = lines(file)
    assert sum(line.startswith("done ") for line in said) == sum(line.startswith("started ") for line in said) == count
    assert f"{count}/{count} steps" in said[-1]


def test_progress_costs_microseconds():
    view, _ = logged(["a"])
    view.started("a", 1)
    begin = time.perf_counter()
    for i in range(10_000):
        view.progress("a", Progress(i, 10_000))
    assert time.perf_counter() - begin < 2.0  # 200 us each; some 3 us where nothing else runs


def test_it_stays_in_the_driver():
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(logged(["a"])[0])


SCRIPT = """
import sys, threading, time
from ratchet.orchestrator.cli.live_view import LiveView
from ratchet.orchestrator.job_interface import Progress
count = int(sys.argv[1])
names = [f"trial{i:04}/train" for i in range(count)]
with LiveView(names, "sweep", "run-1") as view:
    for name in names[: count // 2]:
        view.hit(name)
    def work(k):
        for name in names[count // 2 + k : -1 : 4]:
            view.started(name, 1)
            view.progress(name, Progress(1, 2))
            view.finished(name, 0.1, {"loss": 0.5})
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    view.started(names[-1], 1)
    view.progress(names[-1], Progress(1, 2))
    time.sleep(0.6)
    view.failed(names[-1], "it broke")
"""


def on_a_terminal(count: int, **environment: str) -> str:
    """Everything that a run of `count` steps writes to a terminal of 80 columns and 24 lines."""
    leader, follower = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "CI")}
    env |= {
        "TERM": "xterm-256color",
        "COLUMNS": "80",
        "LINES": "24",
        "PYTHONPATH": str(ROOT),
        "PYTHONUTF8": "1",
        **environment,
    }
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(count)], stdin=follower, stdout=follower, stderr=follower, env=env
    )
    os.close(follower)
    written = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # Linux says so when the other side has closed
            break
        if not piece:
            break
        written += piece
    os.close(leader)
    assert process.wait(30) == 0, written.decode()
    return written.decode()


def test_two_thousand_steps_do_not_fill_a_terminal():
    text = on_a_terminal(2000)
    assert "1,000 steps: trial0000/train" in text
    assert "50%" in text
    assert "it broke" in text
    assert "1,999/2,000 steps, 1,000 reused, 1 failed" in text
    # What scrolls by: the start, the hits, the failure, the end; the rest is drawn in place.
    assert len(re.findall("✓", text)) < 60
    assert len(text) < 60_000
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor comes back


def test_no_color_is_kept():
    colour = r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|38)"
    assert re.search(colour, on_a_terminal(8))
    assert not re.search(colour, on_a_terminal(8, NO_COLOR="1"))


def test_a_dumb_terminal_gets_lines():
    text = on_a_terminal(8, TERM="dumb")
    assert "\x1b" not in text
    assert "done      trial0004/train" in text
