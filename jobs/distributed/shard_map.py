"""Maps a worker over Parquet shards with Ray. A shard is the unit of work, and is repeated if its worker is lost.

A worker is a class that is constructed once per process and called with (input shard, file to write). It returns
counts. A shard is finished when it has a record: a small JSON file, replaced atomically, that names the shard's output
file and holds the digests of output and input. Files without a matching record are ignored, so a worker that outlives
its killed driver cannot corrupt a shard.

Several workers are Ray tasks that take shards from a `ShardQueue`. Tasks reuse the processes of earlier steps of the
run, which have imported torch and other libraries. Actors (and so Ray Data's actor pools) would start new processes,
which takes about 10 s. Ray repeats the task of a lost worker (killed, out of memory, node gone), which begins with the
lost shard. A step that holds the resources of its only worker (`Job.is_worker`) runs the worker in its own process. If
this process is lost, the next attempt continues with the unfinished shards.

An exception in a worker is returned as JSON and raised again with its type, also if it cannot be pickled.
"""

import errno
import json
import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch
from ray import cloudpickle

from ratchet.errors import DISK_FULL, ArtifactError, InputError, JobError
from ratchet.jobs.distributed.error_json import error_from_json, error_to_json
from ratchet.jobs.distributed.resolve_dtype import check_dtype
from ratchet.jobs.distributed.shard_queue import REPORT_SECONDS, ProgressTally, ShardQueue
from ratchet.models.devices import name_device
from ratchet.orchestrator.job_interface import (
    Context,
    append_json,
    read_json_lines,
    sync,
    write_atomically,
)
from ratchet.orchestrator.job_interface.digests import compute_sha256
from ratchet.orchestrator.job_interface.placement import make_ray_options
from ratchet.orchestrator.job_interface.worker import (
    check_worker,
    find_existing_paths,
    make_this_node_strategy,
)


class ReportProgress(Protocol):
    """Reports the number of finished rows of the current shard, and the number of tokens processed for them."""

    def __call__(self, rows: int, tokens: int = 0) -> None: ...


ShardWorker = Callable[[Path, Path, ReportProgress], Mapping[str, int]]
"""The worker of `map_shards`, one instance per process: (source, target, report) -> counts, among them `rows`. It
writes the file `target`."""


def count_rows(shards: Sequence[Path], columns: Sequence[str]) -> int:
    """Return the total number of rows of shards, read from their footers. Raises InputError for a file that is not
    Parquet, or that lacks one of `columns`."""
    rows = 0
    for path in shards:
        try:
            footer = pq.read_metadata(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(
                f"{path}: cannot be read ({error}); expected a Parquet shard; write it again"
            ) from None
        known = footer.schema.to_arrow_schema().names
        missing = [name for name in columns if name not in known]
        if missing:
            raise InputError(
                f"{path}: has no column {', '.join(missing)}; expected it; is this another kind of table?"
            )
        rows += footer.num_rows
    return rows


def map_shards(
    context: Context,
    shards: Sequence[Path],
    worker: type,
    arguments: Mapping[str, Any],
    out: Path,
    *,
    total_rows: int | None = None,
    suffix: str = "parquet",
) -> dict[str, int]:
    """Write one file into `out` for each of `shards`, with the same stem. Return the summed counts.

    out: `context.out`, a folder below it, or a folder below `context.work` (for files outside the artifact). Shards
    that an earlier attempt finished are taken from `context.work`. arguments: keyword arguments of `worker`.
    total_rows: expected number of rows, for progress and a check. Ray must be running; the caller may be a task.

    Raises the exception of a worker with its type; ArtifactError if the number of rows is not `total_rows`; JobError if
    the worker of one shard was lost more than `context.resources.retries` times, which suggests that the shard is the
    cause; an error of ray.exceptions if Ray gave up."""
    process = partial(_run_workers, context, worker, arguments, total_rows)
    return complete_shards(context, shards, out, process, total_rows, suffix)


def map_model(
    context: Context,
    shards: Sequence[Path],
    worker: type,
    config: Any,
    inputs: Any,
    rows: int,
    suffix: str = "parquet",
) -> dict[str, int]:
    """Do the same as `map_shards` into `context.out`, with a worker that runs a model."""
    arguments = {"config": config, "inputs": inputs, "device": name_device(context.resources.gpus)}
    arguments["batch_tokens"] = context.resources.batch_tokens
    return map_shards(
        context, shards, worker, arguments, context.out, total_rows=rows, suffix=suffix
    )


def complete_shards(
    context: Context,
    shards: Sequence[Path],
    out: Path,
    process: Callable[[Mapping[Path, Path], int], None],
    total_rows: int | None,
    suffix: str = "parquet",
) -> dict[str, int]:
    """Do the same as `map_shards`, but process the unfinished shards with a function.

    process: called with (unfinished shard -> target for `commit_shard`, number of rows in finished shards)."""
    if out.is_relative_to(context.out):
        inside = out.relative_to(context.out)
    else:
        inside = out.relative_to(context.work)
    finished = context.work / "shards" / inside
    names = {shard: f"{shard.stem}.{suffix}" for shard in shards}
    if len(set(names.values())) != len(shards):
        raise ArtifactError(
            f"step {context.step}: two input shards have the same file name; expected a unique name for each shard"
        )
    finished.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    records = {
        shard: _find_finished(context, shard, finished / name) for shard, name in names.items()
    }
    unfinished = [shard for shard in shards if records[shard] is None]
    if unfinished:
        done = sum(record["counts"]["rows"] for record in records.values() if record)
        process({shard: finished / names[shard] for shard in unfinished}, done)
    counts: Counter[str] = Counter(rows=0)
    for shard, name in names.items():
        record = records[shard] or _read_record(finished / name)
        file = finished / record["file"] if record else None
        if (
            record is None
            or file is None
            or not file.exists()
            or file.stat().st_size != record["bytes"]
        ):
            raise ArtifactError(
                f"{finished / name}: missing or changed after it was written; expected the output for {shard}"
            )
        _link(file, out / name)
        counts.update(record["counts"])
    if total_rows not in (None, counts["rows"]):
        raise ArtifactError(
            f"step {context.step}: {counts['rows']} rows were made of {total_rows}; expected one for each"
        )
    return dict(counts)


def _run_workers(
    context: Context,
    worker: type,
    arguments: Mapping[str, Any],
    total_rows: int | None,
    targets: Mapping[Path, Path],
    done: int,
) -> None:
    paths = find_existing_paths(arguments)
    resources = context.resources
    if context.holds_resources:
        tally = ProgressTally(context, done, total_rows)
        runner = ShardRunner(context, paths, partial(worker, **arguments), tally.report)
        failure = runner.work(targets.items())
        if failure:
            raise error_from_json(failure)
        tally.flush()
        return
    remote: Any = ray.remote
    queue_class = remote(num_cpus=0, scheduling_strategy=make_this_node_strategy())(ShardQueue)
    queue = queue_class.remote(context, done, total_rows, list(targets.items()))
    options = {
        "num_cpus": resources.cpus,
        "num_gpus": resources.gpus,
        **make_ray_options(resources),
    }
    # On GPUs the process ends after the task: it would keep using its first GPU, but the next step may get another one.
    options |= {
        "name": f"{context.step} worker",
        "max_retries": -1,
        "max_calls": int(bool(resources.gpus)),
    }
    task = remote(scheduling_strategy="SPREAD", **options)(_work_from_queue)
    # Unpickled in `ShardRunner._process`, after the checks of the machine.
    pickled = cloudpickle.dumps(partial(worker, **arguments))
    running = []
    for n in range(min(resources.workers or 1, len(targets))):
        running.append(task.remote(n, context, paths, pickled, queue))
    try:
        # Do not wait for workers that have not started when the others have finished all shards.
        while running and ray.get(queue.count_unfinished.remote()):
            [ended], running = ray.wait(running)
            failure = ray.get(ended)
            if failure:
                raise error_from_json(failure)
    finally:
        # Cancel the tasks that do not end by themselves within 1 s. The other processes stay for later steps.
        for left in running and ray.wait(running, num_returns=len(running), timeout=1)[1]:
            ray.cancel(left)
    ray.get(queue.flush.remote())


def _work_from_queue(
    number: int, context: Context, paths: Sequence[Path], pickled: bytes, queue: Any
) -> str:
    """Process shards of the queue as worker `number`. Return the error as JSON, or an empty string."""
    ray.get(queue.put_back.remote(number))
    runner = ShardRunner(context, paths, lambda: cloudpickle.loads(pickled)(), queue.report.remote)
    return runner.work(iter(lambda: ray.get(queue.take.remote(number)), None))


class ShardRunner:
    """Constructs the worker at the first shard, and calls it for each shard."""

    def __init__(
        self,
        context: Context,
        paths: Sequence[Path],
        make_worker: Callable[[], ShardWorker],
        tell: Callable[[str, int, int], Any],
    ) -> None:
        """paths: as for `check_worker`. tell: `ProgressTally.report`, local or of an actor."""
        self.context = context
        self.paths = paths
        self.make_worker = make_worker
        self.tell = tell
        self.worker: ShardWorker | None = None

    def work(self, shards: Iterable[tuple[Path, Path]]) -> str:
        """Process shards, given as (source, target). Return the error as JSON, or an empty string."""
        try:
            for source, target in shards:
                self._process(source, target)
        except Exception as error:
            return error_to_json(error)
        finally:
            self.worker = None
            torch.cuda.empty_cache()  # the process goes on, and other steps need the GPU memory
        return ""

    def _process(self, source: Path, target: Path) -> None:
        if self.worker is None:
            check_worker(self.context, (source, target.parent, *self.paths))
            check_dtype(self.context)
        starts = target.with_name(f"{target.name}.starts")
        lost = _count_start(self.context, starts)
        if lost > self.context.resources.retries:
            raise JobError(
                f"step {self.context.step}, shard {source}: its worker was lost {lost} times (killed, out of memory);"
                " expected it to finish; give workers more memory, or lower batch_tokens or workers"
            )
        if self.worker is None:
            torch.set_num_threads(self.context.resources.threads)
            self.worker = self.make_worker()
        worker: ShardWorker = self.worker
        report = self._reporter(source)
        counts = commit_shard(
            self.context, source, target, lambda file: worker(source, file, report)
        )
        starts.unlink(missing_ok=True)
        self.tell(str(source), counts["rows"], counts.get("tokens", 0))

    def _reporter(self, source: Path) -> ReportProgress:
        reported = 0.0

        def report(rows: int, tokens: int = 0) -> None:
            nonlocal reported
            if time.monotonic() - reported >= REPORT_SECONDS:
                reported = time.monotonic()
                self.tell(str(source), int(rows), int(tokens))

        return report


def _count_start(context: Context, file: Path) -> int:
    """Note in a file that work on a shard begins. Return how often this attempt began it before, and was lost."""
    begun = read_json_lines(file)
    append_json(file, {"attempt": context.attempt})
    return sum(line["attempt"] == context.attempt for line in begun)


def commit_shard(
    context: Context, source: Path, target: Path, write: Callable[[Path], Mapping[str, int]]
) -> dict[str, int]:
    """Write the file of a shard, and then its record. write: writes the file and returns counts, among them `rows`. If
    it raises, the file is removed and the exception is passed on."""
    # A file name that no other worker, attempt or machine uses.
    file = target.with_name(
        f"{target.stem}.{context.attempt}-{uuid.uuid4().hex[:8]}{target.suffix}"
    )
    try:
        counts = dict(write(file))
        sync(file)
        record = {
            "file": file.name,
            "bytes": file.stat().st_size,
            "step_id": context.step_id,
            "counts": counts,
        }
        record |= {"sha256": compute_sha256(file), "source": compute_sha256(source)}
        write_atomically(_record_path(target), json.dumps(record))
    except BaseException as error:
        file.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in DISK_FULL and error.filename is None:
            raise OSError(error.errno, os.strerror(error.errno), str(target)) from error
        raise
    return counts


def _find_finished(context: Context, source: Path, target: Path) -> dict[str, Any] | None:
    """Return the record of a finished shard, or None if the shard must be processed (again)."""
    record = _read_record(target)
    try:
        # The step id covers the code, settings and inputs with which the shard was made.
        if (
            record is None
            or record["step_id"] != context.step_id
            or record["source"] != compute_sha256(source)
        ):
            return None
        if record["sha256"] == compute_sha256(target.with_name(record["file"])):
            return record
        return None
    except (FileNotFoundError, KeyError):
        return None


def _read_record(target: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(_record_path(target).read_text())
    except (FileNotFoundError, ValueError):
        return None
    complete = (
        isinstance(record, dict)
        and isinstance(record.get("counts"), dict)
        and "rows" in record["counts"]
    )
    if complete:
        return record
    return None


def _record_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.record")


def _link(file: Path, target: Path) -> None:
    """Create a hard link, or a copy where the file system has no links."""
    target.unlink(missing_ok=True)
    try:
        os.link(file, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        shutil.copyfile(file, target)
