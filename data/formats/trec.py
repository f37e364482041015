"""Run and qrels files in TREC format, as read by trec_eval, pytrec_eval and ranx."""

import re
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from ratchet.data.tables import iterate_rows


def escape(name: str) -> str:
    """Return an id with percent-encoded white space (`%20`), since white space separates the fields of a line."""
    if name.split() == [name]:
        return name
    return re.sub(r"\s", lambda found: quote(found[0]), name)


def write_run(path: Path, ranked: pa.Table, tag: str) -> None:
    """Write a run file from a ranking (RANKED of `data.tables`). Lines: `qid Q0 docid rank score tag`."""
    with path.open("w", encoding="utf-8") as file:
        for row in iterate_rows(ranked.select(["id", "documents", "scores"])):
            query = escape(row["id"])
            pairs = zip(row["documents"], row["scores"], strict=True)
            for rank, (document, score) in enumerate(pairs, start=1):
                file.write(f"{query} Q0 {escape(document)} {rank} {score:.9g} {tag}\n")


def write_qrels(path: Path, queries: pa.Table) -> None:
    """Write a qrels file from queries with their positives (QUERIES of `data.tables`). Lines: `qid 0 docid grade`."""
    with path.open("w", encoding="utf-8") as file:
        for row in iterate_rows(queries.select(["id", "positives", "grades"])):
            for document, grade in zip(row["positives"], row["grades"], strict=True):
                file.write(f"{escape(row['id'])} 0 {escape(document)} {grade}\n")
