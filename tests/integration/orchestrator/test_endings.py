"""How commands end: pipes, full and closed streams, signals during imports, narrow terminals. Real processes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import command
import pytest
from toy_runs import Toy

from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.store import Store

FULL = (
    "ratchet: standard output: No space left on device; expected a terminal, pipe or file with room for the output;"
    " send it elsewhere and give the same command again\n"
)
RUN = "20260101-000000-a-recipe-with-a-long-name-aaaa"
SLOW = "import time\n\ndef slow():\n    print('started', flush=True)\n    time.sleep(60)\n"


def start(*arguments: str, python: tuple[str, ...] = (), **options: Any) -> subprocess.Popen[str]:
    options = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "cwd": command.ROOT,
        **options,
    }
    return subprocess.Popen([sys.executable, *python, "-m", "orchestrator", *arguments], **options)


def run(*arguments: str, **options: Any) -> tuple[int, str, str]:
    process = start(*arguments, **options)
    output, errors = process.communicate(timeout=60)
    return process.returncode, output or "", errors or ""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    made = Store.open(tmp_path / "store")
    run_log = RunLog(made.local("runs", RUN))
    run_log.folder.mkdir()
    run_log.write("about.json", {"recipe": "Prüfung ★", "started": 0.0})
    return made.root


@pytest.mark.parametrize(
    "arguments", [["recipes"], ["plan", "quickstart"], ["--help"], ["status"]], ids=" ".join
)
def test_a_full_output_is_named_and_not_the_store(arguments: list[str], store: Path) -> None:
    with open("/dev/full", "w") as full:
        more = [] if arguments == ["--help"] else ["--store", str(store)]
        assert run(*arguments, *more, stdout=full) == (1, "", FULL)


@pytest.mark.parametrize(
    "arguments", [["recipes"], ["plan", "quickstart"], ["--help"], ["status"]], ids=" ".join
)
def test_a_reader_that_is_gone_ends_a_command_quietly(arguments: list[str], store: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    more = [] if arguments == ["--help"] else ["--store", str(store)]
    assert run(*arguments, *more, stdout=writer) == (141, "", "")
    os.close(writer)


def test_a_closed_stream_hurts_nothing(store: Path) -> None:
    before = sorted(store.rglob("*"))
    shell = f"{sys.executable} -m orchestrator status --store {store}"
    for closed in (">&-", "2>&-", "<&-", ">&- 2>&- <&-"):
        assert (
            subprocess.run(f"{shell} {closed}", shell=True, cwd=command.ROOT, timeout=60).returncode
            == 0
        )
    assert (
        subprocess.run(f"{shell}x 2>&- >&-", shell=True, cwd=command.ROOT, timeout=60).returncode
        == 2
    )
    assert sorted(store.rglob("*")) == before


@pytest.mark.parametrize(
    "variables",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}],
    ids=["encoding", "locale"],
)
def test_a_terminal_without_the_characters_gets_others(
    variables: dict[str, str], store: Path
) -> None:
    status, output, errors = run("status", "--store", str(store), env={**os.environ, **variables})
    assert (status, errors) == (0, "")
    assert "Pr?fung ?" in output
    status, _, errors = run("plan", "Prüfung", env={**os.environ, **variables})
    assert status == 2
    assert re.match(r"ratchet: recipe 'Pr\?+fung': unknown; expected one of ", errors)


@pytest.mark.parametrize("columns", ["40", "0", "abc", "-3", ""])
def test_ids_are_whole_on_a_narrow_terminal(columns: str, store: Path) -> None:
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    environment = {**os.environ, "COLUMNS": columns, "TERM": "xterm"}
    process = start(
        "status", "--store", str(store), stdout=terminal, stderr=terminal, env=environment
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            shown += os.read(main, 4096)
        except OSError:  # the other end is closed
            break
    assert process.wait(60) == 0
    assert RUN in shown.decode()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("module", ["ratchet.errors", "rich.table", "ray"])
def test_a_signal_during_imports_ends_in_one_line(
    number: int, status: int, module: str, tmp_path: Path
) -> None:
    arguments = ("run", "quickstart", "--store", str(tmp_path / "store"))
    process = start(*arguments, python=("-X", "importtime"), start_new_session=True)
    assert process.stderr is not None
    for line in process.stderr:
        if re.search(rf"\| +{re.escape(module)}(\.\w+)?\n", line):
            break
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    said = [line for line in errors.splitlines() if not line.startswith("import time:")]
    assert said == ["ratchet: stopped; nothing was started; give the same command again"]
    assert process.returncode == status
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_a_recipe_ends_in_one_line(number: int, status: int, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    process = start(
        "plan",
        str(tmp_path / "slow.py"),
        "--store",
        str(tmp_path / "store"),
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    time.sleep(0.1)
    process.send_signal(number)
    assert (
        process.communicate(timeout=60)[1]
        == "ratchet: stopped; give the same command again to continue\n"
    )
    assert process.returncode == status


def test_a_run_continues_when_nobody_reads_it(tmp_path: Path, shared_ray: tuple[str, ...]) -> None:
    toy = Toy(tmp_path)
    # With a warning, which is printed before the first step.
    toy.path.write_text(f"{toy.path.read_text()}\nHOME = os.environ.get('HOME')\n")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        arguments = ("run", str(toy.path), "--store", str(toy.store), *shared_ray)
        process = command.start(*arguments, output=output)
        assert process.wait(120) == 141
    assert sum(line.startswith("run ") for line in toy.done()) == 4


def test_no_answer_of_object_storage_is_one_line(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "RATCHET_CACHE": str(tmp_path),
    }
    status, output, errors = run("status", "--store", "s3://bucket/x", env=environment)
    assert (status, output) == (1, "")
    assert re.fullmatch(
        r"ratchet: s3://bucket/x/FORMAT: .*; expected the object storage to answer; .*\n", errors
    )
