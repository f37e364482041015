"""Run and qrels files in TREC format, as read by trec_eval, pytrec_eval and ranx."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote


def escape(name: str) -> str:
    """Return an id with percent-encoded white space (`%20`), since white space separates the fields of a line."""
    if name.split() == [name]:
        return name
    return re.sub(r"\s", lambda found: quote(found[0]), name)


def write_run(
    path: Path, rankings: Iterable[tuple[str, Iterable[tuple[str, float]]]], tag: str
) -> None:
    """Write a run file. rankings: (query id, [(document id, score), ...] best first). Lines: `qid Q0 docid rank score
    tag`."""
    with path.open("w", encoding="utf-8") as file:
        for query, ranking in rankings:
            for rank, (document, score) in enumerate(ranking, start=1):
                file.write(f"{escape(query)} Q0 {escape(document)} {rank} {score:.9g} {tag}\n")


def write_qrels(path: Path, graded: Iterable[tuple[str, Iterable[tuple[str, int]]]]) -> None:
    """Write a qrels file. graded: (query id, [(document id, grade), ...]). Lines: `qid 0 docid grade`."""
    with path.open("w", encoding="utf-8") as file:
        for query, documents in graded:
            file.writelines(
                f"{escape(query)} 0 {escape(document)} {grade}\n" for document, grade in documents
            )
