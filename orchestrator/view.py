"""What a person sees while a plan runs.

On a terminal: finished steps scroll by as one line each, and below them stay the running ones, with a bar, rate and
time left, over one line for the whole run. Of a plan with many steps only what needs attention scrolls by. Elsewhere
(CI, job logs): plain lines, one per event, and progress now and then.

Every method may be called from any thread and costs microseconds; drawing happens four times a second, elsewhere.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from jobs.job import Progress
from orchestrator.show import clean, compact, duration, plural, shortened

_LOG_EVERY = 15.0
"""Seconds between two progress lines of one step, where lines stay."""
_MANY = 60
"""Steps from which on finished ones are counted, not listed, on a terminal."""
_RECENT = 3
"""Finished steps that stay in sight in such a plan."""
_HEADLINE = 4
"""Numbers in the line of a finished step."""
_MEMORY = 20.0
"""Seconds after which an observed rate counts a third (1/e)."""


class Rate:
    """Units per second, smoothed: sums of work and of time that both fade, so that uneven reports don't bias it."""

    def __init__(self) -> None:
        self.work = self.time = 0.0
        self.last: tuple[float, float] | None = None

    def update(self, now: float, done: float) -> None:
        """What a step had already done at its first report (a resume) is not credited to this run."""
        if self.last is None or done < self.last[1]:
            self.work = self.time = 0.0
            self.last = now, done
            return
        passed, gained = now - self.last[0], done - self.last[1]
        if passed < 0.2:
            return  # too short to say anything; the next report covers it
        fade = math.exp(-passed / _MEMORY)
        self.work, self.time = self.work * fade + gained, self.time * fade + passed
        self.last = now, done

    @property
    def per_second(self) -> float:
        return self.work / self.time if self.time else 0.0

    def left(self, now: float, total: float) -> float | None:
        """Seconds until `total`, or None while that cannot be known."""
        if self.last is None or self.per_second <= 0:
            return None
        return max(0.0, (total - self.last[1]) / self.per_second - (now - self.last[0]))


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


class View:
    """A context manager that shows a run of the steps `names` of `recipe`; see the module."""

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
        self.console = console or Console(highlight=False)
        self.clock = clock
        # FORCE_COLOR makes rich believe in a terminal; only a real one can take a line back.
        self.live_here = (
            self.console.is_interactive and self.console.file.isatty() and not self.console.is_dumb_terminal
        )
        self.crowded = self.total > _MANY
        self.ascii = not (self.console.encoding or "").lower().startswith("utf")
        self.begin = clock()
        self.counts = dict.fromkeys(("reused", "done", "failed", "skipped"), 0)
        self.running: dict[str, _Running] = {}
        self.recent: deque[Text] = deque(maxlen=_RECENT)
        self.hits: list[str] = []
        self.skips: dict[str, list[str]] = {}
        self._state = threading.Lock()  # held for bookkeeping only, never while writing: rich draws under its own lock
        self._writing = threading.Lock()
        self._lines: deque[Text] = deque()
        self._live: Live | None = None

    def __enter__(self) -> View:
        self.begin = self.clock()
        self._say("run", f"{self.recipe} {self.run_id}: {plural(self.total, self.noun)}")
        self._write()
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._state:
            self.running.clear()
            self._sums()
        self._write()
        if self._live:
            self._live.stop()
            self._live = None
        ended = self.counts["reused"] + self.counts["done"]
        word = "finished" if ended == self.total else ("failed" if self.counts["failed"] else "stopped")
        with self._state:
            self._say(word, self._overall())
        self._write()

    def hit(self, name: str) -> None:
        """An earlier run made this step; hits in a row are told in one line."""
        with self._state:
            self.running.pop(name, None)
            self.counts["reused"] += 1
            self.hits.append(clean(name))
        # Not written yet: the next event tells them all.

    def started(self, name: str, attempt: int) -> None:
        """A step runs here. `attempt` 1 is its first."""
        with self._state:
            self._sums()
            self.running[name] = _Running(self.clock(), attempt, logged=self.clock())
            if not self.live_here:
                self._say("started", clean(name) + (f"  attempt {attempt}" if attempt > 1 else ""))
        self._write()

    def progress(self, name: str, progress: Progress) -> None:
        """Where a step stands. As often as one likes."""
        with self._state:
            step = self.running.get(name)
            if step is None:
                return  # a late report of a step that ended
            now = self.clock()
            known = step.progress
            if known and known.stage != progress.stage and known.total != progress.total:
                step.rate = Rate()  # another kind of work; a next epoch of the same goes on
            step.progress, step.state = progress, "running"
            step.rate.update(now, progress.done)
            if self.live_here or now - step.logged < _LOG_EVERY:
                return
            step.logged = now
            self._say("running", "  ".join([clean(name), *self._facts(step, now)]))
        self._write()

    def waiting(self, name: str, on: str) -> None:
        """Another driver makes this step; `on` says which."""
        with self._state:
            self._sums()
            known = self.running.get(name)
            fresh = known is None or known.state != "waiting"
            if fresh:
                self.running[name] = _Running(self.clock(), 1, state="waiting")
            self.running[name].note = clean(on)
            if fresh and not self.live_here:
                self._say("waiting", f"{clean(name)}: {clean(on)}")
        self._write()

    def retrying(self, name: str, reason: str, delay_s: float) -> None:
        """A step met what may pass, and is tried again in `delay_s` seconds."""
        with self._state:
            self._sums()
            step = self.running.setdefault(name, _Running(self.clock(), 1))
            step.state, step.note, step.until = "retrying", clean(reason), self.clock() + delay_s
            step.progress = None
            self._say("retrying", f"{clean(name)} again in {duration(delay_s)}: {clean(reason)}")
        self._write()

    def finished(self, name: str, seconds: float, headline: Mapping[str, float]) -> None:
        """A step is done and kept; `headline` holds the few numbers worth a line."""
        with self._state:
            self._sums()
            self.running.pop(name, None)
            self.counts["done"] += 1
            numbers = "  ".join(f"{clean(key)} {compact(value)}" for key, value in list(headline.items())[:_HEADLINE])
            line = f"{clean(name)}  {duration(seconds)}" + (f"  {numbers}" if numbers else "")
            if self.live_here and self.crowded:
                self.recent.append(self._line("done", line))
            else:
                self._say("done", line)
        self._write()

    def failed(self, name: str, message: str) -> None:
        """A step failed for good."""
        with self._state:
            self._sums()
            self.running.pop(name, None)
            self.counts["failed"] += 1
            first, _, rest = clean(message).strip().partition("\n")
            text = f"{clean(name)}: {first}" + "".join(f"\n    {line}" for line in rest.splitlines())
            self._say("failed", text)
        self._write()

    def skipped(self, name: str, because: str) -> None:
        """A step does not run because of another (its name); those of one cause are told in one line."""
        with self._state:
            self.running.pop(name, None)
            self.counts["skipped"] += 1
            self.skips.setdefault(clean(because), []).append(clean(name))

    def message(self, text: str) -> None:
        """Anything else worth a line."""
        with self._state:
            self._sums()
            self._say("note", clean(text))
        self._write()

    def frame(self, size: tuple[int, int] | None = None) -> Text:
        """What stays at the bottom of a terminal of `size` (columns, lines) now: no line is wider, nor more of them."""
        with self._state:
            columns, height = size or (self.console.width, self.console.height)
            width, now = max(20, columns - 1), self.clock()  # the last column stays free: some terminals wrap there
            room = max(1, min(10, height - 3 - len(self.recent)))
            # What runs is of more interest than what waits; among equals the order of the start.
            steps = sorted(self.running.items(), key=lambda item: (item[1].state == "waiting", item[1].since))
            shown = steps if len(steps) <= room else steps[: room - 1]
            name_width = min(max((len(clean(name)) for name, _ in shown), default=0), max(12, width * 2 // 5))
            lines = [text.copy() for text in self.recent]
            lines += [self._running_line(clean(name), step, name_width, width, now) for name, step in shown]
            if len(shown) < len(steps):
                rest = [step.state for _, step in steps[len(shown) :]]
                waiting = rest.count("waiting")
                more = [f"{len(rest) - waiting} more running"] * (waiting < len(rest)) + [f"{waiting} waiting"] * (
                    waiting > 0
                )
                lines.append(Text("  " + ", ".join(more), style="dim"))
            lines.append(self._total_line(width))
        for line in lines:
            line.truncate(width, overflow="ellipsis" if not self.ascii else "crop")
            line.no_wrap = True
        return Text("\n", no_wrap=True, overflow="crop").join(lines)

    def _running_line(self, name: str, step: _Running, name_width: int, width: int, now: float) -> Text:
        sign, colour = {"running": ("·", "cyan"), "waiting": ("…", "yellow"), "retrying": ("↻", "yellow")}[step.state]
        line = Text.assemble(
            (self._sign(sign) + " ", colour), (shortened(name, name_width).ljust(name_width), "bold"), "  "
        )
        if step.state == "waiting":
            return line.append(f"waits {duration(now - step.since)}: {step.note}", "yellow")
        if step.state == "retrying":
            return line.append(f"again in {duration(max(0.0, (step.until or now) - now))}: {step.note}", "yellow")
        facts = self._facts(step, now)
        progress = step.progress
        if progress and progress.total:
            share = min(1.0, max(0.0, progress.done / progress.total))
            line.append_text(self._bar(share, 20 if width >= 110 else 10)).append(f" {share:4.0%}  ")
            # The bar says the share already.
            facts = [fact.split(" (")[0] for fact in facts]
        # Whole facts only, as many as fit; time left and rate before the rest.
        for fact in facts:
            if line.cell_len + len(fact) > width:
                continue
            line.append(fact.ljust(10) + "  ")
        line.rstrip()
        return line

    def _facts(self, step: _Running, now: float) -> list[str]:
        """Texts about a running step, the most useful first."""
        progress = step.progress
        if progress is None:
            return [duration(math.floor(now - step.since)) if now - step.since >= 1 else "starting"]
        facts: list[str] = []
        left = step.rate.left(now, progress.total) if progress.total else None
        if left is not None:
            facts.append(f"{duration(math.ceil(left))} left")
        numbers = dict(progress.numbers)
        speed = numbers.pop("tokens_per_s", None)
        if speed is not None:
            facts.append(f"{compact(speed)} tok/s")
        if "loss" in numbers:
            facts.append(f"loss {compact(numbers.pop('loss'))}")
        done = f"{progress.done:,.0f}"
        if progress.total:
            done += f"/{progress.total:,.0f} {clean(progress.unit)} ({min(1.0, progress.done / progress.total):.0%})"
        else:
            done += f" {clean(progress.unit)}"
        facts.append(done)
        if progress.stage:
            facts.insert(-1, clean(progress.stage))
        if speed is None and step.rate.per_second > 0:
            facts.append(f"{compact(step.rate.per_second)} {clean(progress.unit)}/s")
        return facts + [f"{clean(key)} {compact(value)}" for key, value in numbers.items()]

    def _total_line(self, width: int) -> Text:
        ended = sum(self.counts.values())
        line = self._bar(ended / self.total if self.total else 1.0, 20 if width >= 110 else 10)
        return Text.assemble("  ", line, " ", (self._overall(), "bold" if not self.counts["failed"] else "bold red"))

    def _overall(self) -> str:
        """`7/14 steps, 3 reused, 1 failed, 12 m 04 s`."""
        made = self.counts["reused"] + self.counts["done"]
        facts = [f"{made:,}/{self.total:,} {self.noun}s"]
        facts += [f"{self.counts[word]:,} {word}" for word in ("reused", "failed", "skipped") if self.counts[word]]
        passed = self.clock() - self.begin
        return ", ".join([*facts, duration(math.floor(passed) if passed >= 10 else passed)])

    def _bar(self, share: float, width: int) -> Text:
        full = int(share * width + 1e-9)
        on, off = ("#", ".") if self.ascii else ("━", "─")
        return Text.assemble((on * full, "green" if share >= 1 else "cyan"), (off * (width - full), "dim"))

    def _sums(self) -> None:
        """Tells the hits and skips that came in a row. The caller holds the state."""
        if hits := self.hits:
            named = hits[0] if len(hits) == 1 else f"{plural(len(hits), self.noun)}: {_listed(hits)}"
            self._say("reused", named)
            hits.clear()
        for because, names in self.skips.items():
            self._say("skipped", f"{_listed(names)}: needs {because}")
        self.skips.clear()

    def _say(self, word: str, text: str) -> None:
        self._lines.append(self._line(word, text))

    def _line(self, word: str, text: str) -> Text:
        if not self.live_here:
            return Text(f"{time.strftime('%H:%M:%S')}  {word:<8}  {text}")
        sign, style = _LOOKS[word]
        head, _, rest = text.partition("  ")
        return Text.assemble(
            (self._sign(sign) + " ", style),
            (head, style if word == "failed" else ""),
            (f"  {rest}" if rest else "", "dim"),
        )

    def _sign(self, sign: str) -> str:
        return _ASCII.get(sign, sign) if self.ascii else sign

    def _write(self) -> None:
        """Writes what was said, in order. Never called with the state held."""
        with self._writing:
            while True:
                with self._state:
                    if not self._lines:
                        return
                    line = self._lines.popleft()
                # A log's lines are never broken; a terminal's wrap at words.
                self.console.print(line, soft_wrap=not self.live_here, highlight=False)

    def __reduce__(self) -> Any:
        raise TypeError(
            "View: asked to travel to another process; expected to stay at the driver; send Progress values to it"
        )


_LOOKS = {
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


def _listed(names: Sequence[str], most: int = 4) -> str:
    """`a, b, c, d and 9 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
