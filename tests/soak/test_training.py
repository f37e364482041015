"""Training runs that continue with another number of workers: given again, after a loss, or when machines come."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nodes import Nodes, environment_of, kill
from regression import OPTIONS, Regression, check_equal, context
from step_process import run_step
from waiting import wait_for

from ratchet.jobs.training.checkpoints import list_checkpoints, read_history
from ratchet.jobs.training.ray_train import train
from ratchet.jobs.training.schedule import TrainHistory
from ratchet.orchestrator.job_interface import Context, Resources


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


SUPPORT = Path(__file__).parents[1] / "support" / "training"

TRAINING = """
import sys, time
from dataclasses import replace
from functools import partial
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import ray
import regression
from ray import cloudpickle
from ratchet.jobs.training import ray_train

class Slow(regression.Regression):
    def batch(self, epoch, step):
        # Two workers wait for the machine that comes.
        time.sleep(15 if self.worker.world_size == 2 else 3)
        return super().batch(epoch, step)

cloudpickle.register_pickle_by_value(regression)
ray.init(sys.argv[3], log_to_driver=False)
ray_train.RESIZE_SECONDS = 10.0
folder = Path(sys.argv[2])
context = regression.context(folder, 4)
resources = replace(context.resources, cpus=1.0, min_workers=2, retries=5)
options = replace(regression.OPTIONS, zero_stage=0, save_steps=1)
ray_train.train(replace(context, resources=resources), options, partial(Slow), folder / "best")
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    soon = {"initial_delay_ms": "1000", "period_ms": "1000", "failure_threshold": "5"}
    checks = {f"RAY_health_check_{name}": value for name, value in soon.items()}
    environment = environment_of(tmp_path, RAY_worker_niceness="0", **checks)
    made = Nodes(tmp_path, environment, "--num-cpus=0", "--include-dashboard=false")
    try:
        yield made
    finally:
        made.end()


def find_last(given: Context) -> TrainHistory | None:
    found = list_checkpoints(given)
    return read_history(found[-1]) if found else None


@pytest.mark.timeout(900)
def test_four_workers_two_and_four_again(nodes: Nodes, tmp_path: Path) -> None:
    """Takes three minutes. For other ZeRO stages see `test_resharding`: the few biases of this model cannot be sharded
    over four workers."""
    nodes.add(cpus=2)
    victim = nodes.add(cpus=2)
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    folder = tmp_path / "training"
    given = context(tmp_path / "same", 4)  # only to name the folder of the run
    given = replace(given, work=folder / "work")
    with (tmp_path / "log").open("w") as log:
        running = subprocess.Popen(
            [sys.executable, script, SUPPORT, folder, nodes.address],
            env=nodes.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )

    def has(workers: int, resumed: int) -> bool:
        assert running.poll() is None, (tmp_path / "log").read_text()
        last = find_last(given)
        return last is not None and (last.workers, len(last.resumed)) == (workers, resumed)

    try:
        wait_for(lambda: has(4, 0), "it did not begin with four", 200)
        kill(victim)
        wait_for(lambda: has(2, 1), "it did not go on with two", 300)
        nodes.add(cpus=2)
        wait_for(lambda: has(4, 2), "it did not grow", 200)
        running.wait(200)
    finally:
        kill(running)
    assert running.returncode == 0, (tmp_path / "log").read_text()
    last = find_last(given)
    assert last is not None
    check_equal(last, folder / "best")
