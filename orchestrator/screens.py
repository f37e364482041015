"""What the commands print."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from orchestrator.account import report_data, table
from orchestrator.errors import StoreError
from orchestrator.journal import Journal, journals, sweeps
from orchestrator.plan import Plan
from orchestrator.recipe import Recipe
from orchestrator.report import write
from orchestrator.report.sweep import shown
from orchestrator.report.sweep import write as write_sweep_report
from orchestrator.report.sweep_parts import SweepReport
from orchestrator.run import Outcome
from orchestrator.show import NOTHING, duration, plural
from orchestrator.store import Store, gc
from orchestrator.store.lease import holders
from orchestrator.store.many import Tell
from orchestrator.view import View

LARGEST = 50
"""Of what can be removed, so many are shown one by one."""


def say(text: str) -> None:
    """A line on the standard output."""
    print(text, flush=True)


def complain(text: str) -> None:
    """A line on the standard error."""
    print(f"ratchet: {text}", file=sys.stderr, flush=True)


def live(plan: Plan, recipe: str, run_id: str) -> View:
    """The live view of a run."""
    return View(list(plan.steps), recipe, run_id)


def write_report(journal: Journal, outcome: Outcome) -> None:
    """report.html and report.md of the run."""
    write(journal.folder, report_data(journal, outcome))


def show_outcome(journal: Journal, outcome: Outcome) -> None:
    """The table at the end of a run, what failed, and where the report is."""
    _show_rows(table(outcome.plan, outcome.summary))
    for name, message in outcome.failures.items():
        complain(f"{name} failed: {message}")
        trace = journal.folder / "errors" / f"{name.replace('/', '.')}.txt"
        if trace.exists():
            complain(f"  its full traceback: {trace}")
    if outcome.interrupted or outcome.failures:
        say("give the same command again to go on from here")
    say(f"report: {journal.folder / 'report.html'}")


def show_sweep(data: SweepReport) -> None:
    """The sorted table at the end of a sweep, what failed, and what it comes to."""
    _print(shown(data))
    for trial in data.trials:
        if trial.reason:
            complain(f"trial {trial.number} failed: {trial.reason}")
    say(data.verdict)
    if data.steps_separate:
        say(
            f"{plural(data.steps_done, 'step')} computed, {duration(data.seconds_spent)};"
            f" run separately: {plural(data.steps_separate, 'step')}, {duration(data.seconds_separate)}"
        )


def write_sweep(folder: Path, data: SweepReport) -> Path:
    """report.html and report.md of a sweep; where the first is."""
    return write_sweep_report(folder, data)[0]


def show_plan(plan: Plan, before: Mapping[str, str] | None) -> None:
    """A line per step: hit, miss or unknown; with `before` (step ids of the last run) also why, a line per reason."""
    console = Console(soft_wrap=True, highlight=False)
    colours = {"hit": "green", "miss": "yellow", "unknown": "dim"}
    width = max((len(name) for name in plan.steps), default=0)
    for name, planned in plan.steps.items():
        state = Text(f"{planned.state:<8}", style=colours[planned.state])
        console.print(Text(f"{name:<{width}}  "), state, Text(f"  {(planned.step_id or '')[:12]}"), sep="")
        for reason in [] if before is None else plan.explain(name, before):
            console.print(Text(f"    {reason}", style="dim"))
    missing = plan.missing()
    console.print(f"{len(plan.steps) - len(missing)} of {len(plan.steps)} steps are done; {len(missing)} would run")


def show_recipes(recipes: Sequence[Recipe], whole: bool) -> None:
    """Name and first line of each; with `whole` the documentation and the parameters with their defaults."""
    for recipe in recipes:
        lines = recipe.doc.splitlines()
        if not whole:
            say(f"{recipe.name:<16} {lines[0] if lines else ''}")
            continue
        say(f"{recipe.name}\n\n{recipe.doc}\n\nparameters:")
        for parameter in recipe.parameters.values():
            default = "required" if parameter.default is parameter.empty else f"default {parameter.default!r}"
            say(f"  --set {parameter.name}=...  {parameter.annotation!s}, {default}")


def show_status(store: Store, run: str | None) -> None:
    """All runs, newest first; or the steps of one."""
    if run is not None:
        journal = _journal(store, run)
        grid = Table("step", "status", "seconds", "note", box=None, pad_edge=False)
        latest: dict[str, dict[str, Any]] = {}
        for event in journal.events():
            if event["step"]:
                latest[event["step"]] = event
        for step in journal.steps():
            event = latest.get(step["name"], {"event": "pending"})
            note = event.get("reason") or event.get("on") or event.get("because") or ""
            grid.add_row(
                Text(step["name"]),
                event["event"],
                duration(event.get("seconds")),
                Text(note.splitlines()[0] if note else ""),
            )
        Console().print(grid)
        return
    grid = Table("run", "recipe", "started", "steps", "state", box=None, pad_edge=False)
    for journal in journals(store):
        about, steps = journal.read("about.json"), journal.steps()
        done = sum(step["status"] == "done" for step in steps)
        ends = [event for event in journal.events() if event["event"] == "end"]
        state = (
            "running or killed"
            if not ends
            else "interrupted"
            if ends[-1]["interrupted"]
            else "failed"
            if ends[-1]["failures"]
            else "finished"
        )
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(about["started"]))
        grid.add_row(journal.run_id, about["recipe"], started, f"{done}/{len(steps)}", state)
    Console().print(grid if grid.row_count else f"no runs in {store.where}")
    for sweep in sweeps(store):
        events = sweep.events()
        began = {json.dumps(event["settings"]) for event in events if event["event"] == "begun"}
        ended = {json.dumps(event["trial"]["settings"]) for event in events if event["event"] == "ended"}
        say(f"sweep {sweep.run_id}: {len(ended)} of {plural(len(began), 'begun trial')} ended; {sweep.folder}")
    for step_id, owner in holders(store):
        say(f"step {step_id[:12]} is held by {owner}")


def show_report(store: Store, run: str | None) -> None:
    """Where the report of a run is, and its Markdown."""
    journal = _journal(store, run)
    path = journal.folder / "report.md"
    if not path.exists():
        raise StoreError(f"run {journal.run_id}: it has no report; it is running or was killed; run its command again")
    say(path.read_text())
    say(f"report: {journal.folder / 'report.html'}")


def collect(store: Store, keep: int, grace: float, delete: bool) -> None:
    """Shows what gc would remove, the largest first, and removes it if told to."""
    with _bars() as tell:
        doomed = gc.plan(store, keep=keep, grace=grace, tell=tell)
    for item in sorted(doomed, key=lambda item: -item.bytes)[:LARGEST]:
        say(str(item))
    if len(doomed) > LARGEST:
        say(f"{len(doomed) - LARGEST:,} smaller ones are not shown")
    if delete:
        with _bars() as tell:
            doomed = gc.sweep(store, doomed, grace=grace, tell=tell)
    things, size = Counter[str](), Counter[str]()
    for item in doomed:
        things[item.why] += 1
        size[item.why] += item.bytes
    if things:
        _print({why: {"things": f"{things[why]:,}", "MB": f"{size[why] / 1e6:,.1f}"} for why in things})
    done = "removed" if delete else "could be removed; --yes removes them"
    say(f"{len(doomed):,} things, {size.total() / 1e6:,.1f} MB {done}")


@contextmanager
def _bars() -> Iterator[Tell]:
    """A line for each kind of thing that is gone through, while it is; nothing where nobody looks."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def tell(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)

        yield tell


def _show_rows(rows: Mapping[str, Mapping[str, float | None]]) -> None:
    _print(
        {
            label: {c: duration(value) if c == "time" else _number(value) for c, value in row.items()}
            for label, row in rows.items()
        }
    )


def _print(rows: Mapping[str, Mapping[str, str]]) -> None:
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    grid = Table("", *columns, box=None, pad_edge=False)
    for column in grid.columns[1:]:
        column.justify = "right"
    for label, row in rows.items():
        grid.add_row(Text(label), *(Text(row.get(c, NOTHING)) for c in columns))
    console = Console()
    if not console.is_terminal:  # a file has no width: there no number is cut
        console = Console(width=Console(width=10_000).measure(grid).maximum)
    console.print(grid)


def _number(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}"


def _journal(store: Store, run: str | None) -> Journal:
    for journal in journals(store):
        if run is None or journal.run_id.startswith(run):
            return journal
    wanted = f"no run '{run}'" if run else "no runs"
    raise StoreError(f"store {store.where}: {wanted} in it; `ratchet status` lists them")
