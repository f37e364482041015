"""Training runs that continue with another number of workers, or for more epochs."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from regression import OPTIONS, Regression, check_equal, context
from step_process import run_step

from ratchet.jobs.training.ray_train import train
from ratchet.orchestrator.job_interface import Resources


@pytest.fixture(scope="module")
def cluster(local_ray: None) -> None:
    """Workers cannot import this file, nor what it imports from tests/support."""
    from ray import cloudpickle

    for name in (__name__, "regression"):
        cloudpickle.register_pickle_by_value(sys.modules[name])


class Dies(Regression):
    """Its third step is never done where there are two workers."""

    def batch(self, epoch: int, step: int) -> Any:
        if (step, self.worker.world_size) == (2, 2):
            os._exit(1)
        return super().batch(epoch, step)


def test_resume_with_other_workers(cluster: None, tmp_path: Path) -> None:
    """Takes a minute: training starts three times under Ray Train."""
    options = replace(OPTIONS, zero_stage=0, save_steps=1)
    two = context(tmp_path, 2)
    with pytest.raises(Exception, match=r"(?i)worker"):
        train(two, options, partial(Dies), tmp_path / "best")
    one = replace(two, attempt=2, resources=Resources(1, cpus=2.0, gpus=0.0, retries=1))
    history = run_step(train, one, options, partial(Dies), tmp_path / "best")
    assert history.resumed
    assert set(history.resumed) <= {1, 2}
    check_equal(history, tmp_path / "best")
