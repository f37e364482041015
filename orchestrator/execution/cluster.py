"""The Ray cluster of a run, started only when a step has to run.

A step is one Ray task that reserves no CPUs; the workers that it starts reserve the CPUs and GPUs. The task reserves
them itself if the process of the step does all the work: a single-process job, or a map over shards with one worker.
"""

import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ray
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from ratchet.errors import InputError, Interrupted, TransientError
from ratchet.orchestrator.execution.needs import count_cpus, read_machines
from ratchet.orchestrator.execution.schedule import Demand
from ratchet.orchestrator.job_interface import placement
from ratchet.orchestrator.job_interface.job import (
    Context,
    Job,
    Progress,
    RequiredCode,
    Resources,
    Result,
)
from ratchet.orchestrator.job_interface.snapshot import freeze_code
from ratchet.orchestrator.job_interface.worker import (
    ProgressActor,
    ProgressReporter,
    find_existing_paths,
    make_this_node_strategy,
    run_job,
)
from ratchet.orchestrator.step import Step
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.manifest import Manifest

QUIET = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "true",
    "PYTHONWARNINGS": "ignore",
}
"""Environment variables that silence libraries' logs, unless the variable is set already."""

# Two idle processes may stay, since imports take seconds: one that has used a GPU and one that has not.
SYSTEM = {"prestart_worker_first_driver": False, "num_workers_soft_limit": 2}
"""Configuration of the Ray of this machine. No processes in advance: they would lack the snapshot."""

PATIENCE = 10.0
"""Seconds that a stopped step has to end by itself before it is killed."""


MAX_RAY_FOLDER = 44
"""Longest path of Ray's folder, in bytes: the path of a socket has at most 107, and Ray's names take 62."""


def choose_ray_folder() -> str | None:
    """Return the folder for Ray's sockets and logs if that of temporary files has too long a path, as job folders of
    Slurm have. None: Ray's own default."""
    length = len(os.fsencode(os.path.join(tempfile.gettempdir(), "ray")))
    if "RAY_TMPDIR" in os.environ or length <= MAX_RAY_FOLDER:
        return None
    return "/tmp/ray"


class Cluster:
    """The Ray cluster at `address` (default: RAY_ADDRESS, which Ray sets in its jobs), else Ray on this machine."""

    def __init__(self, address: str | None = None, modules: Iterable[str] = ()) -> None:
        """modules: modules outside Ratchet, such as the recipe, that the processes of the cluster import."""
        self.address = address or os.environ.get("RAY_ADDRESS")
        self.modules = modules
        self.snapshot = ""
        self.started = self.owns_ray = False
        self.progress_actor: Any = None

    def start(self) -> None:
        """Connect to Ray or start it, which takes seconds; later calls do nothing. Raises InputError if the cluster at
        the address does not answer, or has other versions of Ray or Python."""
        if self.started:
            return
        if not ray.is_initialized():
            check_cluster_address(self.address)
        for key, value in QUIET.items():
            os.environ.setdefault(key, value)
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if not self.address:
            # No dashboard: it takes seconds to start, and this Ray ends with the driver.
            options |= {
                "include_dashboard": False,
                "num_cpus": count_cpus(),
                "_system_config": SYSTEM,
            }
            folder = choose_ray_folder()
            if folder is not None:
                options["_temp_dir"] = folder
        self.owns_ray = not ray.is_initialized()  # a trial runs in the Ray of its sweep
        with freeze_code(self.modules) as (self.snapshot, runtime_env):
            if self.owns_ray:
                handler = signal.getsignal(
                    signal.SIGTERM
                )  # Ray sets its own, which ends the process at once
                try:
                    self._init_ray(runtime_env=runtime_env, **options)
                except (ConnectionError, RuntimeError, ValueError) as error:
                    if not self.address:
                        raise
                    raise InputError(
                        f"address {self.address}: {' '.join(str(error).split())[:300]}; expected a running Ray cluster"
                        " with this machine's versions of Ray and Python; check the address"
                    ) from None
                finally:
                    signal.signal(signal.SIGTERM, handler)
        make_actor = ray.remote(num_cpus=0, scheduling_strategy=make_this_node_strategy())
        self.progress_actor = make_actor(ProgressActor).remote()
        self.started = True

    def _init_ray(self, **options: Any) -> None:
        """Connect to Ray or start it. Retries twice if Ray's processes take over 30 seconds, as on a busy machine."""
        for last in (False, False, True):
            try:
                ray.init(address=self.address or "local", **options)
                return
            except Exception as error:  # Ray has no exception class for this timeout
                if last or "timed out during startup" not in str(error):
                    raise

    @property
    def is_external(self) -> bool:
        """Whether the maximum number of machines is unknown: a cluster with an address but no RATCHET_CLUSTER."""
        return bool(self.address) and self.file_machines is None

    @cached_property
    def file_machines(self) -> list[placement.Machine] | None:
        return read_machines()

    def machines(self) -> list[placement.Machine]:
        """Return the most machines that the autoscaler may start (if RATCHET_CLUSTER is set), else the current ones."""
        if self.file_machines is None:
            return placement.list_machines()
        return self.file_machines

    def maximum(self) -> Demand:
        """Return the CPUs and GPUs of all `machines` together."""
        machines = self.machines()
        return Demand(
            sum(m.cpus * m.count for m in machines), sum(m.gpus * m.count for m in machines)
        )

    def place(self, step: Step, inputs: Any = None) -> Resources:
        """Resolve the resources of a step, with as many workers as fit and have work. inputs: see `Step.place`. Raises
        InputError if too few fit."""
        return self.fit(step, step.place(self.machines(), inputs))

    def fit(self, step: Step, asked: Resources) -> Resources:
        """Return the resolved resources of a step with as many workers as fit. Raises InputError if too few fit."""
        machines = self.machines()
        workers = placement.choose_workers(machines, asked)
        if workers == 0:
            have = ", ".join(f"{m.count} of {m.cpus:g} CPUs and {m.gpus:g} GPUs" for m in machines)
            memory = f"{asked.memory:g} GB" if asked.memory else ""
            wanted = "".join(
                f", {part}" for part in (memory, asked.accelerator, *asked.labels) if part
            )
            raise InputError(
                f"step {step.name}: {asked.workers} workers of {asked.cpus:g} CPUs and {asked.gpus:g} GPUs"
                f"{wanted} given; expected at most the {placement.count_fitting(machines, asked)} that fit on the"
                f" cluster at its largest (machines: {have}); lower workers, cpus, gpus or memory"
                f" with --set {step.job.name}.NAME=..., or allow fewer workers with"
                f" --set {step.job.name}.min_workers=..."
            )
        return replace(asked, workers=workers)

    def run(
        self,
        job: Job,
        libraries: Mapping[str, str],
        context: Context,
        config: Any,
        inputs: Any,
        store: Store,
        stopping: threading.Event,
    ) -> Manifest:
        """Run a step on the cluster, wait for its result, and add its output to the store.

        libraries: as in `RequiredCode`. Raises InputError if a machine has other versions of them, the error that the
        job raised, an error of ray.exceptions for a lost worker, and Interrupted when `stopping` is set, after the
        step's processes have ended.
        """
        required = RequiredCode(self.snapshot, libraries)
        alone = context.resources.workers == 1
        holds = alone and job.uses("cpus") and job.divide(config, inputs).inside
        progress = ProgressReporter(self.progress_actor, context.step)
        context = replace(context, code=required, progress=progress, holds_resources=holds)
        # Not in the placement group of a sweep's trial, which has no resources for the processes of a step.
        free = PlacementGroupSchedulingStrategy(placement_group=None)  # type: ignore[arg-type]
        options: dict[str, Any] = {"num_cpus": 0}
        if holds:
            asked = context.resources
            options = {
                "num_cpus": asked.cpus,
                "num_gpus": asked.gpus,
                **placement.make_ray_options(asked),
            }
        # A process keeps the first GPU that it used. With several GPUs, it ends, as the next step may get another GPU.
        # It also ends after a user's job, whose changes in the process, such as torch's defaults, would last.
        ends = job.run.__module__.partition(".")[0] != "ratchet"
        if options.get("num_gpus"):
            ends = ends or any(machine.gpus > 1 for machine in self.machines())
        process = ray.remote(max_retries=0, max_calls=int(ends))(_run_job)
        task = process.options(name=context.step, scheduling_strategy=free, **options)
        others = [inputs for _, _, inputs in context.together]
        paths = find_existing_paths(inputs, others)
        running = task.remote(job, context, config, inputs, paths)
        try:
            while not ray.wait([running], timeout=0.5)[0]:
                if stopping.is_set():
                    # First interrupt it as ctrl-C does, so that Ray Train ends its workers and frees their resources.
                    ray.cancel(running)
                    if not ray.wait([running], timeout=PATIENCE)[0]:
                        ray.cancel(running, force=True)
                    raise Interrupted(f"step {context.step}: stopped")
            result, node = ray.get(running)
            if store.backend.downloads:
                return _add_there(store, context, result, node)
            return store.add_object(context.out, result)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, BaseException) else error
            cause.__dict__.setdefault("remote_traceback", str(error))
            raise cause from None

    def take_progress(self) -> dict[str, Progress]:
        """Return step name -> latest progress since the last call. Raises TransientError if Ray has ended."""
        if not self.started:
            return {}
        try:
            latest: dict[str, Progress] = ray.get(self.progress_actor.take.remote())
        except ray.exceptions.RayError as error:
            raise TransientError(
                f"Ray: its processes on this machine have ended ({type(error).__name__}); expected them to last as long"
                " as the command; find out what ended them (`ray stop`, full memory), and give the same command again:"
                " finished steps, shards and checkpoints are kept"
            ) from error
        return latest

    def close(self) -> None:
        """Disconnect from the cluster; stop the Ray that `start` started."""
        if self.started:
            ray.kill(self.progress_actor)
            if self.owns_ray:
                ray.shutdown()
            self.started = False


def _run_job(
    job: Job, context: Context, config: Any, inputs: Any, paths: Sequence[Path]
) -> tuple[Result, str]:
    """Run a job. Return its result, and the id of the node that has its output."""
    result = run_job(job, context, config, inputs, paths)
    return result, ray.get_runtime_context().get_node_id()


def _add_there(store: Store, context: Context, result: Result, node: str) -> Manifest:
    """Add the output of a step to a store in a bucket, on the node that has the files, and without its GPUs."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    add = ray.remote(num_cpus=0)(_add_object).options(scheduling_strategy=there)
    try:
        manifest: Manifest = ray.get(add.remote(store, context, result))
        return manifest
    except ray.exceptions.TaskUnschedulableError as error:
        raise TransientError(
            f"step {context.step}: the machine that has its output was lost ({error}); expected it to stay until the"
            " output is uploaded; give the same command again"
        ) from None


def _add_object(store: Store, context: Context, result: Result) -> Manifest:
    """Add the output of a step to a store in a bucket, and remove what is left of the step on this machine."""
    manifest = store.add_object(context.out, result)
    shutil.rmtree(context.work, ignore_errors=True)
    return manifest


TIMEOUT = 5.0
"""Timeout of a connection in seconds."""


def check_cluster_address(address: str | None) -> None:
    """Raise InputError if no Ray cluster answers at the address that `run` or `sweep` is given.

    address: host:port of Ray's head node. None, `local` and `auto` are not checked.
    """
    if address is None or address in ("local", "auto"):
        return
    expected = "expected host:port of the head of a running Ray cluster, such as 10.0.0.1:6379"
    scheme = address.partition("://")[0]
    if scheme in ("http", "https"):
        raise InputError(
            f"address {address}: the address of a dashboard, which takes jobs; {expected}; start the command as a job:"
            f" `ray job submit --address {address} --working-dir . -- ratchet ...`"
        )
    if scheme == "ray":
        raise InputError(
            f"address {address}: an address of Ray Client, which is not used; {expected}; give that"
        )
    host = None
    port = None
    try:
        parts = urlsplit(f"//{address}")
        host = parts.hostname
        port = parts.port
    except ValueError:  # a port that is not a number or too large, or a bracket without its other
        pass
    if not host or not port or " " in host:
        raise InputError(f"address {address}: no host and port; {expected}; correct it")
    try:
        socket.create_connection((host, port), TIMEOUT).close()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"address {address}: {reason}; {expected}; check that it is running and can be reached"
        ) from None
