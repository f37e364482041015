"""write_vectors: write documents with their vectors into a database, and remove those that are gone from it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.data.vector_tables import OWN_COLUMNS, Dtype, open_table, open_unchanged
from ratchet.errors import DataError, InputError
from ratchet.orchestrator.job_interface import Context, Job, Parents, Progress, Result

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

REMOVED_AT_ONCE = 1000
K = 10
RECALL = f"recall@{K}"
SAMPLE = 20_000
QUERIES = 200
"""The recall is that of the K nearest documents of this many documents, among a sample."""


@dataclass(frozen=True)
class Config:
    to: str
    """Address of the table: see `ratchet.data.vector_tables`."""
    dtype: Dtype
    """What vectors are stored as. int8 and binary take a fourth and a 32nd of the space of float32."""
    state: str
    """As in `select_changed`."""


@dataclass(frozen=True)
class Inputs:
    texts: Path
    """The `rows` of `select_changed`."""
    vectors: Path
    """Their vectors, as written by `embed`."""
    removed: Path
    """The `removed.json` of `select_changed`."""


def check(config: Config, inputs: Inputs, parents: Parents) -> None:
    table = open_table("write_vectors.to", config.to)
    if config.dtype not in table.dtypes:
        raise InputError(
            f"write_vectors.dtype: {config.dtype} given, for {config.to}; expected {' or '.join(table.dtypes)}"
        )


def run(context: Context, config: Config, inputs: Inputs) -> Result:

    from ratchet.data.tables import read_shards
    from ratchet.data.vector_tables.vectors import convert_vectors, to_lists
    from ratchet.data.vectors import read_blocks

    table = open_unchanged("write_vectors.to", config.to, config.state)
    rows = read_shards(inputs.texts)
    columns = rows.drop_columns("metadata")
    for name, values in spread_metadata(rows["metadata"]).items():
        columns = columns.append_column(name, values)
    kept_in = "float32" if config.to.startswith("qdrant") else config.dtype
    sample = None
    for first, vectors_ND in read_blocks(inputs.vectors, rows["id"].combine_chunks()):
        if not len(vectors_ND):
            continue
        if sample is None:
            sample = vectors_ND
        part = columns.slice(first, len(vectors_ND))
        lists = to_lists(convert_vectors(vectors_ND, kept_in))
        table.write(part.append_column("vector", lists), config.dtype)
        context.progress(Progress(first + len(part), len(rows), "documents", "writing"))
    removed = json.loads(inputs.removed.read_text())
    for start in range(0, len(removed), REMOVED_AT_ONCE):
        table.delete(removed[start : start + REMOVED_AT_ONCE])
    metrics = {"written": len(rows), "removed": len(removed)}
    if sample is None or len(sample) <= K or config.dtype == "float32":
        return Result(metrics)
    return Result({**metrics, RECALL: measure_recall(sample[:SAMPLE], config.dtype)})


def spread_metadata(metadata: "pa.ChunkedArray") -> "dict[str, pa.ChunkedArray]":
    """Return the columns in the JSON objects of a column, with types that hold all their values. Raises DataError if
    there is none, and for a name that the table has itself."""
    import pyarrow as pa
    from pyarrow import json as arrow_json

    if not len(metadata):
        return {}
    lines = "\n".join(metadata.to_pylist()).encode()
    options = arrow_json.ReadOptions(block_size=len(lines) + 1)
    try:
        found = arrow_json.read_json(pa.BufferReader(lines), options)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"write_vectors.texts: columns with values of several types ({error}); expected one type in each column;"
            " correct the data"
        ) from None
    columns = {}
    for name in found.column_names:
        if name in OWN_COLUMNS:
            raise DataError(
                f"write_vectors.texts: a column {name} given; expected other names than {', '.join(OWN_COLUMNS)}, which"
                " the table has itself; rename it"
            )
        column = found[name]
        if pa.types.is_null(column.type) or pa.types.is_temporal(column.type):
            # Arrow reads texts that look like dates as dates.
            values = [json.loads(line).get(name) for line in metadata.to_pylist()]
            column = pa.chunked_array([values], pa.string())
        columns[name] = column
    return columns


def measure_recall(vectors_ND: "np.ndarray", dtype: Dtype) -> float:
    """Return the part of the K nearest documents of some documents that the converted vectors find too."""
    import numpy as np

    from ratchet.data.vector_tables.vectors import convert_vectors, restore_vectors
    from ratchet.models.search.top_k import top_k

    asked = np.linspace(0, len(vectors_ND) - 1, min(QUERIES, len(vectors_ND)), dtype=np.int64)
    nearest = []
    for kind_ND in (vectors_ND, restore_vectors(convert_vectors(vectors_ND, dtype), dtype)):
        nearest.append(top_k(kind_ND[asked], [(0, kind_ND)], K + 1)[1])
    common = 0
    for row, exact, found in zip(asked, *nearest, strict=True):
        common += len(set(exact) & set(found) - {row})
    return round(common / (len(asked) * K), 4)


JOB = Job(
    "write_vectors",
    Config,
    Inputs,
    run,
    resources=("retries",),
    check=check,
    metrics=("written", "removed", RECALL),
)
