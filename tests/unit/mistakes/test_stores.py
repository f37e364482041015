"""Mistakes in the place of a store, and runs that a store does not have."""

from __future__ import annotations

from pathlib import Path

import pytest
from mistakes import Mistake, answers, check, parametrize

from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.store import Store


def make_runs(folder: Path) -> None:
    """Make a store with a finished run and a newer one that never had a report."""
    store = Store.open(folder / "store")
    for name, report in (("20260101-000000-toy-aaaa", "# Toy"), ("20260102-000000-toy-bbbb", "")):
        run_log = RunLog(store.local("runs", name))
        run_log.folder.mkdir()
        run_log.write("about.json", {"recipe": "toy", "started": 0.0})
        if report:
            (run_log.folder / "report.md").write_text(report)


NO_STORE = r": no store there; expected a folder or URL that `ratchet run` has created, .*"
NOT_SUPPORTED = (
    r": no folder or supported URL; expected a folder, s3://BUCKET/PREFIX, .*; check --store and .*"
)

STORES = [
    Mistake(
        "gc of a git repository",
        "gc --yes --keep 0 --grace-period 0 --store repository/.git",
        rf"store repository/\.git{NO_STORE}",
        {
            "repository/.git/objects/ab/cdef": "blob",
            "repository/.git/HEAD": "ref: refs/heads/main\n",
        },
    ),
    *answers(
        *(
            (command, f"store store{NO_STORE}")
            for command in ("status", "report", "gc", "gc --yes", "verify")
        ),
        ("status --store nowhere", f"store nowhere{NO_STORE}"),
        ("plan quickstart --store /dev/null", f"store /dev/null{NO_STORE}"),
        *(
            (f"plan quickstart --store '{given}'", rf"store {given or '.empty.'}{NOT_SUPPORTED}")
            for given in (
                "",
                "file://",
                "http://x/y",
                "https://x/y",
                "ftp://x/y",
                "hdfs://x/y",
                "gcs://x/y",
                "s4://x/y",
                "s3://",
                "az://",
                "s3:/x/y",
            )
        ),
        *(
            (f"{command} --store http://x/y", rf"store http://x/y{NOT_SUPPORTED}")
            for command in ("run quickstart", "gc --yes", "status", "verify", "report")
        ),
        (
            "plan quickstart --store s3://b/x?key=1",
            r"store s3://b/x: a key or token given in the URL; expected none.*",
        ),
        (
            "plan quickstart --store s3://me:pass@b/x",
            r"store s3://b/x: a key or token given in the URL; .*",
        ),
        (
            "run quickstart --store /proc/nowhere",
            r"store /proc/nowhere: No such file .*; expected a folder that .*",
        ),
    ),
]

RUNS = [
    Mistake(name, command, answer, prepare=make_runs)
    for name, command, answer in (
        (
            "no such run",
            "status nosuch",
            r"store store: no run 'nosuch' in it; .*`ratchet status` lists them.*",
        ),
        ("no report of such a run", "report nosuch", r"store store: no run 'nosuch' in it; .*"),
        (
            "no report after a failed start",
            "report",
            r"run 20260102-000000-toy-bbbb: no report; .*; .* name another run \(`ratchet status` lists them\)",
        ),
    )
]


@parametrize(STORES, RUNS)
def test_a_mistake_is_answered_in_one_line(
    mistake: Mistake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check(mistake, tmp_path, monkeypatch, capsys)
