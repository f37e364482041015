"""The commands on a store: status, models, report, gc and verify."""

import argparse
import json
from dataclasses import asdict, replace
from typing import Any

from ratchet.errors import DamagedError, InputError, StoreError
from ratchet.orchestrator import gc
from ratchet.orchestrator.job_interface.clean_output import print_clean
from ratchet.orchestrator.job_interface.settings import expect_one_of
from ratchet.orchestrator.remarks import Remark, add_remark, parse_remark, read_remarks
from ratchet.orchestrator.reporting import report_json
from ratchet.orchestrator.reporting.formatting import (
    NOTHING,
    build_table,
    format_local_time,
    pluralize,
    print_table,
)
from ratchet.orchestrator.reporting.report import write_report
from ratchet.orchestrator.run_log import RunLog, find_run_log, list_all_runs, list_run_logs
from ratchet.orchestrator.run_models import list_models
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.lease import list_open_runs
from ratchet.orchestrator.store.verification import verify

MAX_LISTED = 50
"""Maximum number of removable folders that `gc` lists one by one."""


def print_status(arguments: argparse.Namespace) -> None:
    """Print all runs (newest first), or the steps of a run."""
    store = Store.view(arguments.store)
    run = arguments.run
    if run is not None:
        found = list_run_steps(find_run_log(store, run))
    else:
        found = list_run_states(store)
    if arguments.json:
        print_clean(json.dumps(found, indent=1))
        return
    for row in found:
        if run is None:
            row["started"] = format_local_time(row["started"])
        else:
            row["note"] = row["note"].partition("\n")[0]
    if found:
        print_table(build_table(found))
    elif run is None:
        print_clean(f"no runs in {store.where}")
    if run is None:
        for sweep in list_all_runs(store, "sweeps"):
            trials = sweep.trials()
            ended = sum(trial["status"] != "unfinished" for trial in trials)
            count = f"{ended} of {pluralize(len(trials), 'started trial')} ended"
            print_clean(f"sweep {sweep.run_id}: {count}; {sweep.folder}")


def list_run_steps(run_log: RunLog) -> list[dict[str, Any]]:
    """Return the steps of a run with their last events."""
    latest = {event["step"]: event for event in run_log.events()}
    rows = []
    for step in run_log.steps():
        event = latest.get(step["name"], {"event": "pending"})
        rows.append(
            {
                "step": step["name"],
                "status": event["event"],
                "seconds": event.get("seconds"),
                "note": event.get("reason") or event.get("on") or event.get("because") or "",
            }
        )
    return rows


def list_run_states(store: Store) -> list[dict[str, Any]]:
    """Return id, recipe, start, steps and state of each run, the newest first."""
    running = {mark["run"] for mark in list_open_runs(store)}
    rows = []
    for run_log in list_run_logs(store):
        row: dict[str, Any] = {
            "run": run_log.run_id,
            "recipe": NOTHING,
            "started": None,
            "steps": NOTHING,
        }
        try:
            about = run_log.read("about.json") or {}
            steps = run_log.steps()
        except DamagedError as error:
            rows.append({**row, "state": f"damaged: {error}"})
            continue
        remarks = read_remarks(run_log)
        if remarks:
            row["note"] = "; ".join(f"{name} {one}".strip() for name, one in remarks.items())
        done = sum(step.get("status") == "done" for step in steps)
        state = run_log.find_end() or (
            "running" if f"runs/{run_log.run_id}" in running else "killed"
        )
        row |= {
            "recipe": str(about.get("recipe")),
            "started": about.get("started", 0),
            "steps": f"{done}/{len(steps)}",
            "state": state,
        }
        rows.append(row)
    return rows


def print_models(arguments: argparse.Namespace) -> None:
    """Print the models of the runs whose ids begin with `run`, as a table or with all their fields as JSON."""
    store = Store.view(arguments.store)
    models = list(list_models(store, arguments.run))
    if arguments.json:
        print_clean(json.dumps([{"name": one.name, **asdict(one)} for one in models], indent=1))
        return
    rows = []
    for one in models:
        rows.append(
            {
                "model": f"{one.name} ({one.remark})" if one.remark else one.name,
                "kind": one.kind,
                "row": one.row,
                "metric": one.format_metric(),
                "base": one.base or NOTHING,
                "MB": round(one.bytes / 1e6, 1),
                "run started": format_local_time(one.started),
            }
        )
    if rows:
        print_table(build_table(rows))
    else:
        print_clean(f"no models in {store.where}")


def print_report(arguments: argparse.Namespace) -> None:
    """Print the Markdown report of a run and the path of the HTML report."""
    store = Store.view(arguments.store)
    run_log = find_run_log(store, arguments.run)
    path = run_log.folder / "report.md"
    if not path.exists():
        raise StoreError(
            f"run {run_log.run_id}: no report; expected a run that ended; give its command again to continue it, or"
            " name another run (`ratchet status` lists them)"
        )
    print_clean(path.read_text())
    print_clean(f"report: {run_log.folder / 'report.html'}")


def add_note(arguments: argparse.Namespace) -> None:
    """Add numbers and words to a run or to a row of its table, and write its report again."""
    remark = parse_remark(arguments.remark)
    store = Store.open(arguments.store, create=False)
    run_log = find_run_log(store, arguments.run)
    data = report_json.read(run_log)
    known = data.rows if data else {}
    if arguments.row and arguments.row not in known:
        expected = expect_one_of(known, arguments.row)
        if not known:
            expected = "its run has no table yet; expected a run that ended; leave --row out"
        raise InputError(f"note --row {arguments.row}: {expected}")
    taken = {"note", *known.get(arguments.row, ())} & remark.numbers.keys()
    if taken:
        raise InputError(
            f"note {taken.pop()}: a column of the table given; expected another name, since a number that was measured"
            " stays"
        )
    add_remark(run_log, arguments.row, remark)
    remarks: dict[str, Remark] = {}
    while data is not None and remarks != read_remarks(run_log):  # another process may add one
        remarks = read_remarks(run_log)
        write_report(run_log.folder, replace(data, remarks=remarks))
    store.backend.send(run_log.folder)
    where = f", row {arguments.row}" if arguments.row else ""
    print_clean(f"run {run_log.run_id}{where}: {read_remarks(run_log)[arguments.row]}")


def collect_garbage(arguments: argparse.Namespace) -> None:
    """Print the garbage, the largest first, and remove it with --yes."""
    if arguments.yes:
        store = Store.open(arguments.store, create=False)
    else:
        store = Store.view(arguments.store)
    garbage = gc.find_garbage(store, keep=arguments.keep, grace=arguments.grace_period * 3600)
    for item in sorted(garbage, key=lambda item: -item.bytes)[:MAX_LISTED]:
        print_clean(str(item))
    if len(garbage) > MAX_LISTED:
        print_clean(f"{len(garbage) - MAX_LISTED:,} smaller ones are not shown")
    done = "could be removed; --yes removes them"
    if arguments.yes:
        garbage = gc.remove_garbage(garbage)
        done = "removed"
    size = sum(item.bytes for item in garbage)
    print_clean(f"{len(garbage):,} things, {size / 1e6:,.1f} MB {done}")


def verify_store(arguments: argparse.Namespace) -> int:
    """Check all results, print the damaged ones, and return the exit status: 1 if there are any."""
    found = verify(Store.view(arguments.store))
    for problem in found.problems:
        print_clean(problem)
    print_clean(
        f"{pluralize(found.commits, 'result')} in {pluralize(found.objects, 'object')};"
        f" {pluralize(found.files, 'file')} read, {found.bytes / 1e6:,.1f} MB;"
        f" {pluralize(len(found.problems), 'problem') if found.problems else 'no damage'}"
    )
    return int(bool(found.problems))
