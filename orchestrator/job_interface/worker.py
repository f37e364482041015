"""Workers: the checks at the start of every process of a step, and the function that runs the job."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import ray

import ratchet
from ratchet.errors import InputError
from ratchet.orchestrator.job_interface.code import find_version
from ratchet.orchestrator.job_interface.declaration import describe_value
from ratchet.orchestrator.job_interface.job import Context, Job, Result
from ratchet.orchestrator.job_interface.snapshot import find_snapshot


def run_job(job: Job, context: Context, config: Any, inputs: Any, paths: Sequence[Path]) -> Result:
    """Check this process, run the job in it, and return the result. paths: as for `check_worker`."""
    check_worker(context, paths)
    result = job.run(context, config, inputs)
    if not isinstance(result, Result):
        raise InputError(
            f"step {context.step}: job {job.name} returned {describe_value(result)}; expected a Result; end `run` with"
            " return Result({...})"
        )
    return result


def check_worker(context: Context, paths: Iterable[Path]) -> None:
    """Raise InputError if this process runs other code than `context.code`, or if one of the paths does not exist on
    this machine. Every Ray worker calls it first."""
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
    for path in paths:
        if not path.exists():
            raise InputError(
                f"step {context.step}, machine {ray.util.get_node_ip_address()}: {path} does not exist, but it does on"
                " the driver's machine; expected results, data and models under one path on all machines; mount a"
                " shared file system on every machine, and use folders on it (--store, --set data=..., and HF_HOME for"
                " models from the hub)"
            )


def find_existing_paths(*given: Any) -> tuple[Path, ...]:
    """Return the existing paths in `given` (paths, or nested tuples, lists, dicts and dataclasses of paths)."""
    return tuple(path for path in _paths(given) if path.exists())


def _paths(value: Any) -> Iterator[Path]:
    if isinstance(value, Path):
        yield value
    elif isinstance(value, dict):
        yield from _paths(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _paths(one)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _paths(tuple(getattr(value, field.name) for field in fields(value)))
