"""Promotion: a result gets a name, `promoted/NAME` in the store, which `gc` keeps and by which a model is found."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ratchet.errors import InputError
from ratchet.orchestrator.atomic_file import make_folder, sync, write_atomically
from ratchet.orchestrator.job_interface.job import infer_direction
from ratchet.orchestrator.run_models import RunModel
from ratchet.orchestrator.store import Commit, Store, audit_log

NAME = re.compile(r"[A-Za-z_][\w-]*")
"""What a promoted name looks like: unlike the id of a run, it begins with a letter."""
MOST_EARLIER = 100
"""Earlier results of a name that its file lists."""


def check_name(name: str, where: str) -> None:
    """Raise InputError, beginning with `where`, for what is no name."""
    if not NAME.fullmatch(name):
        raise InputError(
            f"{where} {name}: expected a name of letters, digits, - and _, with a letter first; correct it"
        )


def promote(store: Store, name: str, commit: Commit, run_id: str, about: Mapping[str, Any]) -> Path:
    """Point `promoted/NAME` to a result, and return this link. `NAME.json` beside it says what it is, and what the name
    stood for before, the newest first. about: what is known besides the step and the object."""
    folder = store.local("promoted")
    make_folder(folder)
    own: dict[str, Any] = {"step_id": commit.step_id, "object": commit.manifest, **about}
    if (before := read_promotion(store, name)) is not None:
        earlier = before.pop("earlier", [])
        own["earlier"] = [before, *earlier][:MOST_EARLIER] if before != own else earlier
    write_atomically(folder / f"{name}.json", json.dumps(own, indent=1))
    link = folder / f".{name}.{os.getpid()}"
    link.symlink_to(Path("..", "objects", commit.manifest))
    link.replace(folder / name)
    sync(folder)
    store.publish(folder)
    audit_log.record(store, "promote", run_id, commit, name=name, bytes=store.manifest(commit.manifest).size)
    return folder / name


def read_promotion(store: Store, name: str) -> dict[str, Any] | None:
    """Return what is known of a promoted name; None if there is none. Raises DamagedError unless it is JSON."""
    found: dict[str, Any] | None = store.read(f"promoted/{name}.json")
    return found


def promote_model(store: Store, name: str, made: RunModel, commit: Commit, run_id: str) -> Path:
    """Promote the exported folder of a model. made: the model. commit: of its export, by a run."""
    about = {**asdict(made), "step_id": commit.step_id, "object": commit.manifest, "part": "model"}
    return promote(store, name, commit, run_id, {"of": made.name, "model": about})


def find_promoted(store: Store, name: str) -> RunModel | None:
    """Return the model that was promoted to a name; None if there is none."""
    found = read_promotion(store, name) if NAME.fullmatch(name) else None
    return RunModel(**found["model"]) if found and "model" in found else None


def check_better(store: Store, name: str, made: RunModel) -> None:
    """Raise InputError unless a model is better than the one that has the name now, by the first number of their rows
    that tells the quality, which must be of the same data."""
    if (before := find_promoted(store, name)) is None:
        return
    columns = [column for column in made.metrics if infer_direction(column) > 0 and column in before.metrics]
    if not columns or made.data.get(columns[0]) != before.data.get(columns[0]) or not made.data.get(columns[0]):
        raise InputError(
            f"promote {name}: {made.name} and {before.name} have no number of the same data in their tables; expected"
            " one to compare; evaluate both on one data set (ratchet evaluate), or leave --if-better out"
        )
    new, old = (one.metrics[columns[0]] for one in (made, before))
    if new <= old:
        raise InputError(
            f"promote {name}: {made.name} has {columns[0]} {new:.4f}; expected more than {old:.4f}, that of"
            f" {before.name}, which keeps the name; leave --if-better out to promote it anyway"
        )
