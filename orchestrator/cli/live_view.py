"""The live view of a run.

On a terminal, finished steps are printed as one line each. Below them, the running steps are shown with a progress bar,
the rate and the time left, and one line for the whole run. In a plan with many steps, only failures and other notable
events are printed. In CI and job logs, there is a plain line per event, and a progress line every 15 seconds.

Every method may be called from any thread and returns within microseconds; a separate thread draws four times a second.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ratchet.orchestrator.cli.rate import Rate
from ratchet.orchestrator.execution.run_listener import RunListener
from ratchet.orchestrator.job_interface.job import Progress
from ratchet.orchestrator.job_interface.terminal import CleanConsole, OutputError, clean
from ratchet.orchestrator.reporting.formatting import format_compact, format_duration, pluralize, shorten

_LOG_INTERVAL = 15.0
"""Seconds between progress lines of one step in a log."""
_LIST_LIMIT = 60
"""On a terminal, finished steps of a longer plan are counted, not listed."""
_RECENT_STEPS = 3
"""Number of finished steps that stay visible in such a plan."""
_MAX_NUMBERS = 4
"""Maximum number of metrics in the line of a finished step."""


@dataclass
class _Running:
    since: float
    attempt: int
    state: str = "running"  # or: waiting, retrying
    note: str = ""
    until: float | None = None
    progress: Progress | None = None
    rate: Rate = field(default_factory=Rate)
    logged: float = 0.0


class LiveView(RunListener):
    """Context manager that shows a run of the steps `names` of `recipe`."""

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
        self.total, self.recipe, self.run_id, self.noun = len(names), clean(recipe), clean(run_id), noun
        self.console = console or CleanConsole(highlight=False)
        self.clock = clock
        # With FORCE_COLOR rich assumes a terminal; only a real one can erase lines.
        self.live_here = (
            self.console.is_interactive and self.console.file.isatty() and not self.console.is_dumb_terminal
        )
        self.crowded = self.total > _LIST_LIMIT
        self.ascii = not (self.console.encoding or "").lower().startswith("utf")
        self.begin = clock()
        self.counts = dict.fromkeys(("reused", "done", "failed", "skipped"), 0)
        self.running: dict[str, _Running] = {}
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
            self._live = Live(
                console=self.console,
                get_renderable=self.frame,
                refresh_per_second=4,
                transient=True,
                vertical_overflow="crop",
                redirect_stdout=True,
                redirect_stderr=True,
            )
            self._live.start()
        return self

    def __exit__(self, *of_error: object) -> None:
        with self._changing():
            self.running.clear()
        if self._live:
            self._live.stop()
            self._live = None
        ended = self.counts["reused"] + self.counts["done"]
        word = "finished" if ended == self.total else ("failed" if self.counts["failed"] else "stopped")
        with self._changing():
            self._queue_line(word, self._format_totals())

    def hit(self, name: str) -> None:
        """Record a reused step. Consecutive hits are shown in one line, with the next event."""
        with self._state:
            self.running.pop(name, None)
            self.counts["reused"] += 1
            self.hits.append(clean(name))

    def started(self, name: str, attempt: int) -> None:
        with self._changing():
            self.running[name] = _Running(self.clock(), attempt, logged=self.clock())
            if not self.live_here:
                self._queue_line("started", clean(name) + (f"  attempt {attempt}" if attempt > 1 else ""))

    def progress(self, name: str, progress: Progress) -> None:
        with self._state:
            step = self.running.get(name)
            if step is None:
                return  # a late report of an ended step
            now = self.clock()
            known = step.progress
            if known and known.stage != progress.stage and known.total != progress.total:
                step.rate = Rate()  # another kind of work; a new epoch of the same keeps the rate
            step.progress, step.state = progress, "running"
            step.rate.update(now, progress.done)
            if self.live_here or now - step.logged < _LOG_INTERVAL:
                return
            step.logged = now
            self._queue_line("running", "  ".join([clean(name), *self._list_facts(step, now)]))
        self._write()

    def waiting(self, name: str, on: str) -> None:
        with self._changing():
            known = self.running.get(name)
            fresh = known is None or known.state != "waiting"
            if fresh:
                self.running[name] = _Running(self.clock(), 1, state="waiting")
            self.running[name].note = clean(on)
            if fresh and not self.live_here:
                self._queue_line("waiting", f"{clean(name)}: {clean(on)}")

    def retrying(self, name: str, reason: str, delay_s: float) -> None:
        with self._changing():
            step = self.running.setdefault(name, _Running(self.clock(), 1))
            step.state, step.note, step.until = "retrying", clean(reason), self.clock() + delay_s
            step.progress = None
            self._queue_line("retrying", f"{clean(name)} again in {format_duration(delay_s)}: {clean(reason)}")

    def finished(self, name: str, seconds: float, headline: Mapping[str, float]) -> None:
        with self._changing():
            self.running.pop(name, None)
            self.counts["done"] += 1
            numbers = "  ".join(
                f"{clean(key)} {format_compact(value)}" for key, value in list(headline.items())[:_MAX_NUMBERS]
            )
            line = f"{clean(name)}  {format_duration(seconds)}" + (f"  {numbers}" if numbers else "")
            if self.live_here and self.crowded:
                self.recent.append(self._format_line("done", line))
            else:
                self._queue_line("done", line)

    def failed(self, name: str, message: str) -> None:
        with self._changing():
            self.running.pop(name, None)
            self.counts["failed"] += 1
            first, _, rest = clean(message).strip().partition("\n")
            text = f"{clean(name)}: {first}" + "".join(f"\n    {line}" for line in rest.splitlines())
            self._queue_line("failed", text)

    def skipped(self, name: str, because: str) -> None:
        """Record a skipped step. Steps with one cause are shown in one line, with the next event."""
        with self._state:
            self.running.pop(name, None)
            self.counts["skipped"] += 1
            self.skips.setdefault(clean(because), []).append(clean(name))

    def message(self, text: str) -> None:
        with self._changing():
            self._queue_line("note", clean(text))

    def frame(self, size: tuple[int, int] | None = None) -> Text:
        """Return the live lines for a terminal of `size` (columns, lines), cropped to it."""
        with self._state:
            columns, height = size or (self.console.width, self.console.height)
            width, now = max(20, columns - 1), self.clock()  # some terminals wrap in the last column
            room = max(1, min(10, height - 3 - len(self.recent)))
            # Running steps come before waiting ones, else in the order of their start.
            steps = sorted(self.running.items(), key=lambda item: (item[1].state == "waiting", item[1].since))
            shown = steps if len(steps) <= room else steps[: room - 1]
            name_width = min(max((len(clean(name)) for name, _ in shown), default=0), max(12, width * 2 // 5))
            lines = [text.copy() for text in self.recent]
            lines += [self._format_running(clean(name), step, name_width, width, now) for name, step in shown]
            if len(shown) < len(steps):
                rest = [step.state for _, step in steps[len(shown) :]]
                waiting = rest.count("waiting")
                more = [f"{len(rest) - waiting} more running"] * (waiting < len(rest)) + [f"{waiting} waiting"] * (
                    waiting > 0
                )
                lines.append(Text("  " + ", ".join(more), style="dim"))
            lines.append(self._draw_totals(width))
        for line in lines:
            line.plain = line.plain.replace("\n", " ")
            line.truncate(width, overflow="ellipsis" if not self.ascii else "crop")
            line.no_wrap = True
        return Text("\n", no_wrap=True, overflow="crop").join(lines)

    def _format_running(self, name: str, step: _Running, name_width: int, width: int, now: float) -> Text:
        sign, colour = {"running": ("·", "cyan"), "waiting": ("…", "yellow"), "retrying": ("↻", "yellow")}[step.state]
        line = Text.assemble(
            (self._sign(sign) + " ", colour), (shorten(name, name_width).ljust(name_width), "bold"), "  "
        )
        if step.state == "waiting":
            return line.append(f"waits {format_duration(now - step.since)}: {step.note}", "yellow")
        if step.state == "retrying":
            return line.append(
                f"again in {format_duration(max(0.0, (step.until or now) - now))}: {step.note}", "yellow"
            )
        facts = self._list_facts(step, now)
        progress = step.progress
        if progress and progress.total:
            share = min(1.0, max(0.0, progress.done / progress.total))
            line.append_text(self._draw_bar(share, width)).append(f" {share:4.0%}  ")
            # The bar shows the percentage already.
            facts = [fact.split(" (")[0] for fact in facts]
        # As many whole facts as fit; time left and rate come first.
        for fact in facts:
            if line.cell_len + len(fact) > width:
                continue
            line.append(fact.ljust(10) + "  ")
        line.rstrip()
        return line

    def _list_facts(self, step: _Running, now: float) -> list[str]:
        """Return texts about a running step, the most useful first."""
        progress = step.progress
        if progress is None:
            return [format_duration(math.floor(now - step.since)) if now - step.since >= 1 else "starting"]
        facts: list[str] = []
        left = step.rate.left(now, progress.total) if progress.total else None
        if left is not None:
            facts.append(f"{format_duration(math.ceil(left))} left")
        numbers = dict(progress.numbers)
        speed = numbers.pop("tokens_per_s", None)
        if speed is not None:
            facts.append(f"{format_compact(speed)} tok/s")
        if "loss" in numbers:
            facts.append(f"loss {format_compact(numbers.pop('loss'))}")
        done = f"{progress.done:,.0f}"
        if progress.total:
            done += f"/{progress.total:,.0f} {clean(progress.unit)} ({min(1.0, progress.done / progress.total):.0%})"
        else:
            done += f" {clean(progress.unit)}"
        facts.append(done)
        if progress.stage:
            facts.insert(-1, clean(progress.stage))
        if speed is None and step.rate.per_second > 0:
            facts.append(f"{format_compact(step.rate.per_second)} {clean(progress.unit)}/s")
        return facts + [f"{clean(key)} {format_compact(value)}" for key, value in numbers.items()]

    def _draw_totals(self, width: int) -> Text:
        ended = sum(self.counts.values())
        line = self._draw_bar(ended / self.total if self.total else 1.0, width)
        return Text.assemble(
            "  ", line, " ", (self._format_totals(), "bold" if not self.counts["failed"] else "bold red")
        )

    def _format_totals(self) -> str:
        """Format the state of the run: `7/14 steps, 3 reused, 1 failed, 12 m 04 s`."""
        made = self.counts["reused"] + self.counts["done"]
        facts = [f"{made:,}/{self.total:,} {self.noun}s"]
        facts += [f"{self.counts[word]:,} {word}" for word in ("reused", "failed", "skipped") if self.counts[word]]
        passed = self.clock() - self.begin
        return ", ".join([*facts, format_duration(math.floor(passed) if passed >= 10 else passed)])

    def _draw_bar(self, share: float, width: int) -> Text:
        length = 20 if width >= 110 else 10
        full = int(share * length + 1e-9)
        on, off = ("#", ".") if self.ascii else ("━", "─")
        return Text.assemble((on * full, "green" if share >= 1 else "cyan"), (off * (length - full), "dim"))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock in the block; queue the collected hits and skips before it, and write all lines after it."""
        with self._state:
            if hits := self.hits:
                named = hits[0] if len(hits) == 1 else f"{pluralize(len(hits), self.noun)}: {_join_names(hits)}"
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
            (self._sign(sign) + " ", style),
            (head, style if word == "failed" else ""),
            (f"  {rest}" if rest else "", "dim"),
        )

    def _sign(self, sign: str) -> str:
        return _ASCII.get(sign, sign) if self.ascii else sign

    def _write(self) -> None:
        """Write the queued lines in order. The caller does not hold the lock."""
        with self._writing:
            while True:
                with self._state:
                    if not self._lines:
                        return
                    line = self._lines.popleft()
                # Lines of a log are never broken; those of a terminal wrap at words. Steps do not fail because nobody
                # reads: the command says so at its end.
                with suppress(BrokenPipeError, OutputError):
                    self.console.print(line, soft_wrap=not self.live_here, highlight=False)

    def __reduce__(self) -> Any:
        raise TypeError(
            "LiveView: pickled for another process; expected to stay in the driver; send Progress values to it"
        )


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
_ASCII = {"▸": ">", "●": "=", "✓": "+", "✗": "x", "■": "!", "○": "-", "↻": "~", "·": "*", "…": "?"}


def _join_names(names: Sequence[str], most: int = 4) -> str:
    """Join names: `a, b, c, d and 9 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
