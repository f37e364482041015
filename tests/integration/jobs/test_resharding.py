"""Training that is stopped and goes on with other numbers of workers, against plain torch on one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from regression import check_equal, context

from ratchet.jobs.training.checkpoints import list_checkpoints, read_history, run_folder
from ratchet.models.engine import can_load_merged

SUPPORT = Path(__file__).resolve().parents[2] / "support" / "training"

WORKER = """
import os, sys
from dataclasses import replace
from functools import partial
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from regression import OPTIONS, Regression
from ratchet.jobs.training.trainer import Trainer
from ratchet.jobs.training.worker import WorkerInfo
from ratchet.orchestrator.job_interface import Context, Resources

folder, stage, stop, offload = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]

class Stops(Regression):
    def batch(self, epoch, step):
        if 4 * epoch + step == stop:
            torch.distributed.barrier()
            os._exit(0)  # as if it were killed
        return super().batch(epoch, step)

torch.distributed.init_process_group("gloo")
worker = WorkerInfo(torch.distributed.get_rank(), torch.distributed.get_world_size(), "cpu")
given = Context("train", "ab" * 32, 1, folder / "out", folder / "work", Resources(1, cpus=1.0, gpus=0.0))
options = replace(OPTIONS, zero_stage=stage, save_steps=1, offload=offload)
Trainer(given, options, partial(Stops), worker).run()
"""


def train(folder: Path, workers: int, stage: int, stop: int, offload: str = "none") -> None:
    """Train on a number of workers, until one is killed before training step `stop`."""
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    script = folder / "worker.py"
    script.write_text(WORKER)
    given = [str(script), str(SUPPORT), str(folder), str(stage), str(stop), offload]
    done = subprocess.run(
        [sys.executable, *command, *given], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "stage", [0, 1, *(pytest.param(stage, marks=pytest.mark.soak) for stage in (2, 3))]
)
def test_shrinking_and_growing_changes_nothing(tmp_path: Path, stage: int) -> None:
    """Takes half a minute: three starts of up to three processes."""
    wanted = context(tmp_path, 1)
    run = run_folder(wanted)
    phases = ((3, 3), (2, 6), (3, 99)) if stage < 3 else ((2, 3), (3, 99))
    for workers, stop in phases:
        train(tmp_path, workers, stage, stop)
    last = list_checkpoints(wanted)[-1]
    history = read_history(last)
    # ZeRO-3 cuts the weights themselves, and its checkpoints fit only as many workers as wrote them.
    assert history.resumed == ([3, 6] if stage < 3 else [])
    assert history.workers == 3
    check_equal(replace(history), last / "best")
    assert not list(run.glob("unfinished-*"))


@pytest.mark.parametrize(
    ("phases", "resumed"),
    [
        (((1, 3, "none"), (2, 6, "none"), (1, 99, "optimizer")), [3, 6]),
        (((0, 3, "none"), (1, 6, "none"), (0, 99, "none")), [3]),
    ],
    ids=["1 and 2", "0 and 1"],
)
def test_training_goes_on_with_another_stage(
    tmp_path: Path, phases: tuple[tuple[int, int, str], ...], resumed: list[int]
) -> None:
    """After a lack of memory, say. Stages 1 and 2 load each other's checkpoints; stage 0 only its own."""
    wanted = context(tmp_path, 1)
    for stage, stop, offload in phases:
        train(tmp_path, 2, stage, stop, offload)
    last = list_checkpoints(wanted)[-1]
    history = read_history(last)
    assert history.resumed == resumed
    check_equal(replace(history), last / "best")


def test_few_weights_are_not_divided_anew() -> None:
    """DeepSpeed cannot load them for a worker that gets none."""
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    assert [can_load_merged(model, workers) for workers in (1, 2, 3, 4, 8)] == [True] * 3 + [
        False
    ] * 2
