"""The live view of a run.

On a terminal, finished steps are printed as one line each. Below them, rich's progress bars show the whole run and the
running steps. In a plan with many steps, only failures and other notable events are printed. In CI and job logs, there
is a plain line per event, and a progress line every 15 seconds. Every method may be called from any thread.
"""

import importlib.util
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text

from ratchet.orchestrator.job_interface.clean_output import CleanConsole, OutputError
from ratchet.orchestrator.job_interface.job import Progress
from ratchet.orchestrator.reporting.formatting import (
    format_duration,
    format_value,
    pluralize,
    shorten,
)
from ratchet.orchestrator.run_log import RunListener

LOG_INTERVAL = 15.0
"""Seconds between progress lines of one step in a log."""
MANY_STEPS = 60
"""On a terminal, the steps of a plan with more steps than this are counted, but not listed."""
MAX_NUMBERS = 4
"""Maximum number of metrics in the line of a finished step."""

SIGNS = {
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


class LiveView(RunListener):
    """Context manager that shows the progress of a run. total: number of steps (or trials) of the plan."""

    def __init__(
        self,
        total: int,
        title: str,
        run_id: str,
        *,
        noun: str = "step",
        console: Console | None = None,
    ) -> None:
        self.total = total
        self.title = f"{title} {run_id}"
        self.noun = noun
        self.console = console or CleanConsole(highlight=False)
        self.is_live = can_erase(self.console)
        self.begin = time.monotonic()
        self.counts: Counter[str] = Counter()
        self.hits: list[str] = []
        self.bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(20),
            TimeElapsedColumn(),
            TextColumn("{task.fields[facts]}", markup=False),
            console=self.console,
            transient=True,
            disable=not self.is_live,
            speed_estimate_period=120.0,
        )
        self.whole = self.bars.add_task(self.title, total=max(1, total), facts="")
        self.running: dict[str, TaskID] = {}
        self.logged: dict[str, float] = {}
        self.lock = threading.RLock()

    def __enter__(self) -> "LiveView":
        self._print("run", f"{self.title}: {pluralize(self.total, self.noun)}")
        self.bars.start()
        return self

    def __exit__(self, *of_error: object) -> None:
        self.bars.stop()
        word = "stopped"
        if self.counts["reused"] + self.counts["done"] == self.total:
            word = "finished"
        elif self.counts["failed"]:
            word = "failed"
        self._print(
            word, f"{self._format_totals()}, {format_duration(time.monotonic() - self.begin)}"
        )

    def show(self, event: Mapping[str, Any]) -> None:
        name = event["step"]
        with self.lock:
            match event["event"]:
                case "hit":  # consecutive hits are shown in one line, with the next event
                    self._count("reused", name)
                    self.hits.append(name)
                case "started":
                    self._show_running(name, "starting")
                    if not self.is_live:
                        facts = [name]
                        if event["attempt"] > 1:
                            facts.append(f"attempt {event['attempt']}")
                        if "together" in event:
                            facts.append(f"with {', '.join(event['together'])}")
                        self._print("started", "  ".join(facts))
                case "waiting":
                    self._show_running(name, f"waits: {event['on']}")
                    if not self.is_live:
                        self._print("waiting", f"{name}: {event['on']}")
                case "retry":
                    again = f"again in {format_duration(event['wait'])}"
                    self._show_running(name, again)
                    reason = event["reason"].splitlines()[0]
                    self._print("retrying", f"{name} {again}: {reason}")
                case "done":
                    self._count("done", name)
                    facts = [name, format_duration(event["seconds"])]
                    for key, value in list(event["metrics"].items())[:MAX_NUMBERS]:
                        facts.append(f"{key} {_format_number(value)}")
                    if not self.is_live or self.total <= MANY_STEPS:
                        self._print("done", "  ".join(facts))
                case "failed":
                    self._count("failed", name)
                    reason = event["reason"].strip()
                    self._print("failed", f"{name}: {reason}".replace("\n", "\n    "))
                case "skipped":
                    self._count("skipped", name)
                    self._print("skipped", f"{name}: needs {event['because']}")

    def progress(self, name: str, progress: Progress) -> None:
        with self.lock:
            if name not in self.running:
                return  # a late report of an ended step
            # A new total means a new kind of work; rich then measures the rate anew.
            self.bars.update(self.running[name], total=progress.total, completed=progress.done)
            facts = self._format_facts(name, progress)
            self.bars.update(self.running[name], facts=facts)
            if not self.is_live and time.monotonic() - self.logged[name] >= LOG_INTERVAL:
                self.logged[name] = time.monotonic()
                self._print("running", f"{name}  {facts}")

    def message(self, text: str) -> None:
        with self.lock:
            self._print("note", text)

    def _count(self, word: str, name: str) -> None:
        self.counts[word] += 1
        if name in self.running:
            self.bars.remove_task(self.running.pop(name))
        self.bars.update(self.whole, completed=self.counts.total(), facts=self._format_totals())

    def _show_running(self, name: str, facts: str) -> None:
        """Show a step among the running ones."""
        if name not in self.running:
            short = shorten(name, max(12, self.console.width * 2 // 5))
            self.running[name] = self.bars.add_task(short, total=None, facts=facts)
            self.logged[name] = time.monotonic()
        self.bars.reset(self.running[name], total=None, facts=facts)

    def _format_facts(self, name: str, progress: Progress) -> str:
        """Format the progress of a running step, the most useful facts first."""
        task = self.bars.tasks[self.bars.task_ids.index(self.running[name])]
        facts = []
        if progress.total and task.time_remaining:
            facts.append(f"{format_duration(task.time_remaining)} left")
        if progress.stage:
            facts.append(progress.stage)
        if progress.total:
            share = min(1.0, progress.done / progress.total)
            facts.append(
                f"{progress.done:,.0f}/{progress.total:,.0f} {progress.unit} ({share:.0%})"
            )
        else:
            facts.append(f"{progress.done:,.0f} {progress.unit}")
        numbers = dict(progress.numbers)
        if task.speed and "tokens_per_s" not in numbers:
            numbers[f"{progress.unit}/s"] = task.speed
        for key, value in numbers.items():
            facts.append(f"{key} {_format_number(value)}")
        return "  ".join(facts).replace("\n", " ")

    def _format_totals(self) -> str:
        """Format the state of the run: `7/14 steps, 3 reused, 1 failed`."""
        made = self.counts["reused"] + self.counts["done"]
        facts = [f"{made:,}/{self.total:,} {self.noun}s"]
        for word in ("reused", "failed", "skipped"):
            if self.counts[word]:
                facts.append(f"{self.counts[word]:,} {word}")
        return ", ".join(facts)

    def _print(self, word: str, text: str) -> None:
        if self.hits:
            names = ", ".join(self.hits[:4])
            if len(self.hits) > 4:
                names = f"{pluralize(len(self.hits), self.noun)}: {names} and {len(self.hits) - 4:,} more"
            self.hits.clear()
            self._print("reused", names)
        line = Text(f"{time.strftime('%H:%M:%S')}  {word:<8}  {text}")
        if self.is_live:
            sign, style = SIGNS[word]
            line = Text.assemble((f"{sign} ", style), text)
        # A closed output does not fail a step: the command reports it at its end.
        with suppress(BrokenPipeError, OutputError):
            self.console.print(line, soft_wrap=True, highlight=False)


def _format_number(value: float) -> str:
    return format_value(int(value) if float(value).is_integer() else value)


def can_erase(console: Console) -> bool:
    """Return whether printed lines can be replaced: on a terminal with the view's signs, and in a notebook with
    ipywidgets."""
    if console.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    # With FORCE_COLOR rich assumes a terminal; only a real one can erase lines.
    has_signs = (console.encoding or "").lower().startswith("utf")
    return has_signs and console.is_interactive and console.file.isatty()
