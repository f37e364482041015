"""Verification of a whole store: checks every pointer to a result, and every object against its manifest. Read-only."""

from dataclasses import dataclass, field

from rich.progress import track

from ratchet.errors import DamagedError
from ratchet.orchestrator.job_interface.clean_output import CleanConsole
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.manifest import NAME, Manifest


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
    console = CleanConsole(stderr=True)
    hidden = not console.is_terminal
    for digest in track(sorted(names), "objects", console=console, disable=hidden, transient=True):
        _check_object(store, digest, names[digest], found)
    return found


def _check_object(store: Store, digest: str, step: str, found: Verification) -> None:
    """Check the names, sizes and contents of an object's files in the storage itself, not those of local copies."""
    where = f"{step}: {store.where}/objects/{digest}"
    try:
        manifest = Manifest.load(store.backend.manifest(digest), digest, f"{where}/{NAME}")
    except DamagedError as error:
        found.problems.append(str(error))
        return
    sizes, folders = store.backend.list_sizes(digest)
    found.problems += manifest.find_damage(
        where, sizes, folders, lambda file: store.backend.hash_file(digest, file)
    )
    found.files += len(manifest.files)
    found.bytes += manifest.size
