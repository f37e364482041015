"""More of the same: a step that goes on from one that differs from it only in having had less.

    steps/<step id>/state/        what a finished step left for longer ones (`Context.state`)
    longer/<family>/<value>       the id of the step that had `value` of it

A family is an identity without the one setting of which there may be more. Where a step of the family with less is
found, the job gets its state and does the rest; the result is what it would be without, so that identity knows
nothing of it, and nothing is lost where the state is gone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from orchestrator.canonical import canonical_json
from orchestrator.plan import Planned
from orchestrator.store import Store


@dataclass(frozen=True)
class Family:
    """The steps that differ from one only in how much they had of one setting."""

    key: str
    value: float
    """What this step has of it."""

    @classmethod
    def of(cls, planned: Planned) -> Family | None:
        """None where more of it is not more of the same."""
        longer, config = planned.step.job.longer, planned.step.config
        if longer is None or longer[1](config) or planned.identity is None:
            return None
        name = longer[0]
        rest = {key: value for key, value in planned.identity["config"].items() if key != name}
        key = hashlib.sha256(canonical_json({**planned.identity, "config": rest})).hexdigest()
        return cls(key, getattr(config, name))

    def earlier(self, store: Store) -> Path | None:
        """The state of the longest of the shorter steps that are still there."""
        folder = store.local("longer", self.key)
        values = sorted((float(path.name), path.name) for path in folder.glob("[0-9]*")) if folder.is_dir() else []
        for _, name in reversed([found for found in values if found[0] < self.value]):
            step_id = store.read(f"longer/{self.key}/{name}")
            state = store.local("steps", step_id, "state")
            if store.use(step_id) is not None and state.is_dir():  # used: `gc` leaves it alone meanwhile
                return state
        return None

    def keep(self, store: Store, step_id: str, state: Path) -> None:
        """Keeps what a step left, if it left anything, for the longer ones."""
        if state.is_dir():
            kept = store.local("steps", step_id, "state")
            if not kept.exists():  # another attempt's is as good, and may be in use
                state.rename(kept)
            store.overwrite(f"longer/{self.key}/{self.value:g}", step_id)
