"""Trains on several workers: Ray Train starts them and starts them again, DeepSpeed holds the optimizer's state.

    train (driver)                one Ray Train run, named by the step: a new driver finds it again
      └ training_loop (workers)   trainee -> engine -> last checkpoint -> loop -> report
          └ trainee               what is trained: the job's own class, which knows nothing of these files

A global step's rows depend on (seed, epoch, step) alone, and a trainee's loss is scaled so that the mean over workers
is the whole batch's. So the number of workers changes speed, and a run that goes on from a checkpoint does what it
would have done. The learning rate is a function of the step: there is no scheduler whose state could be lost.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs.job import BadArtifact, BadInput, Context, Resources
from jobs.machines import check_shared, room, seen, up
from jobs.optimization import History, Options
from jobs.training_loop import Loop

START_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
MACHINES_SECONDS = os.environ.get(START_TIMEOUT, "1800")
"""How long to wait for machines for all workers: as an autoscaler may need, unless the person said otherwise."""
FEWER_SECONDS = "60"
"""The same, where fewer workers will do."""

RETRYABLE = frozenset(
    ["RuntimeError", "DistBackendError", "DistNetworkError", "OSError", "ConnectionError", "TimeoutError", "EOFError"]
)
"""What a worker may raise because another one was lost."""


def train(context: Context, options: Options, trainee: type, arguments: Mapping[str, Any], best: Path) -> History:
    """Trains, or goes on training, and puts what `trainee.save` wrote at the best evaluation into the folder `best`.

    Raises what the trainee raised, and an error of ray.train where workers were lost more often than
    `context.resources.retries`.
    """
    from ray.train import ControllerError

    failed = 0
    while True:
        now = _now(context.resources)
        try:
            return _fit(replace(context, resources=now), options, trainee, arguments, best)
        except ControllerError:
            # A machine is gone, and none came in its place; else a worker was lost as it started.
            failed += _now(context.resources).workers == now.workers
            if failed > context.resources.retries:
                raise


def _now(resources: Resources) -> Resources:
    """With as many workers as the machines that are up hold, where it need not be all."""
    if resources.min_workers is None:
        return resources
    return replace(resources, workers=room(up(), resources) or resources.min_workers)


def _fit(context: Context, options: Options, trainee: type, arguments: Mapping[str, Any], best: Path) -> History:
    from ray.train import CheckpointConfig, FailureConfig, LoggingConfig, RunConfig, ScalingConfig, WorkerGroupError
    from ray.train.torch import TorchConfig, TorchTrainer

    from jobs.leftover import freed

    freed()
    resources = context.resources
    workers, gpus = resources.workers or 1, resources.gpus or 0
    elastic = resources.min_workers is not None
    os.environ[START_TIMEOUT] = FEWER_SECONDS if elastic else MACHINES_SECONDS
    share = {"CPU": resources.cpus or 1.0, "GPU": gpus, "memory": resources.memory * 1e9}
    failure = context.work / f"failure-{context.attempt}.pickle"
    trainer = TorchTrainer(
        _work,
        train_loop_config={
            "spec": (context, options, trainee, dict(arguments), str(failure)),
            "seen": seen(context.work, arguments),
        },
        torch_config=TorchConfig(backend="nccl" if gpus else "gloo", timeout_s=int(resources.timeout)),
        scaling_config=ScalingConfig(  # type: ignore[call-arg]  # ray.air's is what mypy sees
            num_workers=workers,
            use_gpu=bool(gpus),
            resources_per_worker={name: value for name, value in share.items() if value},
            placement_strategy=resources.placement,
            accelerator_type=resources.accelerator or None,
            label_selector=resources.selector() or None,
        ),
        run_config=RunConfig(  # type: ignore[call-arg]  # ray.air's is what mypy sees
            # Sharded optimizer state fits the number of workers that wrote it: another number starts afresh.
            name=context.step_id[:32] + (f"-{workers}" if options.zero_stage else ""),
            storage_path=str((context.work / "train").absolute()),
            failure_config=FailureConfig(  # type: ignore[call-arg]
                max_failures=resources.retries, controller_failure_limit=0 if elastic else -1
            ),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )
    try:
        result = trainer.fit()
    except WorkerGroupError as group:
        # Of a machine that does not see the folder in which it would have been kept.
        raised = [getattr(failure, "_base_exc", failure) for failure in group.worker_failures.values()]
        raise next((one for one in raised if isinstance(one, BadInput)), group) from None
    finally:
        if failure.exists():
            error = pickle.loads(failure.read_bytes())
            failure.unlink()
            raise error from None
    if result.checkpoint is None:
        raise BadArtifact(f"step {context.step}: training ended without a checkpoint; expected one per epoch")
    with result.checkpoint.as_directory() as kept:
        shutil.copytree(Path(kept, "best"), best, dirs_exist_ok=True)
        if context.state is not None:
            shutil.rmtree(context.state, ignore_errors=True)
            shutil.copytree(kept, context.state)
        return History(**json.loads(Path(kept, "history.json").read_text()))


def _work(config: dict[str, Any]) -> None:
    """A worker's life. What would fail again is kept in a file, and the next life ends at once."""
    context, options, trainee, arguments, failure = config["spec"]
    if Path(failure).exists():
        return
    check_shared(context.step, config["seen"])
    try:
        Loop(context, options, trainee, arguments).run()
    except Exception as error:
        if not _keep(error, Path(failure)) or (context.resources.workers or 1) > 1:
            raise  # others may wait for this worker: Ray ends them


def _keep(error: Exception, path: Path) -> bool:
    """Writes the error down if it is this worker's own, not a lost neighbour's; whether it did."""
    if type(error).__name__ in RETRYABLE and not getattr(error, "permanent", False):
        return False
    fresh = Path(f"{path}.{os.getpid()}")
    try:
        fresh.write_bytes(pickle.dumps(error))
    except (pickle.PicklingError, TypeError, AttributeError):
        fresh.unlink(missing_ok=True)
        return False
    fresh.replace(path)
    return True
