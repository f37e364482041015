"""The live view of a run.

On a terminal, finished steps are printed as one line each. Below them, the running steps are shown with a progress bar,
the rate and the time left, and one line for the whole run. In a plan with many steps, only failures and other notable
events are printed. In CI and job logs, there is a plain line per event, and a progress line every 15 seconds.

Every method may be called from any thread and returns within microseconds; a separate thread draws four times a second.
"""

from __future__ import annotations

import importlib.util
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Task, TextColumn
from rich.progress import Progress as Bars
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from ratchet.orchestrator.execution.run_listener import RunListener
from ratchet.orchestrator.job_interface.job import Progress
from ratchet.orchestrator.job_interface.terminal import CleanConsole, OutputError, clean
from ratchet.orchestrator.reporting.formatting import format_compact, format_duration, pluralize, shorten

_LOG_INTERVAL = 15.0
"""Seconds between progress lines of one step in a log."""
_LIST_LIMIT = 60
"""On a terminal, a plan with more steps than this shows a count of the finished steps instead of a line for each."""
_RECENT_STEPS = 3
"""Number of finished steps that stay visible in such a plan."""
_MAX_NUMBERS = 4
"""Maximum number of metrics in the line of a finished step."""
_RATE_SECONDS = 120.0
"""Time over which the rate of a step is averaged."""


class LiveView(RunListener):
    """Context manager that shows the progress of a run. names: the steps (or trials) of the plan."""

    def __init__(
        self,
        names: Sequence[str],
        recipe: str,
        run_id: str,
        *,
        noun: str = "step",
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = len(names)
        self.recipe = clean(recipe)
        self.run_id = clean(run_id)
        self.noun = noun
        self.console = console or CleanConsole(highlight=False)
        self.clock = clock
        self.live_here = _can_erase(self.console)
        self.crowded = self.total > _LIST_LIMIT
        self.begin = clock()
        self.counts = dict.fromkeys(("reused", "done", "failed", "skipped"), 0)
        cut: Any = {"no_wrap": True, "overflow": "ellipsis"}
        # Keeps the running steps and their rates. It is never started: `frame` draws its table.
        self.bars = Bars(
            TextColumn("{task.fields[sign]}"),
            TextColumn("{task.description}", style="bold", markup=False, table_column=Column(**cut)),
            BarColumn(20 if self.console.width >= 110 else 10),
            TextColumn("{task.fields[facts]}", markup=False, table_column=Column(**cut, ratio=1)),
            console=self.console,
            expand=True,
            get_time=clock,
            speed_estimate_period=_RATE_SECONDS,
        )
        self.running: dict[str, Task] = {}
        self.recent: deque[Text] = deque(maxlen=_RECENT_STEPS)
        self.hits: list[str] = []
        self.skips: dict[str, list[str]] = {}
        self._state = threading.Lock()  # never held while writing: rich draws under its own lock
        self._writing = threading.Lock()
        self._lines: deque[Text] = deque()
        self._live: Live | None = None

    def __enter__(self) -> LiveView:
        self.begin = self.clock()
        with self._changing():
            self._queue_line("run", f"{self.recipe} {self.run_id}: {pluralize(self.total, self.noun)}")
        if self.live_here:
            how: Any = {"refresh_per_second": 4, "transient": True, "vertical_overflow": "crop"}
            self._live = Live(console=self.console, get_renderable=self.frame, **how)
            self._live.start()
        return self

    def __exit__(self, *of_error: object) -> None:
        with self._state:
            for name in list(self.running):
                self._remove(name)
        if self._live:
            self._live.stop()
            self._live = None
        ended = self.counts["reused"] + self.counts["done"]
        if ended == self.total:
            word = "finished"
        else:
            if self.counts["failed"]:
                word = "failed"
            else:
                word = "stopped"
        with self._changing():
            self._queue_line(word, self._format_totals())

    def hit(self, name: str) -> None:
        """Record a reused step. Consecutive hits are shown in one line, with the next event."""
        with self._state:
            self._remove(name)
            self.counts["reused"] += 1
            self.hits.append(clean(name))

    def started(self, name: str, attempt: int) -> None:
        with self._changing():
            self._add(name)
            if not self.live_here:
                if attempt > 1:
                    again = f"  attempt {attempt}"
                else:
                    again = ""
                self._queue_line("started", clean(name) + again)

    def progress(self, name: str, progress: Progress) -> None:
        with self._state:
            if (task := self.running.get(name)) is None:
                return  # a late report of an ended step
            # A new total means a new kind of work; rich then measures the rate anew.
            self.bars.update(task.id, total=progress.total, completed=progress.done, state="running", progress=progress)
            if self.live_here or self.clock() - task.fields["logged"] < _LOG_INTERVAL:
                return
            task.fields["logged"] = self.clock()
            self._queue_line("running", f"{clean(name)}  {self._join_facts(task)}")
        self._write()

    def waiting(self, name: str, on: str) -> None:
        with self._changing():
            known = self.running.get(name)
            if known is None or known.fields["state"] != "waiting":
                known = self._add(name, "waiting")
                if not self.live_here:
                    self._queue_line("waiting", f"{clean(name)}: {clean(on)}")
            known.fields["note"] = clean(on)

    def retrying(self, name: str, reason: str, delay_s: float) -> None:
        with self._changing():
            self._add(name, "retrying", note=clean(reason), until=self.clock() + delay_s)
            self._queue_line("retrying", f"{clean(name)} again in {format_duration(delay_s)}: {clean(reason)}")

    def finished(self, name: str, seconds: float, headline: Mapping[str, float]) -> None:
        with self._changing():
            self._remove(name)
            self.counts["done"] += 1
            shown = list(headline.items())[:_MAX_NUMBERS]
            numbers = []
            for key, value in shown:
                numbers.append(f"{clean(key)} {format_compact(value)}")
            line = "  ".join([clean(name), format_duration(seconds), *numbers])
            if self.live_here and self.crowded:
                self.recent.append(self._format_line("done", line))
                self.recent[-1].no_wrap = True
            else:
                self._queue_line("done", line)

    def failed(self, name: str, message: str) -> None:
        with self._changing():
            self._remove(name)
            self.counts["failed"] += 1
            first, _, rest = clean(message).strip().partition("\n")
            text = f"{clean(name)}: {first}" + "".join(f"\n    {line}" for line in rest.splitlines())
            self._queue_line("failed", text)

    def skipped(self, name: str, because: str) -> None:
        """Record a skipped step. Steps with one cause are shown in one line, with the next event."""
        with self._state:
            self._remove(name)
            self.counts["skipped"] += 1
            self.skips.setdefault(clean(because), []).append(clean(name))

    def message(self, text: str) -> None:
        with self._changing():
            self._queue_line("note", clean(text))

    def frame(self) -> Group:
        """Return the live lines. Only as many running steps are shown as fit on the terminal."""
        with self._state:
            room = max(1, min(10, self.console.height - 3 - len(self.recent)))
            # Running steps come before waiting ones; both are in the order of their start.
            steps = sorted(self.running.values(), key=lambda task: task.fields["state"] == "waiting")
            if len(steps) <= room:
                shown = steps
            else:
                shown = steps[: room - 1]
            for task in shown:
                sign, colour = _STATES[task.fields["state"]]
                task.fields |= {"sign": f"[{colour}]{sign}", "facts": self._join_facts(task)}
            rest = Counter(task.fields["state"] == "waiting" for task in steps[len(shown) :])
            more = [f"{rest[False]} more running"] * bool(rest[False]) + [f"{rest[True]} waiting"] * bool(rest[True])
            table = self.bars.make_tasks_table(shown)
            table.width = max(1, self.console.width - 1)  # some terminals wrap in the last column
            lines: list[Any] = [*self.recent, *([table] if shown else [])]
            if more:
                lines.append(Text("  " + ", ".join(more), style="dim", no_wrap=True))
            totals = Table.grid(padding=(0, 1))
            ended = sum(self.counts.values())
            if self.counts["failed"]:
                style = "bold red"
            else:
                style = "bold"
            bar = ProgressBar(max(1, self.total), ended if self.total else 1, 20 if self.console.width >= 110 else 10)
            totals.add_row(" ", bar, Text(self._format_totals(), style, no_wrap=True))
            return Group(*lines, totals)

    def _add(self, name: str, state: str = "running", **fields: Any) -> Task:
        """Add a line for a step to the live lines, and remove its earlier line."""
        self._remove(name)
        shown = shorten(" ".join(clean(name).split()), max(12, self.console.width * 2 // 5))
        fields |= {"state": state, "progress": None, "logged": self.clock()}
        self.bars.add_task(shown, total=None if state == "running" else 1, **fields)
        self.running[name] = self.bars.tasks[-1]
        return self.running[name]

    def _remove(self, name: str) -> None:
        if name in self.running:
            self.bars.remove_task(self.running.pop(name).id)

    def _join_facts(self, task: Task) -> str:
        return "  ".join(self._list_facts(task)).replace("\n", " ")

    def _list_facts(self, task: Task) -> list[str]:
        """Return texts about a running step, the most useful first."""
        progress = task.fields["progress"]
        passed = task.elapsed or 0.0
        if task.fields["state"] == "waiting":
            return [f"waits {format_duration(passed)}: {task.fields['note']}"]
        if task.fields["state"] == "retrying":
            left = max(0.0, task.fields["until"] - self.clock())
            return [f"again in {format_duration(left)}: {task.fields['note']}"]
        if progress is None:
            return [format_duration(math.floor(passed)) if passed >= 1 else "starting"]
        if progress.total and task.time_remaining:
            facts = [f"{format_duration(task.time_remaining)} left"]
        else:
            facts = []
        numbers = dict(progress.numbers)
        tokens = numbers.pop("tokens_per_s", None)
        if tokens is not None:
            facts.append(f"{format_compact(tokens)} tok/s")
        if "loss" in numbers:
            facts.append(f"loss {format_compact(numbers.pop('loss'))}")
        if progress.stage:
            facts.append(clean(progress.stage))
        done = f"{progress.done:,.0f}"
        unit = clean(progress.unit)
        if progress.total:
            share = min(1.0, progress.done / progress.total)
        else:
            share = None
        facts.append(f"{done} {unit}" if share is None else f"{done}/{progress.total:,.0f} {unit} ({share:.0%})")
        if tokens is None and task.speed:
            facts.append(f"{format_compact(task.speed)} {unit}/s")
        return facts + [f"{clean(key)} {format_compact(value)}" for key, value in numbers.items()]

    def _format_totals(self) -> str:
        """Format the state of the run: `7/14 steps, 3 reused, 1 failed, 12 m 04 s`."""
        made = self.counts["reused"] + self.counts["done"]
        facts = [f"{made:,}/{self.total:,} {self.noun}s"]
        facts += [f"{self.counts[word]:,} {word}" for word in ("reused", "failed", "skipped") if self.counts[word]]
        passed = self.clock() - self.begin
        return ", ".join([*facts, format_duration(math.floor(passed) if passed >= 10 else passed)])

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock in the block. Collected hits and skips are queued before it; all lines are written after it."""
        with self._state:
            if hits := self.hits:
                if len(hits) == 1:
                    named = hits[0]
                else:
                    named = f"{pluralize(len(hits), self.noun)}: {_join_names(hits)}"
                self._queue_line("reused", named)
                hits.clear()
            for because, names in self.skips.items():
                self._queue_line("skipped", f"{_join_names(names)}: needs {because}")
            self.skips.clear()
            yield
        self._write()

    def _queue_line(self, word: str, text: str) -> None:
        self._lines.append(self._format_line(word, text))

    def _format_line(self, word: str, text: str) -> Text:
        if not self.live_here:
            return Text(f"{time.strftime('%H:%M:%S')}  {word:<8}  {text}")
        sign, style = _STYLES[word]
        head, _, rest = text.partition("  ")
        return Text.assemble(
            (sign + " ", style), (head, style if word == "failed" else ""), (f"  {rest}" if rest else "", "dim")
        )

    def _write(self) -> None:
        """Write the queued lines in order. The caller does not hold the lock."""
        with self._writing:
            while self._lines:
                line = self._lines.popleft()
                # Lines of a log never wrap. A closed output does not fail a step: the command reports it at its end.
                with suppress(BrokenPipeError, OutputError):
                    self.console.print(line, soft_wrap=not self.live_here, highlight=False)


_STYLES = {
    "run": ("▸", "bold"),
    "reused": ("●", "blue"),
    "done": ("✓", "green"),
    "finished": ("✓", "bold green"),
    "failed": ("✗", "bold red"),
    "stopped": ("■", "bold yellow"),
    "skipped": ("○", "dim"),
    "retrying": ("↻", "yellow"),
    "note": ("·", "dim"),
}
_STATES = {"running": ("·", "cyan"), "waiting": ("…", "yellow"), "retrying": ("↻", "yellow")}


def _join_names(names: Sequence[str], most: int = 4) -> str:
    """Join names: `a, b, c, d and 9 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _can_erase(console: Console) -> bool:
    """Return whether printed lines can be replaced: on a terminal with the view's signs, and in a notebook with
    ipywidgets."""
    if console.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    # With FORCE_COLOR rich assumes a terminal; only a real one can erase lines.
    has_signs = (console.encoding or "").lower().startswith("utf")
    return has_signs and console.is_interactive and console.file.isatty() and not console.is_dumb_terminal
