"""The quickstart recipe, run by the command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from store_contents import events

ROOT = Path(__file__).resolve().parents[2]

SMALL = ("--set", "questions=48", "--set", "finetune_embedder.epochs=1", "--set", "reranker=false")


def start(store: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *arguments, "--store", str(store)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(store: Path, *arguments: str) -> tuple[int, str]:
    process = start(store, *arguments)
    output, _ = process.communicate(timeout=1100)
    return process.returncode, output


def wait_for(store: Path, kind: str, step: str, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not any((event["event"], event["step"]) == (kind, step) for event in events(store)):
        assert time.monotonic() < end, f"{step} was never {kind}"
        time.sleep(0.1)
