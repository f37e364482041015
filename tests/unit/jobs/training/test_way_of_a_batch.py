"""The files that a batch passes are those in the documentation."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from embedder_finetuning import FAST

from ratchet.jobs.retrieval.embedder_training import EmbedderTask
from ratchet.jobs.retrieval.finetune_embedder import Inputs
from ratchet.jobs.training.worker import WorkerInfo
from ratchet.orchestrator.job_interface import Resources

ROOT = Path(__file__).resolve().parents[4]


def read_section() -> str:
    text = (ROOT / "docs/architecture.md").read_text()
    return text.split("## The way of a batch")[1].split("\n## ")[0]


def trace(work: Callable[[], Any]) -> set[str]:
    """Return the files of the project whose functions are called."""
    files = set[str]()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        files.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    found = set()
    for name in files:
        path = Path(name).resolve()
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in (
            "jobs",
            "models",
            "data",
        ):
            found.add(str(path.relative_to(ROOT)))
    return found


def test_listed_files_exist() -> None:
    names = re.findall(r"[\w/]+/\w+\.py", read_section())
    assert len(names) > 12
    assert [name for name in names if not (ROOT / name).is_file()] == []


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch_size", [None, 4])
def test_a_step_uses_listed_files_only(concepts: Path, micro_batch_size: int | None) -> None:
    inputs = Inputs(concepts / "base", concepts / "mined", concepts / "corpus", concepts / "valid")
    resources = Resources(1, cpus=1.0, gpus=0.0, micro_batch_size=micro_batch_size)
    task = EmbedderTask(WorkerInfo(0, 1, "cpu"), FAST, inputs, resources)

    def step() -> None:
        for microbatch in task.batch(0, 0).microbatches:
            task.loss(microbatch).backward()

    listed = read_section()
    used = trace(step)
    assert "data/triplets.py" in used
    assert [name for name in used if name not in listed and Path(name).name not in listed] == []
