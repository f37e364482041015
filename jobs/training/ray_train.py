"""Training on several workers: Ray Train starts and restarts them, DeepSpeed holds the optimizer state.

    train (driver)               one Ray Train run, named after the step: a new driver finds it again
      └ TrainingLoop (workers)   task -> engine -> last checkpoint -> training steps -> report
          └ task                 what is trained: a class of the job, which knows nothing of these files

The rows of a training step depend on (seed, epoch, step) alone, and the loss of a task is scaled so that its mean over
workers is that of the whole batch. The number of workers therefore changes only the speed, and a run that resumes
from a checkpoint does what it would have done. The learning rate is a function of the training step, without state.
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

from ray.train import (
    CheckpointConfig,
    ControllerError,
    FailureConfig,
    LoggingConfig,
    RunConfig,
    ScalingConfig,
    WorkerGroupError,
)
from ray.train.torch import TorchConfig, TorchTrainer

from ratchet.errors import ArtifactError, InputError, RatchetError
from ratchet.jobs.training.loop import TrainingLoop
from ratchet.jobs.training.schedule import OptimizationConfig, TrainHistory
from ratchet.jobs.training.train_cleanup import install_cleanup
from ratchet.orchestrator.job_interface import Context, Resources
from ratchet.orchestrator.job_interface.placement import (
    choose_workers,
    list_machines,
)
from ratchet.orchestrator.job_interface.worker import check_worker, find_existing_paths

START_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
WAIT_FOR_ALL_SECONDS = os.environ.get(START_TIMEOUT, "1800")
"""Time to wait for machines for all workers. An autoscaler may need that long."""
WAIT_FOR_SOME_SECONDS = "60"
"""Time to wait if fewer workers are enough."""

RETRYABLE = frozenset(
    ["RuntimeError", "DistBackendError", "DistNetworkError", "OSError", "ConnectionError", "TimeoutError", "EOFError"]
)
"""Errors that a worker may raise because another one was lost."""


def train(
    context: Context, options: OptimizationConfig, task_class: type, arguments: Mapping[str, Any], best: Path
) -> TrainHistory:
    """Train, or resume training, and put what `TrainTask.save` wrote at the best evaluation into the folder `best`.

    Raises what the task raised, and an error of ray.train if workers were lost more often than
    `context.resources.retries`.
    """
    failures = 0
    while True:
        resources = _current_resources(context.resources)
        try:
            return _fit(replace(context, resources=resources), options, task_class, arguments, best)
        except ControllerError:
            # A machine is gone and was not replaced, or a worker was lost during start-up.
            failures += _current_resources(context.resources).workers == resources.workers
            if failures > context.resources.retries:
                raise


def _current_resources(resources: Resources) -> Resources:
    """With as many workers as the machines of the cluster hold, where fewer than all are enough."""
    if resources.min_workers is None:
        return resources
    return replace(resources, workers=choose_workers(list_machines(), resources) or resources.min_workers)


def _fit(
    context: Context, options: OptimizationConfig, task_class: type, arguments: Mapping[str, Any], best: Path
) -> TrainHistory:
    install_cleanup()
    resources = context.resources
    workers, gpus = resources.workers or 1, resources.gpus or 0
    elastic = resources.min_workers is not None
    os.environ[START_TIMEOUT] = WAIT_FOR_SOME_SECONDS if elastic else WAIT_FOR_ALL_SECONDS
    per_worker = {"CPU": resources.cpus or 1.0, "GPU": gpus, "memory": resources.memory * 1e9}
    failure = context.work / f"failure-{context.attempt}.pickle"
    trainer = TorchTrainer(
        _run_worker,
        train_loop_config={
            "spec": (context, options, task_class, dict(arguments), str(failure)),
            "paths": find_existing_paths(context.work, arguments),
        },
        torch_config=TorchConfig(backend="nccl" if gpus else "gloo", timeout_s=int(resources.timeout)),
        scaling_config=ScalingConfig(  # type: ignore[call-arg]  # mypy sees that of ray.air
            num_workers=workers,
            use_gpu=bool(gpus),
            resources_per_worker={name: value for name, value in per_worker.items() if value},
            placement_strategy=resources.placement,
            accelerator_type=resources.accelerator or None,
            label_selector=resources.selector() or None,
        ),
        run_config=RunConfig(  # type: ignore[call-arg]  # mypy sees that of ray.air
            # Sharded optimizer states fit the number of workers that wrote them: another number starts again.
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
        # An InputError of a machine that does not see the folder of the failure file.
        raised = [getattr(failure, "_base_exc", failure) for failure in group.worker_failures.values()]
        raise next((one for one in raised if isinstance(one, InputError)), group) from None
    finally:
        if failure.exists():
            error = pickle.loads(failure.read_bytes())
            failure.unlink()
            raise error from None
    if result.checkpoint is None:
        raise ArtifactError(f"step {context.step}: training ended without a checkpoint; expected one per epoch")
    with result.checkpoint.as_directory() as folder:
        shutil.copytree(Path(folder, "best"), best, dirs_exist_ok=True)
        if context.warm_start_to is not None:
            shutil.rmtree(context.warm_start_to, ignore_errors=True)
            shutil.copytree(folder, context.warm_start_to)
        return TrainHistory(**json.loads(Path(folder, "history.json").read_text()))


def _run_worker(config: dict[str, Any]) -> None:
    """Run the training loop of one worker. An error that would be raised again is written to a file, and a restarted
    worker returns at once."""
    context, options, task_class, arguments, failure = config["spec"]
    if Path(failure).exists():
        return
    check_worker(context, config["paths"])
    try:
        TrainingLoop(context, options, task_class, arguments).run()
    except Exception as error:
        if not _write_failure(error, Path(failure)) or (context.resources.workers or 1) > 1:
            raise  # others may wait for this worker: Ray ends them


def _write_failure(error: Exception, path: Path) -> bool:
    """Write an error down if it is the worker's own and not that of a lost peer. Returns whether it was written."""
    if type(error).__name__ in RETRYABLE and not isinstance(error, RatchetError):
        return False
    fresh = Path(f"{path}.{os.getpid()}")
    try:
        fresh.write_bytes(pickle.dumps(error))
    except (pickle.PicklingError, TypeError, AttributeError):
        fresh.unlink(missing_ok=True)
        return False
    fresh.replace(path)
    return True
