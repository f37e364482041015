"""Warm starts: a step continues from a finished step with the same config but, for example, fewer epochs.

Steps whose fingerprints differ only in `WarmStart.setting` are a family. The store lists their finished steps by value.
A finished step leaves its training state (`Context.warm_start_to`), and a step with a larger value continues from it.
The result is the same as without a warm start. Warm starts are therefore not part of the fingerprint, and states may be
removed at any time. A state is verified against its digests before it is used.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ratchet.orchestrator.canonical_json import digest
from ratchet.orchestrator.job_interface.digests import find_damage, hash_files, publish
from ratchet.orchestrator.plan import Planned
from ratchet.orchestrator.store import Store


@dataclass(frozen=True)
class WarmStartFamily:
    """A family of steps that differ only in the value of one setting, seen from one step of it."""

    key: str
    value: float
    """This step's value of the setting."""

    @classmethod
    def from_plan(cls, planned: Planned) -> WarmStartFamily | None:
        """Return the family of a step, or None if its job or config does not allow a warm start."""
        warm_start, config = planned.step.job.warm_start, planned.step.config
        if warm_start is None or warm_start.blocked_by(config):
            return None
        name = warm_start.setting
        rest = {key: value for key, value in planned.fingerprint["config"].items() if key != name}
        key = digest({**planned.fingerprint, "config": rest})
        return cls(key, getattr(config, name))

    def find_state(self, store: Store, keep: Callable[[str], None]) -> tuple[Path | None, list[str]]:
        """Return the intact state with the largest smaller value, or None; and messages on damaged, removed states.

        keep: called with a step's id before its state is read, to make `gc` keep the step.
        """
        damaged: list[str] = []
        names = store.list_names(f"warm_start/{self.key}")
        for _, name in sorted(((_parse(name), name) for name in names if _parse(name) < self.value), reverse=True):
            if (step_id := store.read_if_whole(f"warm_start/{self.key}/{name}")) is None:
                continue
            keep(step_id)  # before `use`, so that every `gc` sees one of the two
            state = store.local("steps", str(step_id), "state")
            if store.use(step_id) is not None and state.is_dir():
                if not (damage := find_damage(state)):
                    return state, damaged
                damaged.append(f"warm start: the state of step {step_id[:12]} was not used: {damage}")
                shutil.rmtree(state, ignore_errors=True)
        return None, damaged

    def save_state(self, store: Store, step_id: str, state: Path) -> None:
        """Store the state that a step left, if any, for steps with larger values."""
        if state.is_dir():
            kept = store.local("steps", step_id, "state")
            if not kept.exists():  # the state of another attempt is equal, and may be in use
                publish(state, kept, hash_files(state))
            store.overwrite(f"warm_start/{self.key}/{self.value:g}", step_id)


def _parse(name: str) -> float:
    """Return the value in the name of an entry; infinity if the name is not a number."""
    try:
        return float(name)
    except ValueError:
        return math.inf
