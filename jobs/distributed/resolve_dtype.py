"""Resolution of dtype=auto: once per step, before its workers start, so that a result never mixes two dtypes.

The resolved dtype is stored in the step's work folder. Later attempts use it again, on any machines. If it is bfloat16,
a worker on a machine that does not multiply bfloat16 natively raises an error.
"""

from dataclasses import replace
from typing import Any, TypeVar

import ray
import torch

from ratchet.errors import InputError
from ratchet.models.devices import multiplies_bfloat16
from ratchet.orchestrator.job_interface import Context, Resources, write_atomically
from ratchet.orchestrator.job_interface.placement import list_nodes

FILE = "dtype"
"""File in the work folder with the resolved dtype. It exists only if the setting is `auto`."""

GPUS_WITHOUT_BFLOAT16 = frozenset({"K80", "P4", "P100", "V100", "T4"})
"""GPU types in Ray's spelling."""

C = TypeVar("C")


def resolve_dtype(context: Context, config: C) -> C:
    """Return the config with `dtype` auto replaced by float32 or bfloat16. Ray must be running.

    auto is bfloat16 if the machine of the step, or all machines that currently have room for a worker with GPUs,
    multiply bfloat16 natively."""
    given: Any = config
    if given.dtype != "auto":
        return config
    file = context.work / FILE
    context.files.fetch(file)
    if not file.exists():
        chosen = "bfloat16" if _is_bfloat16_native(context.resources) else "float32"
        write_atomically(file, chosen)
        context.files.send(file)
    return replace(given, dtype=file.read_text())


def check_dtype(context: Context) -> None:
    """Raise InputError if `auto` was resolved to bfloat16 and this machine does not multiply it natively. Every worker
    calls it first."""
    file = context.work / FILE
    context.files.fetch(file)
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
    """Return whether the GPUs of all machines with room for a worker multiply bfloat16 natively; without GPUs, whether
    this machine does."""
    if not resources.gpus:
        return multiplies_bfloat16(torch.device("cpu"))
    kinds = {resources.accelerator}
    for machine in list_nodes().values():
        if machine.count_fitting(resources):
            kinds |= machine.accelerators or frozenset()
    return not GPUS_WITHOUT_BFLOAT16 & kinds
