"""The dtype of a step: `auto` is resolved once, before the workers start, so that no result mixes two dtypes.

The choice is kept in the step's work folder. A later attempt uses it again, on whichever machines it runs, and a worker
on a machine that does not multiply bfloat16 natively refuses to take part.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ratchet.errors import InputError
from ratchet.models.devices import multiplies_bfloat16
from ratchet.orchestrator.job_interface import Context, Resources, write_atomically
from ratchet.orchestrator.job_interface.placement import list_nodes

FILE = "dtype"
"""The file in the work folder. It exists only if the setting is `auto`."""

GPUS_WITHOUT_BFLOAT16 = frozenset({"K80", "P4", "P100", "V100", "T4"})
"""In Ray's spelling."""

C = TypeVar("C")


def resolve_dtype(context: Context, config: C) -> C:
    """Return the config with `dtype` float32 or bfloat16, where it is `auto`. Ray must be running.

    auto is bfloat16 if all machines that workers fit on now multiply it natively."""
    given: Any = config
    if given.dtype != "auto":
        return config
    file = context.work / FILE
    if not file.exists():
        chosen = "bfloat16" if _is_bfloat16_native(context.resources) else "float32"
        write_atomically(file, chosen)
    return replace(given, dtype=file.read_text())


def check_dtype(context: Context) -> None:
    """Raise InputError if `auto` is bfloat16 in this step and this machine does not multiply it natively. Called first
    in every worker."""
    file = context.work / FILE
    if not file.exists() or file.read_text() != "bfloat16":
        return
    device = "cuda" if context.resources.gpus else "cpu"
    if not multiplies_bfloat16(torch.device(device)):
        raise InputError(
            f"step {context.step}, machine {ray.util.get_node_ip_address()}: its {device} does not multiply bfloat16"
            " natively, and dtype=auto was resolved to bfloat16 when the step started; expected machines that do, since"
            " one result has one dtype; choose them (--set accelerator=... or labels=...), or set dtype=float32"
        )


def _is_bfloat16_native(resources: Resources) -> bool:
    """Whether all machines that workers fit on now multiply bfloat16 natively. Waits for a machine if there is none."""
    nodes = {node: machine for node, machine in list_nodes().items() if machine.count_fitting(resources)}
    if resources.gpus:
        kinds = [machine.accelerators or frozenset() for machine in nodes.values()]
        return not GPUS_WITHOUT_BFLOAT16 & frozenset({resources.accelerator}).union(*kinds)
    if list(nodes) == [ray.get_runtime_context().get_node_id()]:
        return multiplies_bfloat16(torch.device("cpu"))
    probe: Any = ray.remote(num_cpus=0)(lambda: multiplies_bfloat16(torch.device("cpu")))
    if not nodes:
        anywhere = probe.options(num_cpus=resources.cpus, label_selector=resources.selector() or None)
        return bool(ray.get(anywhere.remote()))
    # Soft: a machine that is lost meanwhile is not asked.
    pinned = [probe.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True)) for node in nodes]
    return all(ray.get([one.remote() for one in pinned]))
