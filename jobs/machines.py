"""The machines that a cluster has or may bring, what fits on them, and what each of them must see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from jobs.job import BadInput, Resources


@dataclass(frozen=True)
class Machine:
    """So many machines of one kind."""

    cpus: float
    gpus: float = 0.0
    count: int = 1
    memory: float = float("inf")
    """GB."""
    accelerators: frozenset[str] | None = None
    """Types of its GPUs, as Ray names them; None: not known, so that it may have any."""
    labels: Mapping[str, str] = field(default_factory=dict)

    def holds(self, asked: Resources) -> int:
        """How many workers of resolved resources fit on one of them."""
        if asked.accelerator and self.accelerators is not None and asked.accelerator not in self.accelerators:
            return 0
        if not asked.selector().items() <= self.labels.items():
            return 0
        pairs = ((self.cpus, asked.cpus), (self.gpus, asked.gpus), (self.memory, asked.memory))
        return min((int((have + 1e-9) // want) for have, want in pairs if want), default=10**6)


def up() -> list[Machine]:
    """The machines of the cluster that this process is connected to, as they are now."""
    import ray

    return [_machine(node["Resources"], node["Labels"]) for node in ray.nodes() if node["Alive"]]


def _machine(resources: Mapping[str, float], labels: Mapping[str, str]) -> Machine:
    """Ray's numbers of a node."""
    types = frozenset(key.partition(":")[2] for key in resources if key.startswith("accelerator_type:"))
    memory = resources.get("memory", float("inf")) / 1e9
    return Machine(resources.get("CPU", 0.0), resources.get("GPU", 0.0), 1, memory, types, labels)


def places(machines: Sequence[Machine], asked: Resources) -> int:
    """How many workers of resolved resources fit at once; a worker is on one machine."""
    return sum(machine.count * machine.holds(asked) for machine in machines)


def room(machines: Sequence[Machine], asked: Resources) -> int:
    """How many of its workers resolved resources can have: all, or fewer where they may begin with fewer; 0: none."""
    assert asked.workers is not None
    found = min(asked.workers, places(machines, asked))
    return found if found >= min(asked.min_workers or asked.workers, asked.workers) else 0


def resolved(asked: Resources, machines: Sequence[Machine]) -> Resources:
    """The same with every None of workers, cpus and gpus filled for these machines, as `Resources` says."""
    fit = [machine for machine in machines if machine.holds(replace(asked, cpus=0.0, gpus=0.0))]
    gpus = asked.gpus if asked.gpus is not None else float(any(machine.gpus >= 1 for machine in fit))
    asked = replace(asked, gpus=gpus)
    workers = asked.workers
    if workers is None:
        workers = max(1, places(machines, replace(asked, cpus=asked.cpus or 0.0)) if gpus else 1)
    cpus = asked.cpus
    if cpus is None:
        whole = {machine.cpus // share for machine in fit for share in range(1, int(machine.cpus) + 1)}
        enough = (n for n in sorted(whole, reverse=True) if places(machines, replace(asked, cpus=n)) >= workers)
        cpus = next(enough, 1.0)
    return replace(asked, workers=workers, cpus=cpus)


def seen(*given: Any) -> tuple[Path, ...]:
    """The paths in `given` (paths, tuples of them, dataclasses and dicts that hold them) that this process sees: what
    `check_shared` is to find elsewhere too."""
    return tuple(path for path in _paths(given) if path.exists())


def check_shared(step: str, paths: Iterable[Path]) -> None:
    """Raises BadInput for a path that the machine of this process does not see. For a worker's first moment: Ray must
    be running."""
    for path in paths:
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
