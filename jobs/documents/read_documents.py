"""read_documents: read documents from the rows of a table, or from retrieval data, and write them as shards."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

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
    rows = read_document_rows(path, config.reading)
    if path.stat().st_size > retrieval.LARGE:
        rows = islice(rows, retrieval.SAMPLE)
    counts = Counts()
    for _ in counts.pass_on(rows):
        pass
    return counts.make_result(path)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.data.formats.document_rows import read_document_rows
    from ratchet.data.tables import DOCUMENTS, write_shards

    counts = Counts()
    rows = counts.pass_on(read_document_rows(inputs.documents, config.reading))
    write_shards(context.out, rows, DOCUMENTS, config.shard_rows)
    return counts.make_result(inputs.documents)


class Counts:
    """The number of rows, and the characters of the longest text."""

    def __init__(self) -> None:
        self.rows = self.longest = 0

    def pass_on(self, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in rows:
            self.rows += 1
            self.longest = max(self.longest, len(row["text"]))
            yield row

    def make_result(self, path: Path) -> Result:
        """Return the metrics. Raises DataError if there were no rows."""
        if not self.rows:
            raise DataError(
                f"{path}: there are no documents; expected at least one; check the path"
            )
        return Result({"documents": self.rows, "longest_text": self.longest})


JOB = Job(
    "read_documents",
    Config,
    Inputs,
    run,
    resources=("retries",),
    check=check,
    metrics=("documents", "longest_text"),
)
