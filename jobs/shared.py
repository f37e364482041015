"""What every machine of a cluster must see under one path: the store's folder, and what a person gave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from jobs.job import BadInput


def check_shared(step: str, *given: Any) -> None:
    """Raises BadInput for a path in `given` (paths, tuples of them, dataclasses and dicts that hold them) that the
    machine of this process does not see. For a worker's first moment: Ray must be running."""
    for path in _paths(given):
        if not path.exists():
            import ray

            machine = ray.util.get_node_ip_address()
            raise BadInput(
                f"step {step}, machine {machine}: {path} is not there, though the driver sees it; expected results,"
                " data and models where all machines of the cluster find them under one path; mount that file system on"
                " every machine, or name a folder on it (--store, --set data=..., and HF_HOME for models from the hub)"
            )


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
