"""FlagEmbedding's JSONL: `query`, `pos`, `neg`, and optionally `pos_scores`, `neg_scores`, `prompt`,
`reranker_prompt`, `type`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ratchet.data.formats.pairs import (
    Options,
    check_labels,
    find_marks,
    read_name,
    read_split_column,
    refuse_empty,
    refuse_split,
    take_sample,
)
from ratchet.data.formats.split_names import read_split
from ratchet.data.formats.text_files import read_field, read_filled, read_json_objects, read_scores, read_texts, show
from ratchet.data.retrieval import RetrievalData
from ratchet.data.retrieval.rows import Row, number_rows
from ratchet.data.tables import TEACHER_SCORES
from ratchet.errors import DataError

POOL = "candidate_pool.jsonl"
FIELDS = ("query", "pos", "neg", "pos_scores", "neg_scores", "prompt", "type", "reranker_prompt", "group")


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write lines, such as those of `make_line`."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def make_line(mined: Mapping[str, Any], find: Callable[[Sequence[str]], list[str]]) -> dict[str, Any]:
    """Convert a row of a mined table (ids of positives and negatives) to a line, with its teacher scores and
    instructions if it has any. find: ids -> their texts."""
    texts = find([*mined["positives"], *mined["negatives"]])
    positives = len(mined["positives"])
    line = {"query": mined["text"], "pos": texts[:positives], "neg": texts[positives:]}
    optional = {
        "pos_scores": mined.get(TEACHER_SCORES["positives"]),
        "neg_scores": mined.get(TEACHER_SCORES["negatives"]),
        "prompt": mined.get("task"),
        "reranker_prompt": mined.get("prompt"),
    }
    return line | {name: value for name, value in optional.items() if value not in (None, "")}


def read(path: Path, options: Options, *, sampled: bool = False) -> RetrievalData:
    """Read a training file as retrieval data.

    The corpus consists of all texts in `pos` and `neg`, and of `candidate_pool.jsonl` (objects with `text`) beside the
    file, if it exists; ids are assigned in the order of appearance. Lines with the same query and instructions are one
    query with the positives of all. Queries with the same `group`, or about the same question (`Question: ...` up to
    `Hint:`), form a group. Columns `split` and labels are read as in `pairs`. options: `split` and `ignore`. Scores
    become the `teacher` of the queries, `prompt` their task, `reranker_prompt` their prompt. Raises DataError
    naming file and line, also for the first line without scores if another line has them. sampled: as in `pairs.read`.
    """
    unread: set[str] = set()
    rows, share = take_sample(_read_rows(path, options, unread), [path], sampled)
    others: Iterator[str] = iter(())
    if (path.parent / POOL).exists() and share == 1:
        others = (read_filled(where, line, "text") for where, line in read_json_objects(path.parent / POOL))
    return replace(number_rows(rows, others, share), unread=sorted(unread))


def _read_rows(path: Path, options: Options, unread: set[str]) -> Iterator[Row]:
    scored: dict[bool, str] = {}  # whether a line has scores -> the first such line
    wanted = options.get("split", ("",))[0]
    ignored = options.get("ignore", ("",))[0].split(",")
    for where, line in read_json_objects(path):
        # `datasets` writes missing fields as null.
        row = {}
        for name, value in line.items():
            if value is not None or name in ("query", "pos"):
                row[name] = value
        row = {name: value for name, value in row.items() if name not in ignored}
        others = []
        for name in row:
            if name not in FIELDS:
                others.append(name)
        splits, labels = find_marks(where, others)
        unread.update(name for name in others if name not in (*splits, *labels))
        if row.get("type", "normal") != "normal":
            unread.add("type")
        split = read_split_column(where, row, splits)
        if wanted and not splits:
            raise refuse_split(where, wanted, [*row])
        if wanted and split != read_split(wanted):
            continue
        check_labels(where, row, labels)
        query = read_filled(where, row, "query")
        pos = read_texts(where, row, "pos")
        neg = read_texts(where, row, "neg", [])
        if not pos:
            raise DataError(f"{where}: pos is empty; expected text; fill or remove the line")
        if both := set(pos) & set(neg):
            raise DataError(
                f"{where}: query {show(query)} has {show(min(both))} as a positive and as a negative; expected one of"
                " the two; remove it from neg"
            )
        pos_scores = read_scores(where, row, "pos_scores", pos)
        neg_scores = read_scores(where, row, "neg_scores", neg)
        # Without negatives, a line needs no scores of them.
        if neg and (pos_scores is None) != (neg_scores is None):
            if neg_scores is None:
                there = "pos_scores"
                missing = "neg_scores"
            else:
                there = "neg_scores"
                missing = "pos_scores"
            raise DataError(f"{where}: has {there} but no {missing}; expected both or none; score the line again")
        scored.setdefault(pos_scores is not None, where)
        if len(scored) == 2:
            raise DataError(
                f"{scored[False]}: no pos_scores and neg_scores, but {scored[True]} has them; expected them on all"
                " lines or on none; score the rest, or remove them"
            )
        task, _, prompt = (read_field(where, row, name, str, "") for name in ("prompt", "type", "reranker_prompt"))
        if pos_scores is None:
            teacher = None
        else:
            teacher = (pos_scores, neg_scores or ())
        group = read_name(where, row, ["group"], "group") or query.split("\nHint:")[0]
        if wanted:
            assigned = None
        else:
            assigned = split or None
        key = (query, task, prompt, assigned)
        yield Row(key, query, pos, neg, group, where, "", task, prompt, teacher, assigned)
    if wanted and not scored:
        raise refuse_empty(path, wanted)
