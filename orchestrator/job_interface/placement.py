"""Placement: the machines of a cluster, and how many workers with which resources fit on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ratchet.orchestrator.job_interface.job import Resources


@dataclass(frozen=True)
class Machine:
    """`count` machines of one kind."""

    cpus: float
    gpus: float = 0.0
    count: int = 1
    memory: float = float("inf")
    """Host memory in GB."""
    accelerators: frozenset[str] | None = None
    """GPU types in Ray's spelling. None: unknown, so that every requested type fits."""
    labels: Mapping[str, str] = field(default_factory=dict)
    gpu_memory: float = float("inf")
    """Memory of each GPU in GB."""

    def count_fitting(self, asked: Resources) -> int:
        """Return how many workers with resolved resources fit on one machine."""
        if (
            asked.accelerator
            and self.accelerators is not None
            and asked.accelerator not in self.accelerators
        ):
            return 0
        if not asked.selector().items() <= self.labels.items():
            return 0
        pairs = ((self.cpus, asked.cpus), (self.gpus, asked.gpus), (self.memory, asked.memory))
        return min(
            (int((have + 1e-9) // want) for have, want in pairs if want and have != float("inf")),
            default=10**6,
        )


def list_machines() -> list[Machine]:
    """Return the current machines of the cluster that this process is connected to."""
    return list(list_nodes().values())


def list_nodes() -> dict[str, Machine]:
    """Return Ray's node id -> machine, for the current machines."""
    import ray  # takes a second, and plans do not need it

    found = {}
    for node in ray.nodes():
        if node["Alive"]:
            found[node["NodeID"]] = _machine(node["Resources"], node["Labels"])
    return found


def _machine(resources: Mapping[str, float], labels: Mapping[str, str]) -> Machine:
    types = frozenset(
        key.partition(":")[2] for key in resources if key.startswith("accelerator_type:")
    )
    memory = resources.get("memory", float("inf")) / 1e9
    return Machine(resources.get("CPU", 0.0), resources.get("GPU", 0.0), 1, memory, types, labels)


def make_ray_options(resources: Resources) -> dict[str, Any]:
    """Return Ray's options of a task or actor for memory, accelerator type and labels."""
    options = {"memory": int(resources.memory * 1e9), "accelerator_type": resources.accelerator}
    found = {}
    for name, value in {**options, "label_selector": resources.selector()}.items():
        if value:
            found[name] = value
    return found


def count_fitting(machines: Sequence[Machine], asked: Resources) -> int:
    """Return how many workers with resolved resources fit on all machines together; none spans two machines."""
    return sum(machine.count * machine.count_fitting(asked) for machine in machines)


def choose_workers(machines: Sequence[Machine], asked: Resources) -> int:
    """Return the number of workers to start with: all, fewer if `min_workers` allows it, or 0 if too few fit."""
    assert asked.workers is not None
    workers = min(asked.workers, count_fitting(machines, asked))
    if workers >= min(asked.min_workers or asked.workers, asked.workers):
        return workers
    return 0


def _share_cpus(machine: Machine, gpus: float) -> float:
    """Return the most CPUs of a worker on a machine. Other steps may use its other GPUs, and need one CPU without."""
    if not machine.gpus:
        return 1.0 if gpus else machine.cpus
    return (machine.cpus - 1) * min(1.0, (gpus or 1.0) / machine.gpus)


def resolve_resources(asked: Resources, machines: Sequence[Machine]) -> Resources:
    """Replace None in workers, cpus and gpus by the default for these machines, as `Resources` describes."""
    fit = []
    for machine in machines:
        if machine.count_fitting(replace(asked, cpus=0.0, gpus=0.0)):
            fit.append(machine)
    if asked.gpus is not None:
        gpus = asked.gpus
    else:
        gpus = float(any(machine.gpus >= 1 for machine in fit))
    asked = replace(asked, gpus=gpus)
    workers = asked.workers or max(
        1, count_fitting(machines, replace(asked, cpus=asked.cpus or 0.0)) if gpus else 1
    )
    cpus = asked.cpus
    if cpus is None:
        cpus = max((_share_cpus(machine, gpus) for machine in fit), default=1.0) // 1
        left = machines
        if gpus:
            left = [replace(m, cpus=max(0.0, m.cpus - 1)) if m.gpus else m for m in machines]
        while cpus > 1 and count_fitting(left, replace(asked, cpus=cpus)) < workers:
            cpus -= 1
    return replace(asked, workers=workers, cpus=max(cpus, 1.0))
