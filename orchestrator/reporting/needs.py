"""What steps need, as text for the plan."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ratchet.orchestrator.reporting.formatting import format_duration

if TYPE_CHECKING:  # it imports Ray
    from ratchet.orchestrator.needs import StepNeeds


def format_needs(own: StepNeeds) -> str:
    """Return the memory and disk of a step, and its time on the GPUs where it is known."""
    needs, workers = own.needs, own.resources.workers or 1
    parts = [f"{workers} workers"] if workers > 1 else []
    parts += [f"GPU {needs.gpu_memory:.1f} GB"] if needs.gpu_memory else []
    parts += [f"memory {needs.memory:.1f} GB"]
    parts += [f"disk {needs.disk:.1f} GB"] if needs.disk >= 0.05 else []
    parts += [f"at most {format_duration(own.hours * 3600)}"] if own.hours is not None else []
    return ", ".join(parts)


def format_total(needs: Collection[StepNeeds]) -> str:
    """Return the totals of all steps, or an empty string without GPUs."""
    on_gpus = [own for own in needs if own.needs.gpu_memory]
    if not on_gpus:
        return ""
    known = [own for own in on_gpus if own.hours is not None]
    hours = sum(own.hours or 0.0 for own in known)
    rest = f", and {len(on_gpus) - len(known)} steps of unknown length" if len(known) < len(on_gpus) else ""
    return (
        f"at most {format_duration(hours * 3600)}, {sum(own.gpu_hours for own in known):.1f} GPU-hours{rest};"
        f" disk {sum(own.needs.disk for own in needs):.1f} GB"
    )
