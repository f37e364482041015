"""FlagEmbedding's JSONL: `query`, `pos`, `neg`, and optionally `pos_scores`, `neg_scores`, `prompt`,
`reranker_prompt`, `type`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.data.formats.text_files import read_field, read_json_objects, read_scores, read_texts
from ratchet.data.retrieval import Document, Query, RetrievalData
from ratchet.data.tables import TEACHER_SCORES
from ratchet.errors import DataError

POOL = "candidate_pool.jsonl"


@dataclass(frozen=True)
class TrainingRow:
    """One line of a file. Scores, if given, are one per text of the list beside them."""

    query: str
    pos: Sequence[str]
    neg: Sequence[str] = ()
    pos_scores: Sequence[float] | None = None
    neg_scores: Sequence[float] | None = None
    prompt: str = ""
    type: str = ""
    where: str = ""
    reranker_prompt: str = ""


def read_rows(path: Path) -> Iterator[TrainingRow]:
    """Read the lines of a file. Raises DataError naming file and line."""
    for where, row in read_json_objects(path):
        query = read_field(where, row, "query", str)
        pos, neg = read_texts(where, row, "pos"), read_texts(where, row, "neg", [])
        if not query.strip() or not pos:
            raise DataError(
                f"{where}: {'query' if not query.strip() else 'pos'} is empty; expected text; fill or remove the line"
            )
        scores = read_scores(where, row, "pos_scores", pos), read_scores(where, row, "neg_scores", neg)
        if neg and (scores[0] is None) != (scores[1] is None):
            there, missing = ("pos_scores", "neg_scores") if scores[1] is None else ("neg_scores", "pos_scores")
            raise DataError(f"{where}: has {there} but no {missing}; expected both or none; score the line again")
        yield TrainingRow(
            query,
            pos,
            neg,
            *scores,
            read_field(where, row, "prompt", str, ""),
            read_field(where, row, "type", str, ""),
            where,
            read_field(where, row, "reranker_prompt", str, ""),
        )


def write_rows(path: Path, items: Iterable[TrainingRow]) -> None:
    """Write the format that `read_rows` reads; fields that are not set are omitted."""
    with path.open("w", encoding="utf-8") as file:
        for row in items:
            line: dict[str, object] = {"query": row.query, "pos": list(row.pos), "neg": list(row.neg)}
            if row.pos_scores is not None:
                line["pos_scores"] = list(row.pos_scores)
            if row.neg_scores is not None:
                line["neg_scores"] = list(row.neg_scores)
            for key in ("prompt", "reranker_prompt", "type"):
                line |= {key: value} if (value := getattr(row, key)) else {}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def make_row(mined: Mapping[str, Any], text_of: Mapping[str, str]) -> TrainingRow:
    """Convert a row of a mined table (ids of positives and negatives) to a line, with its teacher scores if any."""
    return TrainingRow(
        mined["text"],
        pos=[text_of[name] for name in mined["positives"]],
        neg=[text_of[name] for name in mined["negatives"]],
        pos_scores=mined.get(TEACHER_SCORES["positives"]),
        neg_scores=mined.get(TEACHER_SCORES["negatives"]),
        prompt=mined.get("task", ""),
        reranker_prompt=mined.get("prompt", ""),
    )


def read(path: Path) -> RetrievalData:
    """Read a training file as retrieval data.

    The corpus consists of all texts in `pos` and `neg`, and of `candidate_pool.jsonl` (objects with `text`) beside the
    file, if it exists; ids are assigned in the order of appearance. Queries about the same question (`Question: ...` up
    to `Hint:`) form a group. Scores become the `teacher` of the queries, `prompt` their task, `reranker_prompt` their
    prompt. Raises DataError for the first line without scores if another line has them.
    """
    ids: dict[str, str] = {}
    queries: list[Query] = []
    seen: dict[object, str] = {}
    repeated = 0
    scored: TrainingRow | None = None
    for number, row in enumerate(read_rows(path)):
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
        if seen.setdefault((row.query, names[0], row.prompt, row.reranker_prompt), row.where) != row.where:
            repeated += 1
            continue
        group = row.query.split("\nHint:")[0]
        labels = names[0], (1,) * len(names[0]), names[1], group, None, row.where, _read_teacher(row)
        queries.append(Query(f"q{len(queries)}", row.query, *labels, task=row.prompt, prompt=row.reranker_prompt))
    pool = path.parent / POOL
    if pool.exists():
        for where, line in read_json_objects(pool):
            ids.setdefault(read_field(where, line, "text", str), f"d{len(ids)}")
    corpus = [Document(name, text) for text, name in ids.items()]
    return RetrievalData(corpus, queries, {"lines that repeat an earlier one, left out": repeated}, numbered=True)


def _has_scores(row: TrainingRow) -> bool:
    """Return whether a line has the scores that it needs: of its negatives only if it has some."""
    return row.pos_scores is not None and (row.neg_scores is not None or not row.neg)


def _read_teacher(row: TrainingRow) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the scores of the distinct texts; a repeated text keeps its first score."""
    if not _has_scores(row):
        return None
    positives: dict[str, float] = {}
    negatives: dict[str, float] = {}
    for texts, scores, found in ((row.pos, row.pos_scores, positives), (row.neg, row.neg_scores, negatives)):
        for text, score in zip(texts, scores or (), strict=True):
            found.setdefault(text, score)
    return tuple(positives.values()), tuple(negatives.values())
