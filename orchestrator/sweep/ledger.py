"""What is known of a sweep's trials: `sweeps/<id>/`, which outlives every kill.

    about.json           what the sweep was asked for
    events.jsonl         `begun` and `ended` of each trial; only ever appended to
    trials/<digest>/     the trial's runs: a journal for each seed
    report.html, .md     and winner.yaml, once there is one

The sweep's id is the digest of everything that its trials' values depend on (recipe, settings, space, metric, the jobs'
code, the data) and of how they are chosen, but not of how many there are: more of them are more of the same sweep.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.canonical import canonical_json
from orchestrator.journal import Journal
from orchestrator.store import Store


@dataclass(frozen=True)
class Trial:
    """What came of a trial."""

    settings: Mapping[str, str]
    status: str = "unfinished"
    """`finished`, `stopped` (ended early as a bad one), `failed`, or `unfinished`."""
    value: float | None = None
    """Mean over the seeds; of a stopped one the last checkpoint's."""
    values: Sequence[float] = ()
    """Of each seed."""
    curve: Sequence[float] = ()
    """Of the first seed, after each checkpoint."""
    reason: str = ""
    seconds: float = field(default=0.0, compare=False)
    """From its start to its end, by the clock."""

    @property
    def key(self) -> str:
        return key_of(self.settings)


def key_of(settings: Mapping[str, str]) -> str:
    """Names a trial by its settings."""
    return hashlib.sha256(canonical_json(dict(settings))).hexdigest()[:12]


class Ledger:
    """A sweep's folder. Numbers trials in the order in which they were first begun."""

    def __init__(self, store: Store, recipe: str, document: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """document: what the sweep's id is the digest of. about: kept for people; the newest command's is kept."""
        digest = hashlib.sha256(canonical_json(dict(document))).hexdigest()
        store.pull(f"sweeps/{recipe}-{digest[:12]}")
        self.journal = Journal(store.local("sweeps", f"{recipe}-{digest[:12]}"))
        self.folder: Path = self.journal.folder
        self.folder.mkdir(parents=True, exist_ok=True)
        before = self.journal.read("about.json") or {"started": time.time()}
        self.started: float = before["started"]
        self.journal.write("about.json", {"recipe": recipe, "started": self.started, **about})
        self.trials: dict[str, Trial] = {}
        for event in self.journal.events():
            if event["event"] == "begun":
                self.trials.setdefault(key_of(event["settings"]), Trial(event["settings"]))
            elif event["event"] == "ended":
                trial = Trial(**event["trial"])
                self.trials[trial.key] = trial

    @property
    def id(self) -> str:
        return self.folder.name

    def number(self, settings: Mapping[str, str]) -> int:
        """1 for the trial that was begun first."""
        return list(self.trials).index(key_of(settings)) + 1

    def begun(self, settings: Mapping[str, str]) -> None:
        if key_of(settings) not in self.trials:
            self.trials[key_of(settings)] = Trial(settings)
            self.journal.event("begun", settings=dict(settings))

    def ended(self, trial: Trial) -> None:
        """Keeps what came of a trial; what is known already is not written again."""
        if self.trials.get(trial.key) != trial:
            self.trials[trial.key] = trial
            self.journal.event("ended", trial=asdict(trial))

    def settled(self) -> dict[str, Trial]:
        """What needs no computing again, by key. A failed trial is tried again."""
        return {key: trial for key, trial in self.trials.items() if trial.status in ("finished", "stopped")}

    def runs(self, trial: Trial) -> list[Journal]:
        """The journals of a trial's seeds."""
        return [Journal(folder) for folder in sorted((self.folder / "trials" / trial.key).glob("seed-*"))]
