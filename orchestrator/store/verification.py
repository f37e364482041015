"""Verification of a whole store: checks every pointer to a result, and every object against its manifest. Read-only."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from rich.progress import track

from ratchet.errors import DamagedError
from ratchet.orchestrator.job_interface.clean_output import CleanConsole
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.manifest import NAME, STRAY, File, Manifest, describe_damage

THREADS = 8


@dataclass
class Verification:
    """Counts of what was checked, and messages about damage."""

    commits: int = 0
    objects: int = 0
    files: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    """A message for each damage: where; what was found; what was expected; what to do."""


def verify(store: Store) -> Verification:
    """Check every commit of a store, and read every file. Raises StoreError for results of a newer version, and
    UnreachableError if object storage does not answer."""
    found = Verification()
    names = {}
    for step_id in store.list_names("steps"):
        try:
            commit = store.lookup(step_id)
        except DamagedError as error:
            found.problems.append(str(error))
            continue
        if commit is not None:
            found.commits += 1
            names[commit.manifest] = f"step {commit.record.get('name', step_id[:12])}"
    found.objects = len(names)
    found.problems += _check_promoted(store)
    console = CleanConsole(stderr=True)
    hidden = not console.is_terminal
    for digest in track(sorted(names), "objects", console=console, disable=hidden, transient=True):
        _check_object(store, digest, names[digest], found)
    return found


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


def _check_object(store: Store, digest: str, step: str, found: Verification) -> None:
    """Check the names, sizes and contents of an object's files in the storage itself, not those of local copies."""
    where = f"{step}: {store.where}/objects/{digest}"
    try:
        manifest = Manifest.load(store.backend.manifest(digest), digest, f"{where}/{NAME}")
    except DamagedError as error:
        found.problems.append(str(error))
        return
    sizes, folders = store.backend.list_sizes(digest)
    for stray in manifest.find_strays(sizes, folders):
        found.problems.append(describe_damage(f"{where}/{stray}", *STRAY))

    def check(file: File) -> str:
        size = sizes.get(file.path)
        if size != file.bytes:
            given = "missing" if size is None else f"{size} bytes"
            return describe_damage(f"{where}/{file.path}", given, f"{file.bytes} bytes")
        expected = file.sha256[:12]
        try:
            content = store.backend.hash_file(digest, file)
        except ConnectionError:
            raise
        except OSError as error:
            given = error.strerror or str(error)
            return describe_damage(f"{where}/{file.path}", given, f"content {expected}")
        if content == file.sha256:
            return ""
        return describe_damage(f"{where}/{file.path}", f"content {content[:12]}", expected)

    with ThreadPoolExecutor(THREADS) as pool:
        for problem in pool.map(check, manifest.files):
            if problem:
                found.problems.append(problem)
    found.files += len(manifest.files)
    found.bytes += manifest.size
