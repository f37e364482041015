"""read_documents: read documents from the rows of a table, or from retrieval data, and write them as shards."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

from ratchet.data import retrieval
from ratchet.errors import DataError
from ratchet.orchestrator.job_interface import Context, Job, Parents, PositiveInt, Result, Unit


@dataclass(frozen=True)
class Config:
    reading: str = ""
    """Reading options, as behind a path: `text=body&id=sku`. Empty: none."""
    shard_rows: Annotated[PositiveInt, Unit("rows")] = 4096
    """Rows per shard."""


@dataclass(frozen=True)
class Inputs:
    documents: Path
    """JSON Lines, CSV or Parquet with `text`, a text file with a document per line, a BEIR folder or pairs."""


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Read the documents, or the first ones of a large file, so that a bad row is an error before the run starts."""
    from ratchet.data.formats.document_rows import read_document_rows

    path = inputs.documents
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; expected documents; check the path")
    most = None if path.stat().st_size <= retrieval.LARGE else retrieval.SAMPLE
    rows = list(islice(read_document_rows(path, config.reading), most))
    if not rows:
        raise DataError(f"{path}: there are no documents; expected at least one; check the path")
    return Result({"documents": len(rows), "longest_text": max(len(row["text"]) for row in rows)})


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import pyarrow.compute as pc

    from ratchet.data.formats.document_rows import read_document_rows
    from ratchet.data.tables import DOCUMENTS, read_shards, write_shards

    rows = read_document_rows(inputs.documents, config.reading)
    write_shards(context.out, rows, DOCUMENTS, config.shard_rows)
    lengths = pc.utf8_length(read_shards(context.out, ["text"])["text"])
    return Result({"documents": len(lengths), "longest_text": pc.max(lengths).as_py()})


JOB = Job(
    "read_documents",
    Config,
    Inputs,
    run,
    resources=("retries",),
    check=check,
    metrics=("documents", "longest_text"),
)
