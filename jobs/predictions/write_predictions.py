"""write_predictions: write the best documents of each query as CSV, JSON Lines and a TREC run."""

import csv
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ratchet.orchestrator.job_interface import Context, Job, PositiveInt, Result, Unit

FILES = ("predictions.csv", "predictions.jsonl", "predictions.trec")


@dataclass(frozen=True)
class Config:
    top: Annotated[PositiveInt, Unit("documents")] = 25
    """Maximum number of documents per query."""
    columns: tuple[str, str] = ("query", "documents")
    """Header of the CSV file, such as `QuestionId_Answer,MisconceptionId`. The ids of documents are separated by
    spaces; a space in an id is written as `%20`, also in the TREC run. A field that a spreadsheet would execute as a
    formula begins with `'`."""


@dataclass(frozen=True)
class Inputs:
    ranking: Path
    """A ranking, as written by `evaluate_retrieval` or `fuse`."""
    corpus: Path
    """Shards of documents, whose texts are written to the JSON Lines file."""


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import pyarrow.compute as pc

    from ratchet.data.formats.trec import escape, write_run
    from ratchet.data.tables import iterate_rows, read_shards, read_texts

    ranked = read_shards(inputs.ranking, ["id", "text", "documents", "scores"])
    for name in ("documents", "scores"):
        at = ranked.column_names.index(name)
        ranked = ranked.set_column(at, name, pc.list_slice(ranked[name], 0, config.top))
    listed = pc.list_flatten(ranked["documents"])
    text_of = read_texts(inputs.corpus, listed)
    table, lines, trec = (context.out / name for name in FILES)
    with (
        table.open("w", encoding="utf-8", newline="") as table_file,
        lines.open("w", encoding="utf-8") as lines_file,
    ):
        writer = csv.writer(table_file, lineterminator="\n")
        writer.writerow(config.columns)
        for row in iterate_rows(ranked):
            names = row["documents"]
            scores = row["scores"]
            fields = [row["id"], " ".join(map(escape, names))]
            writer.writerow([disarm(field) for field in fields])
            documents = []
            for name, score, text in zip(names, scores, text_of.find(names), strict=True):
                documents.append({"id": name, "score": score, "text": text})
            line = {"id": row["id"], "query": row["text"], "documents": documents}
            lines_file.write(json.dumps(line, ensure_ascii=False) + "\n")
    write_run(trec, ranked, "ratchet")
    return Result({"queries": len(ranked), "documents": len(listed)})


def disarm(field: str) -> str:
    """Return a CSV field that no spreadsheet executes: one that begins as a formula does gets `'` before it."""
    if re.match(r"[=@\t\r]|[+-](?![\d.])", field):
        return f"'{field}"
    return field


JOB = Job(
    "write_predictions",
    Config,
    Inputs,
    run,
    resources=("retries",),
    outputs=FILES,
    metrics=("queries", "documents"),
)
