"""The files of predictions, and the memory for writing them from rankings."""

from __future__ import annotations

import csv
import json
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ratchet.data.tables import CORPUS, RANKED, write_shards
from ratchet.jobs.predictions.write_predictions import Config, Inputs, disarm, run

DOCUMENTS = 30


def write(folder: Path, queries: int, depth: int) -> tuple[list[dict[str, Any]], Any]:
    """Write a corpus and a ranking in several shards. Every fifth list is shorter; the first is empty."""
    random = np.random.default_rng(0)
    corpus = [{"id": f"d {n}", "text": f"text\n\u2028 {n}"} for n in range(DOCUMENTS)]
    write_shards(folder / "corpus", corpus, CORPUS, 7)
    rows: list[dict[str, Any]] = []
    for q in range(queries):
        names = [f"d {n % DOCUMENTS}" for n in range(q, q + (depth if q % 5 else min(depth, q)))]
        scores = np.sort(random.random(len(names), np.float32))[::-1].tolist()
        rows.append(
            {
                "id": f"q {q}",
                "text": f'"{q}", é\r\n',
                "documents": names,
                "scores": scores,
                "ranks": [],
            }
        )
    write_shards(folder / "ranking", rows, RANKED, queries // 3)
    (folder / "out").mkdir()
    return rows, SimpleNamespace(out=folder / "out")


def test_no_field_is_a_formula() -> None:
    armed = ["=HYPERLINK(1)", "@SUM(A1)", "+cmd", "-cmd", "\t=1"]
    assert [disarm(field) for field in armed] == [f"'{field}" for field in armed]
    plain = ["q 1", "-1", "+2.5", "-.5", "a=b", ""]
    assert [disarm(field) for field in plain] == plain


@pytest.mark.parametrize("top", [1, 4, 100])
def test_each_file_has_the_first_documents_of_each_query(tmp_path: Path, top: int) -> None:
    rows, context = write(tmp_path, 40, 9)
    config = Config(top=top, columns=("Question,Id", "Ids"))
    found = run(context, config, Inputs(tmp_path / "ranking", tmp_path / "corpus"))
    best = [list(zip(row["documents"], row["scores"], strict=True))[:top] for row in rows]
    assert found.metrics == {"queries": 40, "documents": sum(map(len, best))}
    with (tmp_path / "out/predictions.csv").open(newline="", encoding="utf-8") as file:
        table = list(csv.reader(file))
    expected = [
        [row["id"], " ".join(name.replace(" ", "%20") for name, _ in own)]
        for row, own in zip(rows, best, strict=True)
    ]
    assert table == [["Question,Id", "Ids"], *expected]
    lines = (tmp_path / "out/predictions.jsonl").read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    for line, row, own in zip(map(json.loads, lines), rows, best, strict=True):
        documents = [
            {"id": name, "score": score, "text": f"text\n\u2028 {name[2:]}"} for name, score in own
        ]
        assert line == {"id": row["id"], "query": row["text"], "documents": documents}
    trec = [line.split() for line in (tmp_path / "out/predictions.trec").read_text().splitlines()]
    assert [
        (query, name, int(rank), float(score), tag) for query, _, name, rank, score, tag in trec
    ] == [
        (
            row["id"].replace(" ", "%20"),
            name.replace(" ", "%20"),
            rank,
            pytest.approx(score, rel=1e-8),
            "ratchet",
        )
        for row, own in zip(rows, best, strict=True)
        for rank, (name, score) in enumerate(own, 1)
    ]


@pytest.mark.slow
def test_rankings_are_not_held_in_memory(tmp_path: Path) -> None:
    """The lists of 1,500 queries are 12 MB as Python objects."""
    _, context = write(tmp_path, 1500, 60)
    inputs = Inputs(tmp_path / "ranking", tmp_path / "corpus")
    tracemalloc.start()
    try:
        run(context, Config(), inputs)
        assert tracemalloc.get_traced_memory()[1] < 6e6
    finally:
        tracemalloc.stop()
