"""The output of the commands: texts, and tables of texts and numbers."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Collection, Mapping, Sequence
from inspect import Parameter
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from ratchet.orchestrator.job_interface.settings import describe_settings
from ratchet.orchestrator.job_interface.terminal import CleanConsole, print_clean
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.recipe import Recipe
from ratchet.orchestrator.reporting.formatting import NOTHING, format_duration, format_with_deviation, pluralize
from ratchet.orchestrator.reporting.run_summary import build_summary_table, list_unreported_metrics
from ratchet.orchestrator.reporting.sweep_data import SweepReport, format_trials
from ratchet.orchestrator.reporting.tables import collect_columns
from ratchet.orchestrator.run_models import read_best
from ratchet.orchestrator.step import Step, Summary

if TYPE_CHECKING:  # `run` imports Ray
    from ratchet.orchestrator.execution.run import Run
    from ratchet.orchestrator.needs import StepNeeds


HELP = textwrap.TextWrapper(112, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False)


def print_error(text: str) -> None:
    """Print a line on the standard error."""
    print_clean(f"ratchet: {text}", sys.stderr)


def print_outcome(run: Run) -> None:
    """Print the summary table of a run, its failures, the path of its report, and its best models with the code that
    loads and the command that exports each."""
    _print_summary(build_summary_table(run.plan, run.summary))
    for line in list_unreported_metrics(run.plan, run.summary):
        print_error(f"warning: {line}")
    for name, message in run.failures.items():
        print_error(f"{name} failed: {message}")
        trace = run.run_log.trace_file(name)
        if trace.exists():
            print_error(f"  full traceback: {trace}")
    if run.interrupted or run.failures:
        print_clean("give the same command again to continue")
    if run.summary.best:
        for one in read_best(run.plan.store, run.run_log):
            uses = f"{one.write_code(run.plan.store)}\n  ratchet export {one.name} FOLDER"
            if not one.changed:
                title = f"{one.remark}, offered as {one.best_as}"
            else:
                title = f"best {one.best_as}"
            print_clean(f"{title}: {one.name}  {one.format_metric()}\n  {uses}")
    for name in run.summary.files:
        path = run.run_log.folder / name
        if path.exists():
            print_clean(f"{name}: {path}")
    print_clean(f"report: {run.run_log.folder / 'report.html'}")


def print_sweep(data: SweepReport) -> None:
    """Print the table of trials, the failures, and the comparison with the defaults."""
    print_table(format_trials(data))
    for trial in data.trials:
        if trial.reason:
            print_error(f"trial {trial.number} failed: {trial.reason}")
    print_clean(data.conclusion)


def print_warnings(plan: Plan, summary: Summary) -> None:
    """Print the steps that no row or goal of the summary depends on, and the warnings of the plan."""
    if summary.unreached:
        names = ", ".join(summary.unreached)
        print_error(f"warning: {names}: no row or goal of the Summary depends on it; it does not run")
    for warning in plan.warnings:
        print_error(f"warning: {warning}")


def print_plan(plan: Plan, before: Mapping[str, str], needs: Mapping[str, StepNeeds], *, explain: bool) -> None:
    """Print a line per step with its state (done, to run, open), and needs. before: step name -> step id in
    the last run. needs: step name -> its needs. explain: also print why steps are not done."""
    console = CleanConsole(soft_wrap=True, highlight=False)
    colours = {"done": "green", "to run": "yellow", "open": "dim"}
    width = max((len(name) for name in plan.steps), default=0)
    for name, planned in plan.steps.items():
        state = Text(f"{planned.state:<8}", style=colours[planned.state])
        if name in needs:
            parts = [_format_needs(needs[name])]
        else:
            parts = []
        rest = f"  {planned.step_id:<12.12}  {', '.join(parts)}".rstrip()
        console.print(Text(f"{name:<{width}}  "), state, Text(rest), sep="")
        if explain:
            for reason in plan.explain(name, before):
                console.print(Text(f"    {reason}", style="dim"))
    missing = plan.missing()
    last = f"{len(plan.steps) - len(missing)} of {pluralize(len(plan.steps), 'step')} done; {len(missing)} would run"
    if any(planned.state == "open" for planned in plan.steps.values()):
        last += " (open: fewer if the steps before them give the same results as in an earlier run)"
    console.print(last)
    if total := _format_total(needs.values()):
        console.print(Text(total))


def print_recipes(recipes: Sequence[Recipe], jobs: Sequence[str]) -> None:
    """Print the name and the first line of each recipe, and the names of the jobs."""
    for recipe in recipes:
        lines = recipe.doc.splitlines()
        print_clean(f"{recipe.name:<16} {lines[0] if lines else ''}")
    print_clean("\nA job is a recipe of one step:")
    print_clean(textwrap.fill(", ".join(jobs), 120))
    print_clean("\n`ratchet recipes NAME` shows the parameters and the steps of a recipe")


def print_recipe(recipe: Recipe, steps: Sequence[Step]) -> None:
    """Print the documentation and the parameters of a recipe, and `steps` by job if there are any."""
    print_clean(f"{recipe.name}\n\n{recipe.doc}\n\nParameters (--set NAME=VALUE):")
    settings = describe_settings(recipe.function)
    name_width, type_width = (max((len(getattr(s, part)) for s in settings), default=0) for part in ("name", "type"))
    for s in settings:
        default = s.default or ("required" if recipe.parameters[s.name].default is Parameter.empty else "''")
        print_clean(f"  {s.name:<{name_width}}  {s.type:<{type_width}}  {default}")
        if s.help:
            print_clean(HELP.fill(s.help))
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
    print_clean("\n`ratchet recipes jobs/JOB` shows the settings of a job")


def _print_summary(rows: Mapping[str, Mapping[str, float | None]]) -> None:
    print_table({label: {c: _format_cell(c, value) for c, value in row.items()} for label, row in rows.items()})


def _format_cell(column: str, value: float | None) -> str:
    if value is None or column == "time":
        return format_duration(value)
    return format_with_deviation(value, format_number)


def _format_needs(own: StepNeeds) -> str:
    """Format the needs of a step: workers, memory, disk, and the hours on the GPUs if they are known."""
    needs = own.needs
    workers = own.resources.workers or 1
    if workers > 1:
        parts = [f"{workers} workers"]
    else:
        parts = []
    if needs.gpu_memory:
        parts.append(f"GPU {needs.gpu_memory:.1f} GB")
    if needs.memory:
        parts.append(f"memory {needs.memory:.1f} GB")
    if needs.disk >= 0.05:
        parts.append(f"disk {needs.disk:.1f} GB")
    if own.hours is not None:
        parts.append(f"at most {format_duration(own.hours * 3600)}")
    return ", ".join(parts)


def _format_total(needs: Collection[StepNeeds]) -> str:
    """Format the hours, GPU-hours and disk space of all steps together; empty if no step uses a GPU."""
    on_gpus = []
    for own in needs:
        if own.needs.gpu_memory:
            on_gpus.append(own)
    known = []
    for own in on_gpus:
        if own.hours is not None:
            known.append(own)
    hours = sum(own.hours or 0.0 for own in known)
    gpu_hours = sum((own.hours or 0.0) * (own.resources.workers or 1) * (own.resources.gpus or 0.0) for own in known)
    if known:
        parts = [f"at most {format_duration(hours * 3600)}, {gpu_hours:.1f} GPU-hours"]
    else:
        parts = []
    if len(known) < len(on_gpus):
        parts.append(f"{len(on_gpus) - len(known)} steps of unknown length")
    if on_gpus:
        return "; ".join([*parts, f"disk {sum(own.needs.disk for own in needs):.1f} GB"])
    return ""


def print_table(rows: Mapping[str, Mapping[str, str]]) -> None:
    """Print a table of numbers with a label for each row."""
    columns = collect_columns(rows.values())
    lines = []
    for label, row in rows.items():
        lines.append([label, *(row.get(c, NOTHING) for c in columns)])
    print_grid(["", *columns], lines, numbers=columns)


def print_grid(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> None:
    """Print a table. Words are never cut: if the terminal is too narrow for the longest words, it wraps the lines.
    numbers: the columns to align on the right."""
    grid = Table(box=None, pad_edge=False)
    for name, *cells in zip(header, *rows, strict=True):
        longest = max((cell_len(word) for cell in (name, *cells) for word in cell.split()), default=0)
        grid.add_column(name, justify="right" if name in numbers else "left", min_width=longest)
    for row in rows:
        grid.add_row(*map(Text, row))
    console = CleanConsole()
    needed = CleanConsole(width=10_000).measure(grid)
    if console.is_terminal:
        width = max(console.width, needed.minimum)
    else:
        width = needed.maximum
    CleanConsole(width=width).print(grid)


def format_time(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def format_number(value: float) -> str:
    if abs(value) < 10:
        return f"{value:z.4f}"
    return f"{value:,.1f}".removesuffix(".0")
