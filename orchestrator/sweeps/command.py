"""The command `ratchet sweep`: check the options, run the trials, print the table, write the report."""

import argparse
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from ratchet.errors import RunError
from ratchet.orchestrator.atomic_file import write_atomically
from ratchet.orchestrator.execution.cluster import Cluster, check_cluster_address
from ratchet.orchestrator.execution.executor import versions
from ratchet.orchestrator.execution.live_view import LiveView
from ratchet.orchestrator.job_interface.clean_output import print_clean, print_error
from ratchet.orchestrator.job_interface.settings import write_lines
from ratchet.orchestrator.recipe import list_modules
from ratchet.orchestrator.reporting.formatting import judge_difference, pluralize, print_table
from ratchet.orchestrator.reporting.report import write_report
from ratchet.orchestrator.reporting.sweep_data import SweepReport, Trial, build_trials, list_rows
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.lease import OpenRun
from ratchet.orchestrator.sweeps.plan import SweepPlan, plan_sweep

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Sweep:
    """A sweep that has ended: its trials, winner and report."""

    folder: Path
    data: SweepReport
    interrupted: bool

    @property
    def table(self) -> "pd.DataFrame":
        """A row per trial, the best first: settings that vary, the metric, status and seconds."""
        import pandas as pd

        return pd.DataFrame(list_rows(self.data)).set_index("")

    @property
    def settings(self) -> Mapping[str, str]:
        """The winner's values of the settings in the space. Raises RunError if no trial finished."""
        if self.data.best is None:
            raise RunError(
                f"sweep {self.data.sweep_id}: no trial finished; expected one; see {self.report}"
            )
        return self.data.best.settings

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.folder / "report.html"


def run_sweep(arguments: argparse.Namespace, lines: Sequence[str], argv: Sequence[str]) -> Sweep:
    """Run a sweep, and print its progress and results. lines: the `name=value` settings of all trials."""
    store = Store.open(arguments.store)
    command = shlex.join(argv)
    with OpenRun(store) as open_run:
        check_cluster_address(arguments.address or os.environ.get("RAY_ADDRESS"))
        sweep = plan_sweep(
            arguments.recipe, lines, arguments.space, arguments.metric, store, command
        )
        folder = sweep.run_log.folder
        open_run.set_folder(folder)
        with closing(
            Cluster(arguments.address, list_modules(sweep.recipe, sweep.steps))
        ) as cluster:
            trials, finished = _run_trials(sweep, arguments, cluster, store)
        report = build_sweep_report(sweep, trials, command)
        print_table(build_trials(report))
        for number, trial in enumerate(report.trials, 1):
            if trial.reason:
                print_error(f"trial {number} failed: {trial.reason}")
        print_clean(report.conclusion)
        if report.winner_command:
            print_clean(f"winner: {report.winner_command}")
        print_clean(f"report: {write_report(folder, report)[0]}")
        store.backend.send(folder)
    if not finished:
        print_clean("give the same command again to continue: finished steps are not run again")
    return Sweep(folder, report, not finished)


def _run_trials(
    sweep: SweepPlan, arguments: argparse.Namespace, cluster: Cluster, store: Store
) -> tuple[list[Trial], bool]:
    """Run the trials. Return them, and whether all ended."""
    points = sweep.space.draw_points(arguments.trials, arguments.seed)
    title = f"sweep {sweep.recipe.name}"
    with LiveView(len(points), title, sweep.run_log.run_id, noun="trial") as view:
        for note in sweep.notes:
            view.message(note)
        view.message("starting Ray" if not cluster.address else f"connecting to {cluster.address}")
        cluster.start()
        from ratchet.orchestrator.sweeps.search import (
            Search,
            choose_gpus_per_trial,
            compute_max_concurrent,
        )
        from ratchet.orchestrator.sweeps.trial import TrialSpec, limit_workers

        gpus = choose_gpus_per_trial(cluster, len(points), arguments.gpus_per_trial)
        steps = [limit_workers(step, gpus) for step in sweep.steps]
        max_concurrent = arguments.max_concurrent or compute_max_concurrent(steps, cluster)
        objective = sweep.objective
        each = f" with {pluralize(gpus, 'GPU')} each" if gpus else ""
        view.message(
            f"objective: {objective.name} of {objective.step}; {max_concurrent} trials at once{each}"
        )
        spec = TrialSpec(
            sweep,
            Path.cwd(),
            arguments.seeds,
            store.where,
            cluster.progress_actor,
            tuple(points),
            gpus,
        )
        search = Search(spec, arguments, max_concurrent, view)
        search.run()
    return list(search.trials.values()), search.ended == len(points)


def build_sweep_report(sweep: SweepPlan, trials: Sequence[Trial], command: str) -> SweepReport:
    """Build the report of the trials, which are in the order in which they were started. Write `winner.yaml` if one of
    them finished."""
    objective = sweep.objective
    started = (sweep.run_log.read("about.json") or {})["started"]
    report = SweepReport(
        recipe=sweep.recipe.name,
        sweep_id=sweep.run_log.run_id,
        metric=objective.metric,
        maximize=objective.maximize,
        started=started,
        seconds=time.time() - started,
        command=command,
        space={dimension.name: dimension.written for dimension in sweep.space.dimensions},
        fixed=sweep.lines,
        trials=trials,
        notes=(f"objective: {objective.name} of {objective.step}", *sweep.notes),
        provenance=versions(),
    )
    best = report.best
    if best is None:
        return report
    default = next((trial for trial in trials if not trial.settings), None)
    conclusion = compare_with_defaults(best, default, objective.metric)
    if best.note:
        conclusion += f"; the winner {best.note}"
    given = ["ratchet", "run", sweep.given, "--settings", str(write_winner(sweep, best))]
    return replace(report, conclusion=conclusion, winner_command=shlex.join(given))


def compare_with_defaults(best: Trial, default: Trial | None, metric: str) -> str:
    """Return a sentence on whether the winner beats the defaults by more than noise (see `judge_difference`). The
    winner is the maximum of many trials, so this test slightly favours it."""
    won = best.estimate or 0.0
    if default is None or default.status != "finished":
        return f"the best {metric} is {won:.4f}; the defaults did not finish, so there is nothing to compare with"
    usual = default.estimate or 0.0
    if best.settings == default.settings:
        return f"nothing was better than the recipe's defaults ({metric} {won:.4f})"
    sentence = f"{metric} {won:.4f} against {usual:.4f} with the recipe's defaults"
    verdict = judge_difference(usual, won)
    if verdict:
        return f"{sentence}: {verdict}"
    return f"{sentence}; one seed per trial cannot show whether this is noise; use --seeds 3"


def write_winner(sweep: SweepPlan, best: Trial) -> Path:
    """Write winner.yaml, for `ratchet run RECIPE --settings FILE`, into the sweep's folder; return its path."""
    settings: dict[str, str] = {}
    for line in (*sweep.lines, *write_lines(best.settings)):
        name, _, value = line.partition("=")
        settings.pop(name, None)  # the last of overlapping patterns counts, so it must stay last
        settings[name] = value
    path = sweep.run_log.folder / "winner.yaml"
    about = (
        f"# {sweep.objective.metric} {best.value:.6g}, the best trial of {sweep.run_log.run_id}\n"
    )
    write_atomically(path, about + yaml.safe_dump(settings, sort_keys=False))
    return path
