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


def check_name(name: str) -> None:
    """Raise InputError for an invalid name."""
    if not NAME.fullmatch(name):
        raise InputError(
            f"promote {name}: expected a name of letters, digits, - and _, with a letter or _ first; correct it"
        )


def promote_model(store: Store, name: str, made: RunModel, commit: Commit) -> Path:
    """Promote an exported model. made: the model. commit: the result of its export."""
    about = {**asdict(made), "step_id": commit.step_id, "object": commit.manifest, "part": "model"}
    return promote(store, name, commit, {"of": made.name, "model": about})


def promote(store: Store, name: str, commit: Commit, about: Mapping[str, Any]) -> Path:
    """Link `promoted/NAME` to a result, and return the path of the link. `NAME.json` beside it describes the result.
    about: further fields of the description."""
    folder = store.local("promoted")
    make_folder(folder)
    own = {"step_id": commit.step_id, "object": commit.manifest, **about}
    write_atomically(folder / f"{name}.json", json.dumps(own, indent=1))
    link = folder / f".{name}.{os.getpid()}"
    link.symlink_to(Path("..", "objects", commit.manifest))
    link.replace(folder / name)
    sync(folder)
    store.upload_folder(folder)
    return folder / name


def find_promoted(store: Store, name: str) -> RunModel | None:
    """Return the model that was promoted to a name; None if there is none."""
    found = store.read(f"promoted/{name}.json") if NAME.fullmatch(name) else None
    if found and "model" in found:
        return RunModel(**found["model"])
    return None
