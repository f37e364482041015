"""Pieces, the unit of work of a map over shards. The unit of commit stays the shard.

    work/shards/shard-00000.parquet.record                 a finished shard: its file, and digests of file and source
    work/shards/shard-00000.parquet.pieces/00000256.parquet.record      a finished piece, until its shard is finished

A piece is finished when it has a record: a small JSON file, replaced atomically, that names the piece's file. Files
without a matching record are ignored, so a worker that outlives its killed driver cannot corrupt a piece.
"""

import json
import os
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.data.tables import open_mapped_shard, write_mapped, write_table
from ratchet.data.vectors import read_vectors
from ratchet.errors import DISK_FULL, ArtifactError, InputError
from ratchet.jobs.distributed.piece_size import choose_piece_rows
from ratchet.orchestrator.job_interface import Context, link, make_folder, sync, write_atomically
from ratchet.orchestrator.job_interface.digests import compute_sha256


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a shard."""

    source: Path
    """The shard, a Parquet file."""
    first: int
    rows: int
    target: Path
    """The path after which the piece's file and its record are named."""

    @classmethod
    def whole(cls, source: Path, target: Path) -> "Piece":
        """Return the piece of all rows of a shard."""
        return cls(source, 0, pq.read_metadata(source).num_rows, target)

    def take(self, shard: Any) -> Any:
        """Return the rows of the piece. shard: a table, an array or a list with the rows of its shard."""
        return shard[self.first : self.first + self.rows]

    def take_vectors(self, folder: Path, shard: pa.Table) -> np.ndarray:
        """Return the embeddings of the rows of the piece, [n, D] float32. folder: with the embeddings of all shards.
        shard: the table of its shard. Raises DataError as `read_vectors` does."""
        path = folder / f"{self.source.stem}.arrow"
        return self.take(read_vectors(path, shard["id"].combine_chunks()))

    def cut(self, rows: int | None) -> "list[Piece]":
        """Cut a whole shard into pieces of this many rows. None: it stays whole."""
        if rows is None or self.rows <= rows:
            return [self]
        folder = self.target.with_name(f"{self.target.name}.pieces")
        pieces = []
        for first in range(0, self.rows, rows):
            target = folder / f"{first:08d}{self.target.suffix}"
            pieces.append(Piece(self.source, first, min(rows, self.rows - first), target))
        return pieces


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


class ShardOutput:
    """The output of a map over shards: which pieces are unfinished, and what finished ones are joined into.

    Shards and pieces that an earlier attempt finished are taken from `context.work`."""

    def __init__(
        self,
        context: Context,
        shards: Sequence[Path],
        inside: Path = Path(),
        *,
        suffix: str = "parquet",
        pieces: int = 0,
    ) -> None:
        """inside: folder of the files, below that of the output. pieces: see `choose_piece_rows`. Raises ArtifactError
        for two shards with one name."""
        finished = context.work / "shards" / inside
        context.files.fetch(finished)
        self.context = context
        self.finished = finished
        self.whole: list[Piece] = []
        for source in shards:
            self.whole.append(Piece.whole(source, finished / f"{source.stem}.{suffix}"))
        if len({shard.target for shard in self.whole}) != len(self.whole):
            raise ArtifactError(
                f"step {context.step}: two input shards have the same file name; expected a unique name for each shard"
            )
        self.rows = sum(shard.rows for shard in self.whole)
        piece_rows = choose_piece_rows(self.rows, pieces)
        self.cut: dict[Piece, list[Piece]] = {}
        """Unfinished shard -> its pieces."""
        self.unfinished: list[Piece] = []
        for shard in self.whole:
            if not _is_finished(context, shard):
                self.cut[shard] = shard.cut(piece_rows)
                for piece in self.cut[shard]:
                    if not _is_finished(context, piece):
                        self.unfinished.append(piece)
        self.finished_rows = self.rows - sum(piece.rows for piece in self.unfinished)
        for piece in self.unfinished:
            make_folder(piece.target.parent)  # synced, as what is written into it

    def collect(self, out: Path, total_rows: int | None = None) -> dict[str, int]:
        """Write one file into `out` for each shard, with the same stem. Return the summed counts. All pieces must be
        finished. Raises ArtifactError if one is not, or if the number of rows is not `total_rows`."""
        out.mkdir(parents=True, exist_ok=True)
        self.context.files.fetch(self.finished)
        for shard, parts in self.cut.items():
            if len(parts) > 1:
                _join(self.context, shard, parts)
        counts: Counter[str] = Counter(rows=0)
        for shard in self.whole:
            file, own = _read_finished(shard)
            link(file, out / shard.target.name)
            counts.update(own)
        if total_rows not in (None, counts["rows"]):
            raise ArtifactError(
                f"step {self.context.step}: {counts['rows']} rows were made of {total_rows}; expected one for each"
            )
        return dict(counts)


def commit_piece(
    context: Context, piece: Piece, write: Callable[[Path], Mapping[str, int]]
) -> dict[str, int]:
    """Write the file of a piece, and then its record. write: writes the file and returns counts, among them `rows`. If
    it raises, the file is removed and the exception is passed on."""
    target = piece.target
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
            "rows": piece.rows,
            "sha256": compute_sha256(file),
            "source": compute_sha256(piece.source),
        }
        context.files.send(file)
        write_atomically(_record_path(target), json.dumps(record))
        context.files.send(_record_path(target))
    except BaseException as error:
        file.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in DISK_FULL and error.filename is None:
            raise OSError(error.errno, os.strerror(error.errno), str(target)) from error
        raise
    return counts


def _join(context: Context, shard: Piece, pieces: Sequence[Piece]) -> None:
    """Commit a shard whose pieces are finished, and remove them."""
    files = []
    counts: Counter[str] = Counter()
    for piece in pieces:
        file, own = _read_finished(piece)
        files.append(file)
        counts.update(own)

    def write(target: Path) -> Mapping[str, int]:
        if target.suffix == ".arrow":
            table = pa.concat_tables(map(open_mapped_shard, files))
            write_mapped(target, table.combine_chunks())
        else:
            write_table(target, pa.concat_tables(map(pq.read_table, files)))
        return counts

    commit_piece(context, shard, write)
    context.files.discard(files[0].parent)


def remove_copy(piece: Piece) -> None:
    """Remove the file and the record of a piece from this machine, after they were sent."""
    record = _read_record(piece.target)
    if record is not None:
        piece.target.with_name(record["file"]).unlink(missing_ok=True)
        _record_path(piece.target).unlink(missing_ok=True)


def _is_finished(context: Context, piece: Piece) -> bool:
    """Return whether a piece has an intact file that was made from the same rows, with the same code and settings."""
    record = _read_record(piece.target)
    try:
        return (
            record is not None
            and record["step_id"] == context.step_id
            and record["rows"] == piece.rows
            and record["source"] == compute_sha256(piece.source)
            and record["sha256"] == compute_sha256(piece.target.with_name(record["file"]))
        )
    except (FileNotFoundError, KeyError):
        return False


def _read_finished(piece: Piece) -> tuple[Path, dict[str, int]]:
    """Return the file and the counts of a piece that was finished a moment ago."""
    record = _read_record(piece.target)
    if record is not None:
        file = piece.target.with_name(record["file"])
        if file.exists() and file.stat().st_size == record["bytes"]:
            return file, record["counts"]
    raise ArtifactError(
        f"{piece.target}: missing or changed after it was written; expected the output for {piece.source}"
    )


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
