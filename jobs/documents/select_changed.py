"""select_changed: select the documents that a database does not have as they are, and list those that are gone."""

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from ratchet.data.vector_tables import Dtype
from ratchet.orchestrator.job_interface import Context, Job, Result

ROWS = "rows"
REMOVED = "removed.json"
"""Parts of the output."""


@dataclass(frozen=True)
class Config:
    to: str
    """Address of the table: see `ratchet.data.vector_tables`."""
    dtype: Dtype
    """What vectors are stored as. Rows of another dtype are changed rows."""
    state: str
    """Digest of the table's content when the run was planned, so that the step runs again if it has changed.
    A table that changes during the run is an error."""


@dataclass(frozen=True)
class Inputs:
    texts: Path
    """Shards of documents with metadata."""
    model: Path
    """The embedder. Rows of another model are changed rows."""


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ratchet.data.tables import DOCUMENTS, list_shards, write_table
    from ratchet.data.vector_tables import open_unchanged
    from ratchet.orchestrator.job_interface.digests import compute_sha256

    model = sha256(config.dtype.encode())
    for file in sorted(inputs.model.rglob("*")):
        if file.is_file():
            model.update(compute_sha256(file).encode())
    known = dict(open_unchanged("select_changed.to", config.to, config.state).read_digests())
    counts = {"documents": 0, "new": 0, "changed": 0}
    schema = DOCUMENTS.append(pa.field("digest", pa.string()))
    for path in list_shards(inputs.texts):
        rows = []
        for row in pq.read_table(path).to_pylist():
            content = model.hexdigest() + json.dumps([row["text"], row["metadata"]])
            digest = sha256(content.encode()).hexdigest()
            before = known.pop(row["id"], None)
            counts["documents"] += 1
            counts["new"] += before is None
            if before != digest:
                rows.append({**row, "digest": digest})
        counts["changed"] += len(rows)
        write_table(context.out / ROWS / path.name, pa.Table.from_pylist(rows, schema))
    counts["changed"] -= counts["new"]
    (context.out / REMOVED).write_text(json.dumps(list(known)))
    return Result({**counts, "removed": len(known)})


JOB = Job(
    "select_changed",
    Config,
    Inputs,
    run,
    resources=("retries",),
    outputs=(ROWS, REMOVED),
    metrics=("documents", "new", "changed", "removed"),
)
