"""Workers: the checks at the start of every process of a step, and the function that runs the job."""

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import ratchet
from ratchet.errors import InputError
from ratchet.orchestrator.job_interface.code import find_version
from ratchet.orchestrator.job_interface.job import Context, Job, Progress, Result
from ratchet.orchestrator.job_interface.settings import describe_value
from ratchet.orchestrator.job_interface.snapshot import find_snapshot


def run_job(job: Job, context: Context, config: Any, inputs: Any, paths: Sequence[Path]) -> Result:
    """Check this process, run the job in it, and return the result. paths: as for `check_worker`."""
    check_worker(context, paths)
    context.out.mkdir(parents=True, exist_ok=True)  # this machine may not be the driver's
    result = job.run(context, config, inputs)
    if not isinstance(result, Result):
        raise InputError(
            f"step {context.step}: job {job.name} returned {describe_value(result)}; expected a Result; end `run` with"
            " return Result({...})"
        )
    return result


def check_worker(context: Context, paths: Iterable[Path]) -> None:
    """Raise InputError if this process runs other code than `context.code`, or if one of the paths does not exist on
    this machine, and cannot be fetched. Every Ray worker calls it first."""
    try:
        os.getcwd()
    except (
        FileNotFoundError
    ):  # another node on this machine has unpacked the snapshot anew, under the same path
        os.chdir(Path(ratchet.__file__).parents[1])
    where = f"step {context.step}, machine {platform.node()}"
    required = context.code
    if required is not None and find_snapshot() != required.snapshot:
        raise InputError(
            f"{where}: ratchet is imported from {Path(ratchet.__file__).parent}; expected the run's snapshot of the"
            " code; remove that folder from the import path of Ray's workers (PYTHONPATH)"
        )
    for library, version in required.libraries.items() if required is not None else ():
        found = find_version(library)
        if found != version:
            raise InputError(
                f"{where}: {library} {found} is installed; expected {version}, as on the driver's machine, since"
                " results depend on it; install the same version on all machines"
            )
    if context.files.downloads:
        context.work.mkdir(parents=True, exist_ok=True)
    for path in (context.work, *paths):
        if path != context.work:  # of which jobs fetch what they need
            context.files.fetch(path)
        if not path.exists():
            raise InputError(
                f"step {context.step}, machine {ray.util.get_node_ip_address()}: {path} does not exist, but it does on"
                " the driver's machine; expected results, data and models under one path on all machines; mount a"
                " shared file system on every machine, and use folders on it (--store, --set data=..., and HF_HOME for"
                " models from the hub)"
            )


def find_existing_paths(*given: Any) -> tuple[Path, ...]:
    """Return the existing paths in `given` (paths, or nested tuples, lists, dicts and dataclasses of paths)."""
    found = []
    queue = list(given)
    while queue:
        value = queue.pop(0)
        if isinstance(value, Path) and value.exists():
            found.append(value)
        elif isinstance(value, tuple | list):
            queue += value
        elif isinstance(value, dict):
            queue += value.values()
        elif is_dataclass(value) and not isinstance(value, type):
            queue += vars(value).values()
    return tuple(found)


class ProgressActor:
    """Ray actor that holds the latest progress of each step until the driver takes it."""

    def __init__(self) -> None:
        self.latest: dict[str, Progress] = {}

    def put(self, step: str, progress: Progress) -> None:
        self.latest[step] = progress

    def take(self) -> dict[str, Progress]:
        taken = self.latest
        self.latest = {}
        return taken


class ProgressReporter:
    """`Context.progress` on a cluster: sends progress to the actor without waiting. It can be pickled."""

    def __init__(self, actor: Any, step: str) -> None:
        self.actor = actor
        self.step = step

    def __call__(self, progress: Progress) -> None:
        self.actor.put.remote(self.step, progress)


def make_this_node_strategy() -> Any:
    """Return the scheduling strategy of actors that only serve this process.

    These actors run on the same machine, so that the loss of another machine does not affect them, and outside the
    placement group of a sweep's trial, which has no free resources.
    """
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
