"""`ratchet status --follow`: the live view of a run, read from its folder, on any machine that reads the store."""

from __future__ import annotations

import time
from contextlib import suppress

from ratchet.orchestrator.execution.live_view import LiveView
from ratchet.orchestrator.job_interface.clean_output import print_clean
from ratchet.orchestrator.job_interface.job import Progress
from ratchet.orchestrator.run_log import PROGRESS, RunLog
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.open_runs import list_open_runs

INTERVAL = 2.0
"""Seconds between reads."""

STATUS = {"finished": 0, "failed": 1, "interrupted": 130}
"""How a run ended -> the exit status of `ratchet run`."""


def follow_run(store: Store, run_log: RunLog) -> int:
    """Show a run until it ends, and return the exit status of its command; 1 if its driver ended without a result."""
    about = run_log.read("about.json") or {}
    while not run_log.steps() and _is_running(store, run_log):
        time.sleep(INTERVAL)
        store.pull("runs")
    shown = 0
    stamp = 0.0
    ended = ""
    gone = False
    with LiveView(len(run_log.steps()), str(about.get("recipe")), run_log.run_id) as view:
        while True:
            events = run_log.events()
            for event in events[shown:]:
                view.show(event)
            shown = len(events)
            ended = run_log.find_end(events)
            if ended or gone:
                break
            gone = not _is_running(
                store, run_log
            )  # one more pass: its last events may not have been read
            with suppress(FileNotFoundError):
                changed = (run_log.folder / PROGRESS).stat().st_mtime
                if changed != stamp:
                    stamp = changed
                    for step, progress in (run_log.read(PROGRESS) or {}).items():
                        view.progress(step, Progress(**progress))
            time.sleep(INTERVAL)
            store.pull("runs")
    if not ended:
        print_clean(
            f"run {run_log.run_id}: its driver is gone; give the command of the run again to continue it"
        )
    elif (page := run_log.folder / "report.html").exists():
        print_clean(f"report: {page}")
    return STATUS.get(ended, 1)


def _is_running(store: Store, run_log: RunLog) -> bool:
    return any(mark["run"] in ("", f"runs/{run_log.run_id}") for mark in list_open_runs(store))
