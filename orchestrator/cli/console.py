"""The output of the commands."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from ratchet.errors import DamagedError, StoreError
from ratchet.orchestrator.job_interface.settings import describe_parameters
from ratchet.orchestrator.job_interface.terminal import CleanConsole, print_clean
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.recipe import Recipe
from ratchet.orchestrator.reporting.formatting import NOTHING, format_duration, format_with_deviation, pluralize
from ratchet.orchestrator.reporting.run_diff import compare_runs
from ratchet.orchestrator.reporting.run_summary import build_summary_table, list_unreported_metrics
from ratchet.orchestrator.reporting.sweep_data import SweepReport, format_trials
from ratchet.orchestrator.run_log import RunLog, list_run_logs, list_sweeps
from ratchet.orchestrator.run_models import RunModel, read_best, read_models
from ratchet.orchestrator.step import Step, Summary
from ratchet.orchestrator.store import Store, audit_log, gc
from ratchet.orchestrator.store.lease import list_lease_holders
from ratchet.orchestrator.store.open_runs import list_open_runs
from ratchet.orchestrator.store.verification import verify

if TYPE_CHECKING:  # they import Ray
    from ratchet.orchestrator.execution.run import Run
    from ratchet.orchestrator.needs import StepNeeds

MAX_LISTED = 50
"""Maximum number of removable folders that `gc` lists one by one."""


def print_error(text: str) -> None:
    """Print a line on the standard error."""
    print_clean(f"ratchet: {text}", sys.stderr)


def print_outcome(run: Run) -> None:
    """Print the summary table of a run, its failures, and the path of the report."""
    _print_summary(build_summary_table(run.plan, run.summary))
    for line in list_unreported_metrics(run.plan, run.summary):
        print_error(f"warning: {line}")
    for name, message in run.failures.items():
        print_error(f"{name} failed: {message}")
        if (trace := run.run_log.trace_file(name)).exists():
            print_error(f"  full traceback: {trace}")
    if run.interrupted or run.failures:
        print_clean("give the same command again to continue")
    if run.summary.best:
        print_best(run.plan.store, run.run_log)
    for name in run.summary.files:
        if (path := run.run_log.folder / name).exists():
            print_clean(f"{name}: {path}")
    print_clean(f"report: {run.run_log.folder / 'report.html'}")


def print_target(target: Path) -> None:
    """Print where the result of a run was put; nothing if there is none."""
    if target.exists():
        print_clean(f"written: {target}")


def print_best(store: Store, run_log: RunLog) -> None:
    """Print the models that a run ended with, and how to load them."""
    for one in read_best(store, run_log):
        print_clean(f"best {one.best_as}: {one.name}  {one.format_metric()}\n  {one.write_code(store)}")


def print_sweep(data: SweepReport) -> None:
    """Print the table of trials, the failures, and the comparison with the defaults."""
    _print_table(format_trials(data))
    for trial in data.trials:
        if trial.reason:
            print_error(f"trial {trial.number} failed: {trial.reason}")
    print_clean(data.conclusion)


def print_warnings(plan: Plan, summary: Summary) -> None:
    """Print the steps that the recipe made for nothing, and what of the jobs' code could not be followed."""
    if summary.unreached:
        names = ", ".join(summary.unreached)
        print_error(f"warning: {names}: no row or goal of the Summary depends on it; it does not run")
    for warning in plan.warnings:
        print_error(f"warning: {warning}")


def print_plan(plan: Plan, before: Mapping[str, str], needs: Mapping[str, StepNeeds], *, explain: bool) -> None:
    """Print a line per step: done, to run, or open, with what it needs. before: step ids of the last run. explain:
    print the reasons too."""
    console = CleanConsole(soft_wrap=True, highlight=False)
    shown = {"hit": ("done", "green"), "miss": ("to run", "yellow"), "unknown": ("open", "dim")}
    width = max((len(name) for name in plan.steps), default=0)
    for name, planned in plan.steps.items():
        word, colour = shown[planned.state]
        state = Text(f"{word:<8}", style=colour)
        earlier = plan.store.lookup(before[name]) if planned.commit is None and name in before else None
        parts = [_format_needs(needs[name])] if name in needs else []
        parts += [f"last time {format_duration(earlier.record['seconds'])}"] if earlier else []
        rest = f"  {(planned.step_id or ''):<12.12}  {', '.join(parts)}".rstrip()
        console.print(Text(f"{name:<{width}}  "), state, Text(rest), sep="")
        for reason in plan.explain(name, before) if explain else []:
            console.print(Text(f"    {reason}", style="dim"))
    missing = plan.missing()
    last = f"{len(plan.steps) - len(missing)} of {pluralize(len(plan.steps), 'step')} done; {len(missing)} would run"
    if any(planned.state == "unknown" for planned in plan.steps.values()):
        last += " (open: fewer if the steps before them give the same results as in an earlier run)"
    console.print(last)
    if total := _format_total(needs.values()):
        console.print(Text(total))


def print_recipes(recipes: Sequence[Recipe]) -> None:
    """Print the name and the first line of each recipe."""
    for recipe in recipes:
        lines = recipe.doc.splitlines()
        print_clean(f"{recipe.name:<16} {lines[0] if lines else ''}")
    print_clean("\n`ratchet recipes NAME` shows the parameters and the steps of a recipe")


def print_recipe(recipe: Recipe, steps: Sequence[Step]) -> None:
    """Print the documentation of a recipe, its parameters, and its steps by job, if they are known."""
    print_clean(f"{recipe.name}\n\n{recipe.doc}\n\nParameters (--set NAME=VALUE):")
    rows = [
        (s.name, s.type, s.default or ("required" if recipe.parameters[s.name].default is Parameter.empty else "''"))
        for s in describe_parameters(recipe.function)
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
    for name, kind, default in rows:
        print_clean(f"  {name:<{widths[0]}}  {kind:<{widths[1]}}  {default}")
    if not steps:
        print_clean(f"\n`ratchet plan {recipe.name} --set ...` lists the steps")
        return
    jobs: dict[str, list[str]] = {}
    for step in steps:
        jobs.setdefault(step.job.name, []).append(step.name)
    width = max(map(len, jobs))
    print_clean("\nSteps by job (--set JOB.SETTING=VALUE, or STEP.SETTING=VALUE for one step):")
    for job, names in jobs.items():
        print_clean(f"  {job:<{width}}  {', '.join(names)}")
    print_clean("\n`python -m jobs JOB --help` lists the settings of a job")


def print_status(store: Store, run: str | None) -> None:
    """Print all runs, newest first, or the steps of one run."""
    if run is not None:
        run_log = _find_run(store, run)
        grid = Table("step", "status", "seconds", "note", box=None, pad_edge=False)
        latest = {event["step"]: event for event in run_log.events()}
        for step in run_log.steps():
            event = latest.get(step["name"], {"event": "pending"})
            note = event.get("reason") or event.get("on") or event.get("because") or ""
            grid.add_row(
                Text(step["name"]),
                event["event"],
                format_duration(event.get("seconds")),
                Text(note.splitlines()[0] if note else ""),
            )
        _print_grid(grid)
        return
    grid = Table("run", "recipe", "started", "steps", "state", box=None, pad_edge=False)
    running = {mark["run"] for mark in list_open_runs(store)}
    for run_log in list_run_logs(store):
        try:
            about, steps = run_log.read("about.json") or {}, run_log.steps()
        except DamagedError as error:
            grid.add_row(run_log.run_id, NOTHING, NOTHING, NOTHING, Text(f"damaged: {error}"))
            continue
        done = sum(step.get("status") == "done" for step in steps)
        state = run_log.find_end() or ("running" if f"runs/{run_log.run_id}" in running else "killed")
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(about.get("started", 0)))
        grid.add_row(run_log.run_id, Text(str(about.get("recipe"))), started, f"{done}/{len(steps)}", state)
    if grid.row_count:
        _print_grid(grid)
    else:
        print_clean(f"no runs in {store.where}")
    for sweep in list_sweeps(store):
        events = sweep.events()
        begun = {json.dumps(event["settings"]) for event in events if event["event"] == "started"}
        ended = {json.dumps(event["trial"]["settings"]) for event in events if event["event"] == "ended"}
        print_clean(
            f"sweep {sweep.run_id}: {len(ended)} of {pluralize(len(begun), 'started trial')} ended; {sweep.folder}"
        )
    for step_id, owner in list_lease_holders(store):
        print_clean(f"step {step_id[:12]} is held by {owner}")


def print_models(store: Store, run: str, as_json: bool) -> None:
    """Print the models of the runs whose ids begin with `run`, a line for each; with `as_json` all that is known of
    them."""
    models: list[RunModel] = []
    for run_log in list_run_logs(store):
        try:
            models += read_models(store, run_log) if run_log.run_id.startswith(run) else ()
        except DamagedError as error:
            print_error(f"run {run_log.run_id}: {error}")
    if as_json:
        print_clean(json.dumps([{"name": one.name, **asdict(one)} for one in models], indent=1))
        return
    grid = Table("model", "kind", "row", "metric", "base", "MB", "run started", box=None, pad_edge=False)
    grid.columns[5].justify = "right"
    for one in models:
        best = " (best)" if one.best_as else ""
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.started))
        size, base = f"{one.bytes / 1e6:,.1f}", Text(one.base or NOTHING)
        grid.add_row(Text(one.name + best), one.kind, Text(one.row), one.format_metric(), base, size, started)
    if grid.row_count:
        _print_grid(grid)
    else:
        print_clean(f"no models in {store.where}")


def print_log(store: Store, limit: int, run: str) -> None:
    """Print the newest records of the audit log, the newest last; only those of runs whose id starts with `run`."""
    grid = Table("time", "what", "MB", "step or name", "object", "by", "run", box=None, pad_edge=False)
    grid.columns[2].justify = "right"
    for event in audit_log.read_newest(store, limit, run):
        subject = f"{event['things']:,} things" if "things" in event else event.get("name") or ""
        grid.add_row(
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["at"])),
            event["what"],
            f"{event['bytes'] / 1e6:,.1f}" if "bytes" in event else NOTHING,
            Text(" ".join(filter(None, [subject, event.get("step", "")[:12]]))),
            event.get("object", NOTHING)[:12],
            Text(f"{event['user']}@{event['host']}"),
            Text(event["run"] or NOTHING),
        )
    _print_grid(grid)


def print_report(store: Store, run: str | None) -> None:
    """Print the Markdown report of a run and the path of the HTML report."""
    run_log = _find_run(store, run)
    path = run_log.folder / "report.md"
    if not path.exists():
        others = (other.run_id for other in list_run_logs(store) if (other.folder / "report.md").exists())
        other = next((f"; `ratchet report {run_id}` shows the newest report" for run_id in others), "")
        raise StoreError(
            f"run {run_log.run_id}: no report; expected a run that ended; give its command again to continue it{other}"
        )
    print_clean(path.read_text())
    print_clean(f"report: {run_log.folder / 'report.html'}")


def print_diff(store: Store, before: str, after: str, as_json: bool) -> None:
    """Print what differs between two runs."""
    found = compare_runs(store, _find_run(store, before), _find_run(store, after))
    if as_json:
        verdicts = [{**asdict(one), "verdict": one.verdict} for one in found.numbers]
        print_clean(json.dumps({**asdict(found), "numbers": verdicts}, indent=1))
        return
    print_clean(f"before: {found.runs[0]}, {format_duration(found.seconds[0])}")
    print_clean(f"after:  {found.runs[1]}, {format_duration(found.seconds[1])}")
    for name, (old, new) in found.parameters.items():
        print_clean(f"parameter {name}: {old!r} -> {new!r}")
    grid = Table("row", "column", "before", "after", "difference", "", box=None, pad_edge=False)
    for one in found.numbers:
        if one.after != one.before:
            cells = (f"{one.before:.4f}", f"{one.after:.4f}", f"{one.after - one.before:+.4f}")
            grid.add_row(Text(one.row), Text(one.column), *cells, one.verdict)
    if grid.row_count:
        _print_grid(grid)
    for step in found.steps:
        old, new = (format_duration(seconds) for seconds in step.seconds)
        print_clean(f"step {step.name}: {old} -> {new}")
        for change in step.changes:
            print_clean(f"    {change}")
    print_clean(f"{pluralize(found.equal_steps, 'step')} with the same identity")


def collect_garbage(store: Store, keep: int, grace_period: float, delete: bool) -> None:
    """Print what `gc` would remove, the largest first; remove it if `delete` is true. `grace_period`: seconds."""
    garbage = gc.plan(store, keep=keep, grace=grace_period, on_note=print_clean)
    for item in sorted(garbage, key=lambda item: -item.bytes)[:MAX_LISTED]:
        print_clean(str(item))
    if len(garbage) > MAX_LISTED:
        print_clean(f"{len(garbage) - MAX_LISTED:,} smaller ones are not shown")
    if delete:
        garbage = gc.sweep(store, garbage, keep=keep, grace=grace_period)
    things, size = Counter[str](), Counter[str]()
    for item in garbage:
        things[item.why] += 1
        size[item.why] += item.bytes
    if things:
        _print_table({why: {"things": f"{things[why]:,}", "MB": f"{size[why] / 1e6:,.1f}"} for why in things})
    done = "removed" if delete else "could be removed; --yes removes them"
    print_clean(f"{len(garbage):,} things, {size.total() / 1e6:,.1f} MB {done}")


def verify_store(store: Store, sample: float) -> bool:
    """Check all results, print what is damaged, and return whether nothing is. sample: fraction of files to read."""
    found = verify(store, sample)
    for problem in found.problems:
        print_clean(problem)
    print_clean(
        f"{pluralize(found.commits, 'result')} in {pluralize(found.objects, 'object')}; content of"
        f" {found.files_read:,} of {pluralize(found.files, 'file')} read, {found.bytes_read / 1e6:,.1f} MB;"
        f" {pluralize(len(found.problems), 'problem') if found.problems else 'no damage'}"
    )
    return not found.problems


def _print_summary(rows: Mapping[str, Mapping[str, float | None]]) -> None:
    _print_table(
        {
            label: {c: format_duration(value) if c == "time" else _format_value(value) for c, value in row.items()}
            for label, row in rows.items()
        }
    )


def _print_table(rows: Mapping[str, Mapping[str, str]]) -> None:
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    grid = Table("", *columns, box=None, pad_edge=False)
    for column in grid.columns[1:]:
        column.justify = "right"
    for label, row in rows.items():
        grid.add_row(Text(label), *(Text(row.get(c, NOTHING)) for c in columns))
    _print_grid(grid)


def _print_grid(grid: Table) -> None:
    """Print a table. Words are never cut: a terminal that is too narrow for the longest ones wraps the lines."""
    for column in grid.columns:
        cells = (str(cell) for cell in (column.header, *column.cells))
        column.min_width = max((cell_len(word) for cell in cells for word in cell.split()), default=0)
    console, needed = CleanConsole(), CleanConsole(width=10_000).measure(grid)
    width = max(console.width, needed.minimum) if console.is_terminal else needed.maximum
    CleanConsole(width=width).print(grid)


def _format_value(value: float | None) -> str:
    if value is None:
        return NOTHING
    return format_with_deviation(value, _format_number)


def _format_number(value: float) -> str:
    return f"{value:z.4f}" if abs(value) < 10 else f"{value:,.1f}".removesuffix(".0")


def _find_run(store: Store, run: str | None) -> RunLog:
    for run_log in list_run_logs(store):
        if run is None or run_log.run_id.startswith(run):
            return run_log
    wanted = f"no run '{run}'" if run else "no runs"
    raise StoreError(f"store {store.where}: {wanted} in it; `ratchet status` lists them")


def _format_needs(own: StepNeeds) -> str:
    """Return the memory and disk of a step, and its time on the GPUs where it is known."""
    needs, workers = own.needs, own.resources.workers or 1
    parts = [f"{workers} workers"] if workers > 1 else []
    parts += [f"GPU {needs.gpu_memory:.1f} GB"] if needs.gpu_memory else []
    parts += [f"memory {needs.memory:.1f} GB"]
    parts += [f"disk {needs.disk:.1f} GB"] if needs.disk >= 0.05 else []
    parts += [f"at most {format_duration(own.hours * 3600)}"] if own.hours is not None else []
    return ", ".join(parts)


def _format_total(needs: Collection[StepNeeds]) -> str:
    """Return the totals of all steps, or an empty string without GPUs."""
    on_gpus = [own for own in needs if own.needs.gpu_memory]
    known = [own for own in on_gpus if own.hours is not None]
    hours = sum(own.hours or 0.0 for own in known)
    gpu_hours = sum((own.hours or 0.0) * (own.resources.workers or 1) * (own.resources.gpus or 0.0) for own in known)
    parts = [f"at most {format_duration(hours * 3600)}, {gpu_hours:.1f} GPU-hours"] if known else []
    parts += [f"{len(on_gpus) - len(known)} steps of unknown length"] if len(known) < len(on_gpus) else []
    return "; ".join([*parts, f"disk {sum(own.needs.disk for own in needs):.1f} GB"]) if on_gpus else ""
