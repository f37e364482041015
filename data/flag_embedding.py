"""FlagEmbedding's JSONL: `query`, `pos`, `neg`, and optionally `pos_scores`, `neg_scores`, `prompt`, `type`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from data.errors import DataError
from data.retrieval import Document, Query, Retrieval
from data.text_files import field_of, jsonl_rows, scores_of, texts_of

POOL = "candidate_pool.jsonl"


@dataclass(frozen=True)
class Row:
    """One line. Scores, where given, are one for each text of the list beside them."""

    query: str
    pos: Sequence[str]
    neg: Sequence[str] = ()
    pos_scores: Sequence[float] | None = None
    neg_scores: Sequence[float] | None = None
    prompt: str = ""
    type: str = ""
    where: str = ""


def rows(path: Path) -> Iterator[Row]:
    """The lines of a file. Raises DataError naming file and line."""
    for where, row in jsonl_rows(path):
        query = field_of(where, row, "query", str)
        pos, neg = texts_of(where, row, "pos"), texts_of(where, row, "neg", [])
        if not query.strip() or not pos:
            raise DataError(
                f"{where}: {'query' if not query.strip() else 'pos'} is empty; expected text; mend or remove the line"
            )
        yield Row(
            query,
            pos,
            neg,
            scores_of(where, row, "pos_scores", pos),
            scores_of(where, row, "neg_scores", neg),
            field_of(where, row, "prompt", str, ""),
            field_of(where, row, "type", str, ""),
            where,
        )


def write(path: Path, items: Iterable[Row]) -> None:
    """Writes the format that `rows` reads; fields that are not set are left out."""
    with path.open("w", encoding="utf-8") as file:
        for row in items:
            line: dict[str, object] = {"query": row.query, "pos": list(row.pos), "neg": list(row.neg)}
            if row.pos_scores is not None:
                line["pos_scores"] = list(row.pos_scores)
            if row.neg_scores is not None:
                line["neg_scores"] = list(row.neg_scores)
            line |= {key: value for key, value in (("prompt", row.prompt), ("type", row.type)) if value}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def read(path: Path) -> Retrieval:
    """A training file as retrieval data.

    The corpus is every text named as `pos` or `neg`, and the `candidate_pool.jsonl` (objects with `text`) beside the
    file, if there is one; documents get their ids in the order of appearance. Queries that are about one question
    (`Question: ...` up to `Hint:`) stay on one side of a split.
    """
    ids: dict[str, str] = {}
    queries: list[Query] = []
    prompt = ""
    seen: dict[tuple[str, tuple[str, ...]], str] = {}
    repeated = 0
    for row in rows(path):
        prompt = prompt or row.prompt
        names = [
            tuple(dict.fromkeys(ids.setdefault(text, f"d{len(ids)}") for text in texts)) for texts in (row.pos, row.neg)
        ]
        if seen.setdefault((row.query, names[0]), row.where) != row.where:
            repeated += 1
            continue
        group = row.query.split("\nHint:")[0]
        queries.append(
            Query(f"q{len(queries)}", row.query, names[0], (1,) * len(names[0]), names[1], group, where=row.where)
        )
    pool = path.parent / POOL
    if pool.exists():
        for where, line in jsonl_rows(pool):
            ids.setdefault(field_of(where, line, "text", str), f"d{len(ids)}")
    corpus = [Document(name, text) for text, name in ids.items()]
    return Retrieval(corpus, queries, prompt, {"lines that repeat an earlier one, left out": repeated})
