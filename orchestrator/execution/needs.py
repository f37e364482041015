"""Needs of the steps of a plan (memory, disk), and checks that the steps fit on the planned machines."""

import math
import os
import re
import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ratchet.errors import InputError, RatchetError
from ratchet.orchestrator.job_interface.job import Needs, Resources
from ratchet.orchestrator.job_interface.placement import Machine, choose_workers
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.recipe import apply_setting
from ratchet.orchestrator.step import Step
from ratchet.orchestrator.store.backend import measure

CONTROL_GROUPS = Path("/sys/fs/cgroup")
_ESTIMATING = threading.Lock()
"""Steps start in threads, but counting a model changes global defaults of torch."""


@dataclass(frozen=True)
class StepNeeds:
    """The needs of a step, and the resources that it would get."""

    needs: Needs
    resources: Resources


def parse_gpu(text: str) -> Machine:
    """Return the machine that `--gpu NAME:GB[:COUNT]` describes. Raises InputError for a text of another form."""
    match = re.fullmatch(r"([^:]+):(\d+(?:\.\d+)?)(?::([1-9]\d*))?", text)
    if match is None or not float(match[2]):
        raise InputError(f"--gpu {text}: expected NAME:GB or NAME:GB:COUNT, such as H100:80:8")
    gpus = float(match[3] or 1)
    types = frozenset({match[1]})
    return Machine(8.0 * gpus, gpus, accelerators=types, gpu_memory=float(match[2]))


def list_known_machines() -> Sequence[Machine]:
    """Return the machines in the file RATCHET_CLUSTER, else this machine. The GPU memory counts as unlimited."""
    limits = _read_limits("memory.max")
    memory = min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *limits, math.inf) / 1e9
    gpus = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    return read_machines() or [Machine(float(count_cpus()), float(gpus), memory=memory)]


def count_cpus() -> int:
    """Return the number of CPUs that this process may use, which the limit of a container may lower."""
    if hasattr(os, "sched_getaffinity"):
        usable = len(os.sched_getaffinity(0))
    else:
        usable = os.cpu_count() or 1
    quota, period = _read_limits("cpu.max") or (math.inf, 1.0)
    return max(1, int(min(usable, quota / period)))


def _read_limits(name: str) -> list[float]:
    """Return the numbers in a file of the control group of this container; none without one. No limit is infinity."""
    path = CONTROL_GROUPS / name
    texts = path.read_text().split() if path.is_file() else []
    found = []
    for text in texts:
        found.append(float(text) if text.isdecimal() else math.inf)
    return found


def read_machines() -> list[Machine] | None:
    """Read the maximum number of machines of each kind from the file that RATCHET_CLUSTER names: cluster.yaml of `ray
    up`, or KubeRay's RayJob or RayCluster. Ray does not tell drivers how far the autoscaler may scale up. Returns None
    if the variable is not set. Raises InputError for other files."""
    given = os.environ.get("RATCHET_CLUSTER")
    if not given:
        return None
    path = Path(os.path.expanduser(given))
    found = []
    try:
        content: Any = yaml.safe_load(path.read_text())
        if "available_node_types" in content:
            for name, kind in content["available_node_types"].items():
                if name != content["head_node_type"]:
                    found.append(_read_node_type(kind, content))
            return found
        spec = content["spec"]
        for group in spec.get("rayClusterSpec", spec)["workerGroupSpecs"]:
            found.append(_read_group(group))
        return found
    except Exception as error:  # of reading, of YAML, or of another content
        raise InputError(
            f"RATCHET_CLUSTER {path}: {type(error).__name__}: {error}; expected the file that created this"
            " cluster (available_node_types of `ray up`, or a RayJob); correct or unset the variable on the head"
        ) from None


def _read_node_type(kind: dict[str, Any], content: dict[str, Any]) -> Machine:
    resources = kind["resources"]
    return Machine(
        float(resources.get("CPU", 0)),
        float(resources.get("GPU", 0)),
        min(kind.get("max_workers", content["max_workers"]), content["max_workers"]),
        resources["memory"] / 1e9 if "memory" in resources else float("inf"),
        labels=kind.get("labels", {}),
    )


def _read_group(group: dict[str, Any]) -> Machine:
    from ray.autoscaler._private.kuberay.utils import parse_quantity

    asked = group["template"]["spec"]["containers"][0]["resources"]
    limits = asked.get("limits", asked.get("requests", {}))
    gpus = sum(float(value) for name, value in limits.items() if name.endswith("/gpu"))
    if "memory" in limits:
        memory = float(parse_quantity(limits["memory"])) / 1e9
    else:
        memory = float("inf")
    cpus = float(parse_quantity(limits["cpu"]))
    return Machine(cpus, gpus, group["maxReplicas"], memory, labels=group.get("labels", {}))


def estimate(plan: Plan, machines: Sequence[Machine]) -> dict[str, StepNeeds]:
    """Return step name -> needs, for the steps that would run and whose jobs estimate them. Call `plan.check` first."""
    found = {}
    for name in plan.missing():
        needs = _estimate_step(plan, plan.steps[name].step, machines)
        if needs is not None:
            found[name] = needs
    return found


def check_fits(plan: Plan, found: Mapping[str, StepNeeds], machines: Sequence[Machine]) -> None:
    """Raise InputError, naming settings with less memory, for the first step that needs more memory than there is."""
    for name, own in found.items():
        if _fits(own, machines):
            continue
        step = plan.steps[name].step
        on_gpus = own.needs.gpu_memory > 0
        most = max(m.gpu_memory if on_gpus else m.memory for m in machines)
        if on_gpus:
            need = f"{own.needs.gpu_memory:.1f} GB of each GPU"
        else:
            need = f"{own.needs.memory:.1f} GB per worker"
        fix = " ".join(
            f"--set {step.job.name}.{line}" for line in _find_fitting(plan, step, machines)
        )
        raise InputError(
            f"step {name}: needs about {need}; expected at most {most:.1f} GB;"
            f" {f'add {fix}' if fix else 'use a smaller model, or larger machines'}"
        )


def check_disk(plan: Plan, found: Mapping[str, StepNeeds]) -> None:
    """Raise InputError for the first step that writes more than is free on the store's disk. Add a note to the plan if
    all steps together do."""
    free = shutil.disk_usage(plan.store.root).free / 1e9
    total = 0.0
    for name, own in found.items():
        # The next attempt continues from the files of earlier attempts, or removes them.
        written = measure(plan.store.local("steps", plan.steps[name].step_id or name))[0]
        missing = max(0.0, own.needs.disk - written / 1e9)
        total += missing
        if missing > free:
            raise InputError(
                f"step {name}: writes up to {missing:.1f} GB, checkpoints included; expected at most the"
                f" {free:.1f} GB that are free at {plan.store.root}; free some (`ratchet gc` lists what can be removed)"
                " or give another --store"
            )
    if total > free:
        plan.notes.append(
            f"the steps write up to {total:.1f} GB; {free:.1f} GB are free at {plan.store.root}"
        )


def check_step_disk(plan: Plan, name: str, machines: Sequence[Machine]) -> None:
    """Raise InputError if a step that is about to start writes more than is free on the store's disk now."""
    with _ESTIMATING:
        own = _estimate_step(plan, plan.steps[name].step, machines)
    check_disk(plan, {} if own is None else {name: own})


def _estimate_step(plan: Plan, step: Step, machines: Sequence[Machine]) -> StepNeeds | None:
    if step.job.needs is None:
        return None
    resources = step.place(machines)
    inputs = plan.inputs(step.name, verified=False)
    try:
        needs = step.job.needs(step.config, inputs, resources, plan.parent_results(step.name))
    except InputError as error:
        raise InputError(f"step {step.name}: {error}") from None
    if needs is None:
        return None
    return StepNeeds(needs, resources)


def _fits(own: StepNeeds, machines: Sequence[Machine]) -> bool:
    """Return whether some machine has the memory for the workers that it would get."""

    for machine in machines:
        together = min(machine.count_fitting(own.resources), own.resources.workers or 1)
        enough = (
            own.needs.gpu_memory <= machine.gpu_memory
            and own.needs.memory * together <= machine.memory
        )
        if together and enough:
            return True
    # True if no machine has the CPUs or GPUs for a worker: placement refuses the step, with another message.
    return not any(machine.count_fitting(own.resources) for machine in machines)


def _find_fitting(plan: Plan, step: Step, machines: Sequence[Machine]) -> list[str]:
    """Return one setting with which a step fits, else the shortest list of the first settings; empty if none helps."""
    own = _estimate_step(plan, step, machines)
    lines = []
    for line in own.needs.remedies if own else ():
        with suppress(RatchetError):  # not a setting of this job
            if choose_workers(machines, apply_setting(step, line).place(machines)):
                lines.append(line)
    choices = [[line] for line in lines]
    choices += [lines[:number] for number in range(2, len(lines) + 1)]
    for chosen in choices:
        changed = step
        for line in chosen:
            with suppress(RatchetError):  # the job refuses this setting with the others
                fresh = apply_setting(changed, line)
                if fresh.job.check is not None:
                    inputs = plan.inputs(step.name, verified=False)
                    fresh.job.check(fresh.config, inputs, plan.parent_results(step.name))
                changed = fresh
        needs = _estimate_step(plan, changed, machines)
        if changed is not step and needs is not None and _fits(needs, machines):
            return chosen
    return []
