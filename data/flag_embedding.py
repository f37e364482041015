"""FlagEmbedding's JSONL: `query`, `pos`, `neg`, and optionally `pos_scores`, `neg_scores`, `prompt`, `type`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.errors import DataError
from data.retrieval import Document, Query, Retrieval
from data.tables import SCORED
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
        scores = scores_of(where, row, "pos_scores", pos), scores_of(where, row, "neg_scores", neg)
        if neg and (scores[0] is None) != (scores[1] is None):
            there, missing = ("pos_scores", "neg_scores") if scores[1] is None else ("neg_scores", "pos_scores")
            raise DataError(f"{where}: has {there} but no {missing}; expected both or none; score the line again")
        yield Row(
            query,
            pos,
            neg,
            *scores,
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


def row_of(mined: Mapping[str, Any], text_of: Mapping[str, str]) -> Row:
    """A row of a table with positives and negatives (ids), as a line: with a teacher's scores, where it has them."""
    return Row(
        mined["text"],
        pos=[text_of[name] for name in mined["positives"]],
        neg=[text_of[name] for name in mined["negatives"]],
        pos_scores=mined.get(SCORED["positives"]),
        neg_scores=mined.get(SCORED["negatives"]),
    )


def read(path: Path) -> Retrieval:
    """A training file as retrieval data.

    The corpus is every text named as `pos` or `neg`, and the `candidate_pool.jsonl` (objects with `text`) beside the
    file, if there is one; documents get their ids in the order of appearance. Queries that are about one question
    (`Question: ...` up to `Hint:`) stay on one side of a split. Scores become the queries' `teacher`; DataError names
    the first line that has none where another has some.
    """
    ids: dict[str, str] = {}
    queries: list[Query] = []
    prompt = ""
    seen: dict[tuple[str, tuple[str, ...]], str] = {}
    repeated = 0
    scored: Row | None = None
    for number, row in enumerate(rows(path)):
        prompt = prompt or row.prompt
        scored = row if number == 0 else scored
        assert scored is not None
        if _has_scores(row) != _has_scores(scored):
            without, with_scores = sorted((row, scored), key=_has_scores)
            raise DataError(
                f"{without.where}: no pos_scores and neg_scores, but {with_scores.where} has them; expected them on all"
                " lines or on none; score the rest, or remove them"
            )
        names = [
            tuple(dict.fromkeys(ids.setdefault(text, f"d{len(ids)}") for text in texts)) for texts in (row.pos, row.neg)
        ]
        if seen.setdefault((row.query, names[0]), row.where) != row.where:
            repeated += 1
            continue
        group = row.query.split("\nHint:")[0]
        grades, teacher = (1,) * len(names[0]), _teacher(row)
        queries.append(
            Query(f"q{len(queries)}", row.query, names[0], grades, names[1], group, where=row.where, teacher=teacher)
        )
    pool = path.parent / POOL
    if pool.exists():
        for where, line in jsonl_rows(pool):
            ids.setdefault(field_of(where, line, "text", str), f"d{len(ids)}")
    corpus = [Document(name, text) for text, name in ids.items()]
    return Retrieval(corpus, queries, prompt, {"lines that repeat an earlier one, left out": repeated})


def _has_scores(row: Row) -> bool:
    """A line without negatives needs no scores of them."""
    return row.pos_scores is not None and (row.neg_scores is not None or not row.neg)


def _teacher(row: Row) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """The scores of each text once: a text that is repeated keeps its first."""
    if not _has_scores(row):
        return None
    positives, negatives = (
        dict(reversed(list(zip(texts, scores or (), strict=True))))
        for texts, scores in ((row.pos, row.pos_scores), (row.neg, row.neg_scores))
    )
    return tuple(positives[text] for text in dict.fromkeys(row.pos)), tuple(
        negatives[text] for text in dict.fromkeys(row.neg)
    )
