"""Tables that steps exchange: folders of Parquet shards `shard-00000.parquet`, ..., read in the order of their names;
Arrow shards, `shard-00000.arrow`, where they are mapped into memory.

Writing is deterministic (equal rows give equal bytes) and atomic (a shard exists completely or not at all).
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ratchet.errors import DataError
from ratchet.files import open_regular

IDS = pa.list_(pa.string())
SCORES = pa.list_(pa.float32())

CORPUS = pa.schema({"id": pa.string(), "text": pa.string()})
"""Documents. `id` is unique."""

DOCUMENTS = CORPUS.append(pa.field("metadata", pa.string()))
"""Documents with the other columns of their source, a JSON object."""

QUERIES = pa.schema(
    {
        "id": pa.string(),
        "text": pa.string(),
        "positives": IDS,
        "grades": pa.list_(pa.int32()),
        "negatives": IDS,
    }
)
"""Queries. positives, negatives: ids in the corpus; grades: the relevance of each positive, 1 or more."""

GROUPED = pa.schema([*QUERIES, ("group", pa.string())])
"""Queries with a group: queries of one group are not independent of each other. New queries have none."""

HELD_OUT = pa.schema([*GROUPED, ("seen", pa.bool_())])
"""Queries that are held out. seen: whether a positive of the query is a positive of a training query."""

MINED = pa.schema(
    {
        "id": pa.string(),
        "text": pa.string(),
        "positives": IDS,
        "negatives": IDS,
        "positive_scores": SCORES,
        "negative_scores": SCORES,
    }
)
"""Queries with mined negatives and the similarities of the embedder."""

RANKED = pa.schema(
    {
        "id": pa.string(),
        "text": pa.string(),
        "documents": IDS,
        "scores": SCORES,
        "ranks": pa.list_(pa.int64()),
    }
)
"""Queries with their top documents, best first, and the ranks of their positives (from 1, over the whole corpus)."""

TEACHER_SCORES = {
    "positives": "teacher_positive_scores",
    "negatives": "teacher_negative_scores",
    "documents": "teacher_scores",
}
"""Column of ids -> column of the teacher scores of these ids (a reranker's scores), list<float32>."""

INSTRUCTIONS = ("task", "prompt")
"""Columns of the instructions of queries, string: for the embedder, and for the reranker. Empty: the model's own.
Tables have them only if the data has them."""


CARRIED = (*INSTRUCTIONS, "group", "source")
"""Columns of queries that steps copy, if a table has them. source: the data set, if there are several."""

EXAMPLES = pa.field("examples", pa.list_(IDS))
"""Column of the few-shot examples of queries: [query, answer] each. Tables have it only if examples were drawn."""


def add_carried(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """Return the schema with those columns of CARRIED that are among `names`."""
    for name in CARRIED:
        if name in names:
            schema = schema.append(pa.field(name, pa.string()))
    return schema


def complete(columns: Mapping[str, Any], shard: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table of new columns and, of the shard that they were computed from, the other columns of the schema and
    those of CARRIED that it has."""
    schema = add_carried(schema, shard.column_names)
    arrays = {}
    for name in schema.names:
        arrays[name] = columns[name] if name in columns else shard[name].combine_chunks()
    return pa.table(arrays).cast(schema)


def read_queries(path: Path, columns: Sequence[str] = ("id", "text", "positives")) -> pa.Table:
    """Read columns of a shard, and those of CARRIED and EXAMPLES that it has."""
    names = pq.read_schema(path).names
    more = [name for name in (*CARRIED, EXAMPLES.name) if name in names]
    return pq.read_table(path, columns=[*columns, *more])


class DocumentRows:
    """Index from the ids of a corpus to its rows, by the hashes of the ids. Arrow's `index_in` would hash all ids of
    the corpus at every call."""

    def __init__(self, ids: pa.ChunkedArray) -> None:
        import pandas as pd  # a third of a second, which plans would take too

        self._index = pd.Index(hash_texts(ids))

    def __len__(self) -> int:
        return len(self._index)

    def find(self, names: pa.ChunkedArray) -> np.ndarray:
        """Return the row of each id, int64 [M]; -1 for an id that is not there."""
        return self._index.get_indexer(hash_texts(names))


class Texts(Mapping[str, str]):
    """Id -> text of the documents of a table (CORPUS)."""

    def __init__(self, corpus: pa.Table) -> None:
        self._table = corpus
        self._rows = DocumentRows(corpus["id"])

    def __getitem__(self, name: str) -> str:
        return self.find([name])[0]

    def find(self, names: Sequence[str]) -> list[str]:
        """Return the texts of documents, in the order of `names`: 17 times as fast for many as one by one. Raises
        KeyError for an id that the table lacks."""
        row_M = self._rows.find(pa.chunked_array([names], pa.string()))
        if (row_M < 0).any():
            raise KeyError(names[int(np.argmin(row_M))])
        return take_texts(self._table["text"], row_M)

    def __iter__(self) -> Iterator[str]:
        return (name.as_py() for name in self._table["id"])

    def __len__(self) -> int:
        return len(self._rows)


def hash_texts(texts: pa.ChunkedArray) -> np.ndarray:
    """Return a 64-bit hash of each text, int64 [N], the same on every machine. Among ten million different texts, two
    have the same hash with a probability of 3 in a million."""
    import pandas as pd  # a third of a second, which plans would take too

    parts = []
    for part in texts.chunks:
        parts.append(pd.util.hash_array(part.to_numpy(zero_copy_only=False), categorize=False))
    return np.concatenate([np.zeros(0, np.uint64), *parts]).view(np.int64)


def hash_queries(queries: pa.Table) -> np.ndarray:
    """Return a hash of the text and the instructions of each query, int64 [N]: see `hash_texts`."""
    found = hash_texts(queries["text"])
    factor = 1
    for name in INSTRUCTIONS:
        if name in queries.column_names:
            factor += 2
            found = found + factor * hash_texts(queries[name])
    return found


def take_texts(texts: pa.ChunkedArray, rows: Sequence[int] | np.ndarray) -> list[str]:
    """Return the texts of rows, one by one: Arrow's `take` would copy all into one array, and fails above 2 GB."""
    return [texts[row].as_py() for row in np.asarray(rows, np.int64).tolist()]


def embeddings_schema(dim: int, dtype: str = "float32") -> pa.Schema:
    """Return the schema of embeddings, whose shards are Arrow files: Parquet would encode each number of a list
    separately, at a tenth of the speed. Rows are in the order of the texts."""
    numbers = pa.type_for_alias(dtype)
    return pa.schema({"id": pa.string(), "embedding": pa.list_(numbers, dim)})


def write_table(path: Path, table: pa.Table) -> None:
    """Write one Parquet file atomically: to a temporary file, synced, then renamed."""
    with _replacing(path) as file:
        pq.write_table(table, file, compression="zstd", row_group_size=65_536)


@dataclass
class ShardWriter:
    """Writes rows as shards of `rows_per_shard`; at least one shard, which may be empty. mapped: as Arrow files."""

    folder: Path
    schema: pa.Schema
    rows_per_shard: int
    mapped: bool = False
    paths: list[Path] = field(default_factory=list)
    """The shards so far."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """The rows of the next shard."""

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if len(self.rows) == self.rows_per_shard:
            self._write()

    def close(self) -> list[Path]:
        """Write the last shard, and return all."""
        if self.rows or not self.paths:
            self._write()
        return self.paths

    def _write(self) -> None:
        table = pa.Table.from_pylist(self.rows, schema=self.schema)
        path = self.folder / f"shard-{len(self.paths):05d}"
        if self.mapped:
            path = path.with_suffix(".arrow")
            write_mapped(path, table)
        else:
            path = path.with_suffix(".parquet")
            write_table(path, table)
        self.paths.append(path)
        self.rows = []


def write_shards(
    folder: Path, rows: Iterable[dict[str, Any]], schema: pa.Schema, rows_per_shard: int
) -> list[Path]:
    """Write rows as Parquet shards: see ShardWriter."""
    writer = ShardWriter(folder, schema, rows_per_shard)
    for row in rows:
        writer.add(row)
    return writer.close()


def write_mapped(path: Path, table: pa.Table) -> None:
    """Write one uncompressed Arrow file atomically. `open_mapped` maps it into memory without reading it."""
    with _replacing(path) as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces the path on exit, synced. After an exception the path is unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def open_mapped(folder: Path) -> pa.Table:
    """Open all `shard-*.arrow` of a folder as one memory-mapped table, which processes share. Raises DataError if there
    are none, or one is truncated."""
    return pa.concat_tables(open_mapped_shard(path) for path in list_shards(folder, "arrow"))


def open_mapped_shard(path: Path) -> pa.Table:
    """Open one Arrow file as a memory-mapped table. Raises DataError if it is missing or truncated."""
    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: cannot be read as Arrow ({error}); expected a shard; run the step again"
        ) from None


def list_shards(folder: Path, suffix: str = "parquet") -> list[Path]:
    """List the shards of a folder, in order. Raises DataError if there are none, and for one that is no
    regular file."""
    paths = sorted(folder.glob(f"shard-*.{suffix}"))
    if not paths:
        raise DataError(
            f"{folder}: no shard-*.{suffix} in it; expected the output folder of a step; check the path"
        )
    for path in paths:
        open_regular(path).close()  # Arrow would wait for a named pipe
    return paths


def read_shards(folder: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read all shards as one table. Raises DataError naming the shard that cannot be read or lacks a
    column."""
    return pa.concat_tables(_read_shard(path, columns) for path in list_shards(folder))


def read_texts(corpus: Path, ids: pa.ChunkedArray) -> Texts:
    """Read the documents of a corpus that have one of these ids, shard by shard."""
    known = DocumentRows(pa.chunked_array([ids.unique()]))
    parts = []
    for path in list_shards(corpus):
        own = _read_shard(path, ["id", "text"])
        is_known = known.find(own["id"]) >= 0
        parts.append(own.filter(pa.array(is_known)))
    return Texts(pa.concat_tables(parts))


def read_listed(lists: Path) -> pa.ChunkedArray:
    """Read the ids of the documents in the lists of shards (MINED or RANKED), with repetitions."""
    known = pq.read_schema(list_shards(lists)[0]).names
    listed = read_shards(lists, [name for name in (*TEACHER_SCORES, "suspects") if name in known])
    chunks = []
    for column in listed.columns:
        chunks += pc.list_flatten(column).chunks
    return pa.chunked_array(chunks, pa.string())


def check_queries(where: Path, ranked: pa.Table, queries: pa.Table, expected: Path) -> None:
    """Raise DataError, beginning with `where`, for rows of other queries than those of the folder `expected`, or in
    another order."""
    if ranked["id"] != queries["id"]:
        raise DataError(
            f"{where}: rows of other queries given; expected those of {expected}, in the same order; compute it for"
            " these queries"
        )


def iterate_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table. Few are in memory as Python objects at a time."""
    for batch in table.to_batches(256):
        yield from batch.to_pylist()


def hash_shards(folder: Path) -> np.ndarray:
    """Return the hashes of the texts of a corpus (`hash_texts`), int64 [N], with one shard in memory at a time."""
    hashes = []
    for path in list_shards(folder):
        shard = _read_shard(path, ["text"])
        hashes.append(hash_texts(shard["text"]))
    return np.concatenate(hashes)


def _read_shard(path: Path, columns: Sequence[str] | None) -> pa.Table:
    try:
        table = pq.read_table(path, columns=list(columns) if columns else None)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: cannot be read as Parquet ({error}); expected a shard; run the step again"
        ) from None
    missing = set(columns or ()) - set(table.column_names)
    if missing:
        raise DataError(
            f"{path}: has no column {', '.join(sorted(missing))}; expected one; give a table of that kind"
        )
    return table
