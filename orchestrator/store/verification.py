"""Verification of a whole store: checks every pointer to a result, and every object against its manifest. Read-only."""

from __future__ import annotations

import random
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
    names = {}
    for commit in map_parallel(
        THREADS, lambda step_id: _look_up(store, step_id), store.list_names("steps"), "steps"
    ):
        if isinstance(commit, str):
            found.problems.append(commit)
        elif commit is not None:
            found.commits += 1
            names[commit.manifest] = f"step {commit.record.get('name', commit.step_id[:12])}"
    found.objects = len(names)
    found.problems += _check_promoted(store)
    files: list[tuple[str, File]] = []
    for problems, whole in map_parallel(
        THREADS, lambda named: _check_names(store, *named), sorted(names.items()), "objects"
    ):
        found.problems += problems
        files += whole
    found.files = len(files)
    drawn = files if sample == 1 else random.sample(files, round(sample * len(files)))
    found.files_read = len(drawn)
    found.bytes_read = sum(file.bytes for _, file in drawn)
    contents = map_parallel(
        THREADS, lambda item: _check_content(store, *item, names[item[0]]), drawn, "files"
    )
    found.problems += [problem for problem in contents if problem]
    return found


def _look_up(store: Store, step_id: str) -> Commit | str | None:
    """Return the commit of a step, or a message about its damage."""
    try:
        return store.lookup(step_id)
    except DamagedError as error:
        return str(error)


def _check_promoted(store: Store) -> list[str]:
    problems = []
    for name in store.list_names("promoted"):
        if not name.endswith(".json"):
            continue
        try:
            exists = store.lookup(store.read(f"promoted/{name}")["step_id"]) is not None
        except (DamagedError, KeyError, TypeError):
            exists = False
        if not exists:
            problems.append(
                f"{store.where}/promoted/{name}: points to no result; expected a promoted model; promote it"
                f" again: ratchet promote MODEL {name.removesuffix('.json')}"
            )
    return problems


def _check_names(store: Store, digest: str, step: str) -> tuple[list[str], list[tuple[str, File]]]:
    """Return messages about the damage of an object, and (address, file) for each file of the right size."""
    key = f"{store.where}/objects/{digest}"
    try:
        manifest = Manifest.load(store.backend.manifest(digest), digest, f"{step}: {key}/{NAME}")
    except DamagedError as error:
        return [str(error)], []
    sizes, folders = store.backend.list_sizes(digest)
    problems = []
    for stray in manifest.find_strays(sizes, folders):
        problems.append(describe_damage(f"{step}: {key}/{stray}", *STRAY))
    whole = []
    for file in manifest.files:
        size = sizes.get(file.path)
        if size == file.bytes:
            whole.append((digest, file))
        else:
            given = "missing" if size is None else f"{size} bytes"
            problems.append(
                describe_damage(f"{step}: {key}/{file.path}", given, f"{file.bytes} bytes")
            )
    return problems, whole


def _check_content(store: Store, digest: str, file: File, step: str) -> str:
    """Return a message if the content of a file is not what was committed, else an empty text."""
    path = f"{step}: {store.where}/objects/{digest}/{file.path}"
    try:
        content = store.backend.hash_file(digest, file)
    except ConnectionError:
        raise
    except OSError as error:
        return describe_damage(path, error.strerror or str(error), f"content {file.sha256[:12]}")
    if content == file.sha256:
        return ""
    return describe_damage(path, f"content {content[:12]}", f"{file.sha256[:12]}")
