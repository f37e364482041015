"""The quickstart recipe, run by the command in a process of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import command
from command import sets

ONE_TRAINING = "finetune_embedder.allow_regression=true"
"""Setting without which few held-out queries mean a cross-validation: four trainings more."""
FEW = ("questions=24", "reranker=false")
WITHOUT_TRAINING = sets(*FEW, "iterations=0")
SMALL = sets(*FEW, "iterations=1", "finetune_embedder.epochs=1", ONE_TRAINING)


def start(store: Path, *arguments: str) -> subprocess.Popen[str]:
    return command.start(*arguments, "--store", str(store))


def run(store: Path, *arguments: str) -> tuple[int, str]:
    return command.run(*arguments, "--store", str(store), timeout=1100)
