"""The quickstart recipe, run by the command in a process of its own."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import command
from store_contents import events

WITHOUT_TRAINING = ("--set", "questions=48", "--set", "reranker=false", "--set", "iterations=0")

SMALL = (*WITHOUT_TRAINING[:-1], "iterations=1", "--set", "finetune_embedder.epochs=1")


def start(store: Path, *arguments: str) -> subprocess.Popen[str]:
    return command.start(*arguments, "--store", str(store))


def run(store: Path, *arguments: str) -> tuple[int, str]:
    return command.run(*arguments, "--store", str(store), timeout=1100)


def wait_for(store: Path, kind: str, step: str, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not any((event["event"], event["step"]) == (kind, step) for event in events(store)):
        assert time.monotonic() < end, f"{step} was never {kind}"
        time.sleep(0.1)
