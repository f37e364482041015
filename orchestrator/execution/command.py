"""A whole run, from its settings to its report, as the command line and the Python API start it."""

from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import InputError
from ratchet.orchestrator import recipe
from ratchet.orchestrator.execution.live_view import LiveView
from ratchet.orchestrator.job_interface.clean_output import OutputError, print_clean, print_error
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.reporting.formatting import print_table
from ratchet.orchestrator.reporting.report import write_report
from ratchet.orchestrator.reporting.run_data import RunReport, build_comparisons, build_summary
from ratchet.orchestrator.reporting.run_summary import build_run_report, list_unreported_metrics
from ratchet.orchestrator.step import Summary
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.lease import OpenRun

if TYPE_CHECKING:  # it imports Ray
    from ratchet.orchestrator.execution.run import Run


def run_recipe(
    name: str,
    settings: recipe.Settings,
    store: Store,
    argv: Sequence[str],
    *,
    address: str | None = None,
    repair: bool = False,
    target: Path | None = None,
    full: bool = False,
) -> "Run":
    """Run a recipe, or continue a run, and print its progress. Return the run, which may have failed steps.

    name: name or file of the recipe. argv: the command that repeats the run. address: address of a Ray cluster. repair:
    compute damaged results again. target: new folder for the first result of the recipe. full: print all rows. Raises
    InputError for wrong input."""
    if target and (target.exists() or not target.absolute().parent.is_dir()):
        what = "exists already" if target.exists() else "is in a folder that does not exist"
        raise InputError(f"{target}: {what}; expected a new folder; give another name")
    from ratchet.orchestrator.execution.cluster import Cluster
    from ratchet.orchestrator.execution.run import Run, begin

    found = recipe.find(name)
    steps, summary, parameters = recipe.build(found, settings, store)
    if target and not summary.results:
        raise InputError(
            f"--out {target}: {name} has no result to copy; expected a job, or a recipe that writes a model,"
            " vectors or an index; leave it out"
        )
    with (
        closing(Cluster(address, recipe.list_modules(found, steps))) as cluster,
        OpenRun(store) as open_run,
    ):
        plan, run_log = begin(found, steps, store, parameters, argv, repair, cluster)
        open_run.set_folder(run_log.folder)
        # A closed output does not fail a run: the command reports it at its end.
        with suppress(BrokenPipeError, OutputError):
            print_warnings(plan, summary)
        with LiveView(len(plan.steps), found.name, run_log.run_id) as view:
            run = Run(found, summary, plan, cluster, run_log, view)
            run.execute()
        report = build_run_report(run)
        write_report(run_log.folder, report)
        run.copy_files()
        if target:
            run.copy_result(target)
            if target.exists():
                print_clean(f"written: {target}")
        _print_outcome(run, report, full)
        store.backend.send(run_log.folder)
    return run


def print_warnings(plan: Plan, summary: Summary) -> None:
    """Print the steps that no row or goal of the summary depends on, its notes, and the warnings of the plan."""
    if summary.unreached:
        names = ", ".join(summary.unreached)
        print_error(
            f"warning: {names}: no row or goal of the Summary depends on it; it does not run"
        )
    for warning in (*summary.notes, *plan.warnings):
        print_error(f"warning: {warning}")


def _print_outcome(run: "Run", report: RunReport, full: bool) -> None:
    """Print the summary table of a run, its failures, the path of its report, and its best models with the command
    that exports each."""
    hidden = [] if full else report.details
    print_table(build_summary(report, hidden))
    if hidden:
        print_clean(f"not shown, but with --full and in the report: {'; '.join(hidden)}")
    if report.comparisons:
        print_table(build_comparisons(report))
    for line in list_unreported_metrics(run.plan, run.summary):
        print_error(f"warning: {line}")
    for name, message in run.failures.items():
        print_error(f"{name} failed: {message}")
        trace = run.run_log.trace_file(name)
        if trace.exists():
            print_error(f"  full traceback: {trace}")
    if run.interrupted or run.failures:
        print_clean("give the same command again to continue")
    for title, command in report.best.items():
        print_clean(f"{title}\n  {command}")
    for name in run.summary.files:
        path = run.run_log.folder / name
        if path.exists():
            print_clean(f"{name}: {path}")
    print_clean(f"report: {run.run_log.folder / 'report.html'}")
