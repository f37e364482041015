"""Training on several workers: Ray Train starts and restarts them, DeepSpeed holds the optimizer state.

    train (driver)               one Ray Train run, named after the step; a single worker is the step's own process
      └ Trainer (workers)        task -> engine -> last checkpoint -> training steps -> report
          └ task                 model, batches and loss: a class of the job, independent of Ray Train

A run that resumes from a checkpoint continues as if it had not stopped. The learning rate is a function of the training
step.
"""

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from ray import cloudpickle
from ray.train import (
    ControllerError,
    FailureConfig,
    LoggingConfig,
    RunConfig,
    ScalingConfig,
    WorkerGroupError,
    get_context,
    get_preemption_info,
    report,
)
from ray.train.torch import TorchConfig, TorchTrainer, get_device

from ratchet.errors import ArtifactError, InputError, RatchetError
from ratchet.jobs.distributed.error_json import error_from_json, error_to_json
from ratchet.jobs.distributed.resolve_dtype import check_dtype
from ratchet.jobs.training.checkpoints import (
    find_model_damage,
    list_checkpoints,
    read_history,
    run_folder,
)
from ratchet.jobs.training.config import FinetuneConfig
from ratchet.jobs.training.schedule import TrainHistory, is_finished
from ratchet.jobs.training.train_cleanup import install_cleanup
from ratchet.jobs.training.worker import WorkerInfo, gather_objects
from ratchet.orchestrator.job_interface import Context, write_atomically
from ratchet.orchestrator.job_interface.digests import find_damage
from ratchet.orchestrator.job_interface.worker import check_worker, find_existing_paths

START_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
WAIT_FOR_ALL_SECONDS = os.environ.get(START_TIMEOUT, "1800")
"""Time to wait for resources for all workers. An autoscaler may need that long."""
WAIT_FOR_SOME_SECONDS = "60"
"""The same if fewer are enough (`Resources.min_workers`). Ray Train counts a lost machine for a moment, and waits."""
RESIZE_SECONDS = 300.0
"""Time between looks for machines that have come, if `Resources.min_workers` is set. A restart costs a minute."""

RETRYABLE = frozenset(
    [
        "RuntimeError",
        "DistBackendError",
        "DistNetworkError",
        "OSError",
        "ConnectionError",
        "TimeoutError",
        "EOFError",
    ]
)
"""Names of errors that a worker may raise because another worker was lost."""


def train(
    context: Context, config: FinetuneConfig, make_task: partial[Any], best: Path
) -> TrainHistory:
    """Train, or resume training, and copy the best model (written by `FinetuneTask.save`) into the folder `best`.

    make_task: a class of tasks, with its arguments besides `worker` and `config`. Workers run `Trainer`, or the
    subclass in the attribute `trainer` of the class. Raises the exceptions of the task, and an error of ray.train if
    workers were lost more often than `context.resources.retries`."""
    damaged = 0
    while True:
        before = list_checkpoints(context)[-1:]
        try:
            _fit(context, config, make_task)
        except (WorkerGroupError, ControllerError):
            # Workers were lost more often than `retries`. That does not end a run that makes progress.
            if list_checkpoints(context)[-1:] == before:
                raise
            continue
        last = _find_finished(context, config)
        if last is not None:
            shutil.copytree(last / "best", best, dirs_exist_ok=True)
            return read_history(last)
        damaged += 1  # the next try resumes from the previous checkpoint
        if damaged > context.resources.retries:
            raise ArtifactError(
                f"step {context.step}: the last checkpoint of the training is damaged, {damaged} times; expected its"
                " files to match their digests; check the disk of the store"
            )


def _find_finished(context: Context, config: FinetuneConfig) -> Path | None:
    """Return the last checkpoint if it is intact and the training is finished, else None."""
    found = list_checkpoints(context)
    if not found:
        return None
    last = found[-1]
    context.files.fetch(last)
    if find_damage(last) or find_model_damage(context, config, last):
        return None
    if is_finished(read_history(last), config):
        return last
    return None


def _fit(context: Context, config: FinetuneConfig, make_task: partial[Any]) -> None:
    resources = context.resources
    workers = resources.workers or 1
    gpus = resources.gpus or 0
    if context.holds_resources:
        _train_here(context, config, make_task)
        return
    # Fewer workers start if not all fit. They restart as more when machines come, and as fewer when some are lost.
    number: Any = workers
    os.environ[START_TIMEOUT] = WAIT_FOR_ALL_SECONDS
    if resources.min_workers is not None:
        number = (min(resources.min_workers, workers), workers)
        os.environ[START_TIMEOUT] = WAIT_FOR_SOME_SECONDS
    failure = context.work / f"failure-{context.attempt}.json"
    # As bytes, so that Ray Train's controller, which reads this too, does not import the model libraries.
    spec = cloudpickle.dumps((context, config, make_task, str(failure)))
    loop_config = {"spec": spec, "paths": find_existing_paths(make_task.keywords)}
    install_cleanup()
    folder = run_folder(context)
    per_worker = {"CPU": resources.cpus or 1.0, "GPU": gpus, "memory": resources.memory * 1e9}
    trainer = TorchTrainer(
        _run_worker,
        train_loop_config=loop_config,
        torch_config=TorchConfig(
            backend="nccl" if gpus else "gloo", timeout_s=int(resources.timeout)
        ),
        scaling_config=ScalingConfig(  # type: ignore[call-arg]  # mypy sees that of ray.air
            num_workers=number,
            elastic_resize_monitor_interval_s=RESIZE_SECONDS,
            use_gpu=bool(gpus),
            resources_per_worker={name: value for name, value in per_worker.items() if value},
            placement_strategy=resources.placement,
            accelerator_type=resources.accelerator or None,
            label_selector=resources.selector() or None,
        ),
        run_config=RunConfig(  # type: ignore[call-arg]  # mypy sees that of ray.air
            name=folder.name,
            storage_path=str(folder.parent),
            failure_config=FailureConfig(  # type: ignore[call-arg]
                max_failures=resources.retries, controller_failure_limit=-1
            ),
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )
    try:
        trainer.fit()
    except WorkerGroupError as group:
        # A worker that cannot see the folder of the failure file raises an InputError.
        raised = [
            getattr(failure, "_base_exc", failure) for failure in group.worker_failures.values()
        ]
        raise next((one for one in raised if isinstance(one, InputError)), group) from None
    finally:
        context.files.fetch(failure)
        if failure.exists():  # the error that a worker has written down
            written = error_from_json(failure.read_text())
            failure.unlink()
            raise written from None


def _train_here(context: Context, config: FinetuneConfig, make_task: partial[Any]) -> None:
    """Train in this process as the only worker. Ray Train would start seven more processes: 15 to 20 s on two cores.

    If the process is lost, the next attempt resumes from the last checkpoint."""
    from ratchet.models.engine import release_memory

    gpu = bool(context.resources.gpus)
    if (
        not torch.distributed.is_initialized()
    ):  # it stays initialised for later steps: DeepSpeed keeps its groups
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        torch.distributed.init_process_group(
            "nccl" if gpu else "gloo", store=store, rank=0, world_size=1
        )
    worker = WorkerInfo(0, 1, "cuda:0" if gpu else "cpu")
    try:
        _run_trainer(context, config, make_task, worker)
    except Exception as error:
        # Converted as an error of another process, with the traceback as text.
        raise error_from_json(error_to_json(error)) from None
    finally:
        release_memory()


def _run_worker(loop_config: dict[str, Any]) -> None:
    """Run the training loop of one of several workers. An error that a retry would raise again is written to a file; if
    this failure file exists, a restarted worker returns at once."""
    place = get_context()
    # Ray also shows GPUs to workers that requested none, for which get_device would return the first one.
    device = str(get_device()) if ray.get_gpu_ids() else "cpu"
    worker = WorkerInfo(place.get_world_rank(), place.get_world_size(), device)
    context, config, make_task, failure = cloudpickle.loads(loop_config["spec"])
    context.files.fetch(Path(failure))
    if Path(failure).exists():
        return
    check_worker(context, loop_config["paths"])
    try:
        _run_trainer(
            context,
            config,
            make_task,
            worker,
            find_notice=get_preemption_info,
            report_metrics=report,
        )
        if context.files.downloads:  # the checkpoints were sent, and this machine may get many
            gather_objects(None)
            shutil.rmtree(run_folder(context), ignore_errors=True)
    except Exception as error:
        lost_another = type(error).__name__ in RETRYABLE and not isinstance(error, RatchetError)
        # Ray Train ends the process group when a machine was lost or has come, while this worker trains on.
        group_ended = not torch.distributed.is_initialized()
        if not lost_another and not group_ended:
            write_atomically(Path(failure), error_to_json(error))
            context.files.send(Path(failure))
        raise  # so that Ray ends the other workers, which may wait for this one


def _run_trainer(
    context: Context,
    config: FinetuneConfig,
    make_task: partial[Any],
    worker: WorkerInfo,
    **more: Any,
) -> None:
    from ratchet.jobs.training.trainer import Trainer  # only workers need it: seconds of imports

    check_dtype(context)
    trainer_class = getattr(make_task.func, "trainer", Trainer)
    trainer_class(context, config, make_task, worker, **more).run()
