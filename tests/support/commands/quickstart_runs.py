"""The quickstart recipe, run by the command in a process of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import command

WITHOUT_TRAINING = ("--set", "questions=24", "--set", "reranker=false", "--set", "iterations=0")

# Without folds, which train four times more.
ONE_TRAINING = ("finetune_embedder.epochs=1", "--set", "finetune_embedder.allow_regression=true")
SMALL = (*WITHOUT_TRAINING[:-1], "iterations=1", "--set", *ONE_TRAINING)


def start(store: Path, *arguments: str) -> subprocess.Popen[str]:
    return command.start(*arguments, "--store", str(store))


def run(store: Path, *arguments: str) -> tuple[int, str]:
    return command.run(*arguments, "--store", str(store), timeout=1100)
