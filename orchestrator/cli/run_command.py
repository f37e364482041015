"""A whole run, from its settings to its report, as the command line and the Python API start it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import InputError
from ratchet.orchestrator import recipe
from ratchet.orchestrator.cli import console
from ratchet.orchestrator.cli.live_view import LiveView
from ratchet.orchestrator.job_interface.terminal import print_clean
from ratchet.orchestrator.reporting import trackers
from ratchet.orchestrator.reporting.report import write_report
from ratchet.orchestrator.reporting.run_summary import build_run_report
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.open_runs import OpenRun

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
    notify: str | None = None,
) -> Run:
    """Run a recipe, or continue a run, and print its progress. Return the run, which may have failed steps.

    name: name or file of the recipe. argv: the command that repeats the run. address: address of a Ray cluster. repair:
    compute damaged results again. target: new folder for the first result of the recipe. notify: URL for notifications
    (default: the environment variable RATCHET_NOTIFY). Raises InputError for wrong input."""
    if target and (target.exists() or not target.absolute().parent.is_dir()):
        if target.exists():
            what = "exists already"
        else:
            what = "is in a folder that does not exist"
        raise InputError(f"{target}: {what}; expected a new folder; give another name")
    from ratchet.orchestrator.execution.cluster import Cluster
    from ratchet.orchestrator.execution.notification import Notifier
    from ratchet.orchestrator.execution.run import Run, begin

    about = {"recipe": name, "store": store.where, "command": shlex.join(argv)}
    with ExitStack() as stack:
        notifier = stack.enter_context(Notifier(notify or os.environ.get("RATCHET_NOTIFY"), **about))
        found = recipe.find(name)
        steps, summary, parameters = recipe.build(found, settings, store)
        if target and not summary.results:
            raise InputError(
                f"--out {target}: {name} has no result to copy; expected a job, or a recipe that writes a model,"
                " vectors or an index; leave it out"
            )
        cluster = stack.enter_context(closing(Cluster(address, recipe.list_modules(found, steps))))
        open_run = stack.enter_context(OpenRun(store))
        plan, run_log = begin(found, steps, store, parameters, argv, repair, cluster)
        open_run.set_folder(run_log.folder)
        notifier.about |= {"recipe": found.name, "run": run_log.run_id}
        console.print_warnings(plan, summary)
        with LiveView(list(plan.steps), found.name, run_log.run_id) as view:
            run = Run(found, summary, plan, cluster, run_log, view, notifier=notifier)
            run.execute()
        report = build_run_report(run)
        write_report(run_log.folder, report)
        run.copy_files()
        if target:
            run.copy_result(target)
            if target.exists():
                print_clean(f"written: {target}")
        console.print_outcome(run)
        store.publish(run_log.folder)
        numbers = trackers.list_numbers(report)
        page = str(run_log.folder / "report.html")
        notifier.run_ended(run.word, report.seconds, run.failures, numbers=numbers, report=page)
        for note in trackers.publish(report, run_log.folder):
            print_clean(f"note: {note}", sys.stderr)
    return run
