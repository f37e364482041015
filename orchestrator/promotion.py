"""Promotion: gives a result a name, `promoted/NAME` in the store. `gc` keeps it, and models are found by this name."""

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
from ratchet.orchestrator.run_models import RunModel
from ratchet.orchestrator.store import Commit, Store

NAME = re.compile(r"[A-Za-z_][\w-]*")
"""Pattern of promoted names. Unlike the ids of runs, they begin with a letter or _."""
MOST_EARLIER = 100
"""Maximum number of earlier results that the file of a name lists."""


def check_name(name: str, where: str) -> None:
    """Raise InputError, beginning with `where`, for an invalid name."""
    if not NAME.fullmatch(name):
        raise InputError(
            f"{where} {name}: expected a name of letters, digits, - and _, with a letter or _ first; correct it"
        )


def promote(store: Store, name: str, commit: Commit, run_id: str, about: Mapping[str, Any]) -> Path:
    """Link `promoted/NAME` to a result, and return the path of the link. `NAME.json` beside it describes the result and
    the earlier results of this name, the newest first. about: further fields of the description."""
    folder = store.local("promoted")
    make_folder(folder)
    own: dict[str, Any] = {"step_id": commit.step_id, "object": commit.manifest, **about}
    before = read_promotion(store, name)
    if before is not None:
        earlier = before.pop("earlier", [])
        own["earlier"] = earlier if before == own else [before, *earlier][:MOST_EARLIER]
    write_atomically(folder / f"{name}.json", json.dumps(own, indent=1))
    link = folder / f".{name}.{os.getpid()}"
    link.symlink_to(Path("..", "objects", commit.manifest))
    link.replace(folder / name)
    sync(folder)
    store.upload_folder(folder)
    return folder / name


def read_promotion(store: Store, name: str) -> dict[str, Any] | None:
    """Return the content of `promoted/NAME.json`; None if there is none. Raises DamagedError if it is not JSON."""
    found: dict[str, Any] | None = store.read(f"promoted/{name}.json")
    return found


def promote_model(store: Store, name: str, made: RunModel, commit: Commit, run_id: str) -> Path:
    """Promote an exported model. made: the model. commit, run_id: the result of its export and the run that made it."""
    about = {**asdict(made), "step_id": commit.step_id, "object": commit.manifest, "part": "model"}
    return promote(store, name, commit, run_id, {"of": made.name, "model": about})


def find_promoted(store: Store, name: str) -> RunModel | None:
    """Return the model that was promoted to a name; None if there is none."""
    found = read_promotion(store, name) if NAME.fullmatch(name) else None
    if found and "model" in found:
        return RunModel(**found["model"])
    return None
