"""Runs a worker over Parquet shards with Ray Data. A shard is the unit of work, and of what a kill can lose.

A worker is a class that is made once per actor and called with (input shard, file to write); it returns what it
counted. A finished shard is one with a note: a small file, replaced in one piece, that names the shard's file and holds
its digest and that of its input. Files without a note, or that differ from it, count as not there, so a worker
that outlives its killed driver can tear nothing.

What a worker raises travels back as data and is raised again, whole: Ray Data would pass on a text about it. Workers
that are lost (killed, out of memory, their node gone) are replaced by Ray Data, which gives their shard to another.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import pickle
import shutil
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from jobs.job import BadArtifact, BadInput, Context, JobError, Progress, Resources
from jobs.machines import check_shared, seen
from jobs.progress import beside
from jobs.trail import Trail

TELL_SECONDS = 0.25
"""Between two reports of one worker."""


class Tell(Protocol):
    """How a worker says how far it is within its shard."""

    def __call__(self, rows: int, tokens: int = 0) -> None: ...


class ShardWorker(Protocol):
    """What `map_shards` runs, one per actor."""

    def __call__(self, source: Path, target: Path, tell: Tell) -> Mapping[str, int]:
        """Makes the file `target` from `source`. Returns counts, `rows` among them."""
        ...


def rows_of(shards: Sequence[Path], columns: Sequence[str]) -> int:
    """Rows of all shards, from their footers. Raises BadInput for one that is not Parquet or lacks a column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 0
    for path in shards:
        try:
            footer = pq.read_metadata(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise BadInput(f"{path}: cannot be read ({error}); expected a Parquet shard; make it again") from None
        missing = [name for name in columns if name not in footer.schema.to_arrow_schema().names]
        if missing:
            raise BadInput(f"{path}: has no column {', '.join(missing)}; expected one; is it another kind of table?")
        rows += footer.num_rows
    return rows


def map_shards(
    context: Context,
    shards: Sequence[Path],
    worker: type,
    arguments: Mapping[str, Any],
    out: Path,
    *,
    suffix: str = ".parquet",
    total_rows: int | None = None,
) -> dict[str, int]:
    """One output file in `out` for each of `shards`, of the same stem; returns the workers' counts, added up.

    `out` is `context.out` or a folder in it (or in `context.work`, for what is no part of the artifact). Shards that an
    earlier attempt finished are taken from `context.work`. `arguments` are the worker's keywords; `total_rows` is for
    the progress only. Ray must be running; the caller may be a task or a driver.

    Raises what a worker raised, as it was. JobError if a shard's worker was lost `context.resources.retries` times more
    than it may be: the shard itself is the likely reason then. An error of ray.exceptions if Ray itself gave up.
    """

    def make(targets: Mapping[Path, Path], done: int) -> None:
        _run(context, targets, worker, arguments, done, total_rows)

    return completed(context, shards, out, make, suffix=suffix)


def completed(
    context: Context,
    shards: Sequence[Path],
    out: Path,
    make: Callable[[Mapping[Path, Path], int], None],
    *,
    suffix: str = ".parquet",
) -> dict[str, int]:
    """As `map_shards`, with another way to make files: `make` is given the shards that are not finished, each with the
    file that `keep` is to write for it, and the number of rows that are."""
    inside = out.relative_to(context.out) if out.is_relative_to(context.out) else out.relative_to(context.work)
    kept = context.work / "shards" / inside
    names = {shard: shard.stem + suffix for shard in shards}
    if len(set(names.values())) != len(shards):
        raise BadArtifact(f"step {context.step}: two input shards have one name; expected a name of its own for each")
    kept.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    notes = {shard: _finished(shard, kept / name) for shard, name in names.items()}
    todo = [shard for shard in shards if notes[shard] is None]
    if todo:
        done = sum(note["counts"]["rows"] for note in notes.values() if note)
        make({shard: kept / names[shard] for shard in todo}, done)
    counts: Counter[str] = Counter(rows=0)
    for shard, name in names.items():
        note = notes[shard] or _note(kept / name)
        made = kept / note["file"] if note else None
        if note is None or made is None or not made.exists() or made.stat().st_size != note["bytes"]:
            raise BadArtifact(f"{kept / name}: missing or changed after it was written; expected the shard of {shard}")
        _place(made, out / name)
        counts.update(note["counts"])
    return dict(counts)


def _run(
    context: Context,
    targets: Mapping[Path, Path],
    worker: type,
    arguments: Mapping[str, Any],
    done: int,
    total_rows: int | None,
) -> None:
    import ray
    from ray.data import ActorPoolStrategy

    quiet()
    resources = context.resources
    workers = min(resources.workers or 1, len(targets))
    counter: Any = ray.remote(num_cpus=0, scheduling_strategy=beside())(Tally)
    tally = counter.remote(context, done, total_rows)
    # Paths, not tables, and no repartition: tasks of Ray Data's own would wait for the CPUs that the actors hold.
    items = [{"source": str(source), "target": str(target)} for source, target in targets.items()]
    results = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        _Actor,
        fn_constructor_args=(worker, dict(arguments), seen(arguments), context, tally),
        batch_size=1,
        compute=ActorPoolStrategy(size=workers),
        num_cpus=resources.cpus,
        num_gpus=resources.gpus or None,
        **where(resources),
    )
    if (failure := _first_failure(results)) is not None:
        raise failure
    ray.get(tally.flush.remote())


def where(resources: Resources) -> dict[str, Any]:
    """Which machines an actor may run on, as Ray's options say it."""
    options = {
        "memory": resources.memory * 1e9,
        "accelerator_type": resources.accelerator,
        "label_selector": resources.selector(),
    }
    return {name: value for name, value in options.items() if value}


def quiet() -> None:
    """Ray Data without its bars, and without its log: what matters of a failure is raised; the log is the same at
    length, and not for the person at the screen."""
    import logging

    from ray.data import DataContext

    settings = DataContext.get_current()
    settings.enable_progress_bars = False
    settings.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)


def _first_failure(results: Any) -> BaseException | None:
    """Waits for all shards, or for the first that fails: returning lets go of the iterator, which ends the actors."""
    for row in results.iter_rows():
        if row["error"]:
            return pickle.loads(base64.b64decode(row["error"]))
    return None


class _Actor:
    """Makes the worker once, and calls it for each shard."""

    def __init__(
        self, worker: type, arguments: dict[str, Any], paths: Sequence[Path], context: Context, tally: Any
    ) -> None:
        self.make, self.arguments, self.paths, self.context, self.tally = worker, arguments, paths, context, tally
        self.worker: ShardWorker | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        source, target = Path(str(batch["source"][0])), Path(str(batch["target"][0]))
        try:
            self._work(source, target)
        except Exception as error:
            return {"source": [str(source)], "error": [_packed(error)]}
        return {"source": [str(source)], "error": [""]}

    def _work(self, source: Path, target: Path) -> None:
        if self.worker is None:
            check_shared(self.context.step, (source, target.parent, *self.paths))
        trail = Trail(self.context, target.with_name(f"{target.name}.trail"), f"shard {source.name}", "rows")
        lost = trail.begin()
        if lost > self.context.resources.retries:
            raise JobError(
                f"step {self.context.step}, shard {source}: its worker was lost {lost} times (killed, out of memory);"
                " expected it to get through; give workers more memory, or fewer batch_tokens or workers"
            )
        if self.worker is None:
            # Here and not in __init__: what a constructor raises, Ray Data takes for a lost actor.
            import torch

            torch.set_num_threads(max(1, int(self.context.resources.cpus or 1)))
            self.worker = self.make(**self.arguments)
        make, tell = self.worker, self._tell(source, trail)
        counts = keep(self.context, source, target, lambda fresh: make(source, fresh, tell))
        trail.end()
        self.tally.tell.remote(str(source), counts["rows"], counts.get("tokens", 0))

    def _tell(self, source: Path, trail: Trail) -> Tell:
        told = 0.0

        def tell(rows: int, tokens: int = 0) -> None:
            nonlocal told
            trail.tell(rows)
            if time.monotonic() - told >= TELL_SECONDS:
                told = time.monotonic()
                self.tally.tell.remote(str(source), int(rows), int(tokens))

        return tell


def keep(context: Context, source: Path, target: Path, write: Callable[[Path], Mapping[str, int]]) -> dict[str, int]:
    """Finishes a shard: `write` makes a file and returns what it counted, `rows` among it. Raises what it raises, and
    leaves nothing behind then."""
    # A name that no other worker, attempt or machine uses.
    fresh = target.with_name(f"{target.stem}.{context.attempt}-{uuid.uuid4().hex[:8]}{target.suffix}")
    try:
        counts = dict(write(fresh))
        _synced(fresh)
        note = {
            "file": fresh.name,
            "bytes": fresh.stat().st_size,
            "sha256": _sha256(fresh),
            "source": _sha256(source),
            "counts": counts,
        }
        beside = _note_path(fresh)
        beside.write_text(json.dumps(note))
        _synced(beside)
        beside.replace(_note_path(target))
    except BaseException as error:
        fresh.unlink(missing_ok=True)
        _note_path(fresh).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
            raise OSError(error.errno, os.strerror(error.errno), str(target)) from error
        raise
    return counts


class Tally:
    """Adds up what all workers did and passes it on."""

    def __init__(self, context: Context, done: int, total: int | None) -> None:
        self.context, self.done, self.total = context, done, total
        self.shards: dict[str, tuple[int, int]] = {}
        self.begun: tuple[float, int] | None = None  # when the first report came, and its tokens: loading is over then
        self.passed_on = 0.0

    def tell(self, shard: str, rows: int, tokens: int) -> None:
        self.shards[shard] = (rows, tokens)
        self.begun = self.begun or (time.monotonic(), tokens)
        if time.monotonic() - self.passed_on >= TELL_SECONDS:
            self.flush()

    def flush(self) -> None:
        self.passed_on = time.monotonic()
        rows = self.done + sum(rows for rows, _ in self.shards.values())
        tokens = sum(tokens for _, tokens in self.shards.values())
        since, before = self.begun or (self.passed_on, 0)
        speed = {"tokens_per_s": (tokens - before) / (self.passed_on - since)} if tokens > before else {}
        self.context.progress(Progress(rows, self.total, "rows", numbers=speed))


def _finished(source: Path, target: Path) -> dict[str, Any] | None:
    """The note of a finished shard, or None if it must be (re)done."""
    note = _note(target)
    try:
        if note is None or note["source"] != _sha256(source):
            return None
        return note if note["sha256"] == _sha256(target.with_name(note["file"])) else None
    except (FileNotFoundError, KeyError):
        return None


def _note(target: Path) -> dict[str, Any] | None:
    try:
        note = json.loads(_note_path(target).read_text())
    except (FileNotFoundError, ValueError):
        return None
    whole = isinstance(note, dict) and isinstance(note.get("counts"), dict) and "rows" in note["counts"]
    return note if whole else None


def _note_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.note")


def _synced(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _place(made: Path, target: Path) -> None:
    """Hard links where the file system has them."""
    target.unlink(missing_ok=True)
    try:
        os.link(made, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        shutil.copyfile(made, target)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _packed(error: Exception) -> str:
    """The error, with its traceback as text beside it (tracebacks themselves do not travel)."""
    trace = traceback.format_exc()
    try:
        error.__dict__["remote_traceback"] = trace
        packed = pickle.dumps(error)
        pickle.loads(packed)
    except Exception:
        # Some libraries' errors cannot travel: their text can.
        packed = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}\n{trace}"))
    return base64.b64encode(packed).decode()
