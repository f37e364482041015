"""Verification of a whole store: checks every pointer to a result, and every object against its manifest. Read-only."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from ratchet.errors import DamagedError
from ratchet.orchestrator.store import Commit, Store
from ratchet.orchestrator.store.manifest import NAME, STRAY, File, Manifest, describe_damage
from ratchet.orchestrator.store.parallel import map_parallel

THREADS = 8


@dataclass
class Verification:
    """Counts of what was checked, and messages about damage."""

    commits: int = 0
    objects: int = 0
    files: int = 0
    files_read: int = 0
    bytes_read: int = 0
    problems: list[str] = field(default_factory=list)
    """A message for each damage: where; what was found; what was expected; what to do."""


def verify(store: Store, sample: float = 1.0) -> Verification:
    """Check every commit of a store. sample: fraction of the files, drawn at random, whose content is read.

    Raises StoreError for results of a newer version, and UnreachableError if object storage does not answer.
    """
    found = Verification()
    commits = _read_commits(store, found)
    _check_promoted(store, found)
    names = {}
    for commit in commits:
        names[commit.manifest] = f"step {commit.record.get('name', commit.step_id[:12])}"
    found.commits = len(commits)
    found.objects = len(names)
    checked = map_parallel(THREADS, lambda named: _check_object(store, *named), sorted(names.items()), "objects")
    found.problems += [item for item in checked if isinstance(item, str)]
    files = [item for item in checked if not isinstance(item, str)]
    found.files = len(files)
    if sample == 1:
        drawn = files
    else:
        drawn = random.sample(files, round(sample * len(files)))
    found.files_read = len(drawn)
    found.bytes_read = sum(file.bytes for _, file in drawn)
    found.problems += map_parallel(THREADS, lambda item: _check_content(store, *item, names[item[0]]), drawn, "files")
    return found


def _read_commits(store: Store, found: Verification) -> list[Commit]:
    def look_up(step_id: str) -> Iterator[Commit | str]:
        try:
            commit = store.lookup(step_id)
            if commit is not None:
                yield commit
        except DamagedError as error:
            yield str(error)

    read = map_parallel(THREADS, look_up, store.list_names("steps"), "steps")
    found.problems += [item for item in read if isinstance(item, str)]
    made: list[Commit] = []
    for item in read:
        if isinstance(item, Commit):
            made.append(item)
    return made


def _check_promoted(store: Store, found: Verification) -> None:
    for name in store.list_names("promoted"):
        if not name.endswith(".json"):
            continue
        try:
            exists = store.lookup(store.read(f"promoted/{name}")["step_id"]) is not None
        except (DamagedError, KeyError, TypeError):
            exists = False
        if not exists:
            found.problems.append(
                f"{store.where}/promoted/{name}: points to no result; expected a promoted model; promote it"
                f" again: ratchet promote MODEL {name.removesuffix('.json')}"
            )


def _check_object(store: Store, digest: str, step: str) -> Iterator[tuple[str, File] | str]:
    """Yield (address, file) for each file of the right size, and a message for each damage of the object."""
    key = f"{store.where}/objects/{digest}"
    try:
        manifest = Manifest.load(store.backend.manifest(digest), digest, f"{step}: {key}/{NAME}")
    except DamagedError as error:
        yield str(error)
        return
    sizes, folders = store.backend.list_sizes(digest)
    for stray in manifest.find_strays(sizes, folders):
        yield describe_damage(f"{step}: {key}/{stray}", *STRAY)
    for file in manifest.files:
        size = sizes.get(file.path)
        if size == file.bytes:
            yield digest, file
        else:
            if size is None:
                given = "missing"
            else:
                given = f"{size} bytes"
            yield describe_damage(f"{step}: {key}/{file.path}", given, f"{file.bytes} bytes")


def _check_content(store: Store, digest: str, file: File, step: str) -> Iterator[str]:
    path = f"{step}: {store.where}/objects/{digest}/{file.path}"
    try:
        content = store.backend.hash_file(digest, file)
    except ConnectionError:
        raise
    except OSError as error:
        yield describe_damage(path, error.strerror or str(error), f"content {file.sha256[:12]}")
    else:
        if content != file.sha256:
            yield describe_damage(path, f"content {content[:12]}", f"{file.sha256[:12]}")
