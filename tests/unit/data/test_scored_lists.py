"""Lists whose scores come from one reranker, or from two that score a half of the queries each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.data.scored_lists import Lists, check_lists, describe_teacher, write_flag_embedding, write_scores
from ratchet.data.tables import CORPUS, MINED, RANKED, TEACHER_SCORES, find_half, read_shards, write_shards
from ratchet.errors import DataError

QUERIES = [
    {
        "id": f"q{n}",
        "text": f"query {n}",
        "group": f"g{n // 3}",
        "positives": [f"d{n % 5}"],
        "negatives": [f"d{m}" for m in range(5, 5 + n % 4)],
    }
    for n in range(30)
]


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    write_shards(tmp_path / "corpus", [{"id": f"d{n}", "text": f"text {n}"} for n in range(9)], CORPUS, 100)
    write_shards(tmp_path / "mined", QUERIES, pa.schema([*MINED, ("group", pa.string())]), 100)
    return tmp_path


def score(folder: Path, source: str, target: str, half: str, factor: float) -> dict[str, int]:
    """A text's score is its number times the factor."""
    table, texts = Lists(folder / source, folder / "corpus", None, half).read(folder / source / "shard-00000.parquet")
    scores = [np.array([factor * int(text.split()[1]) for text in own], np.float32) for own in texts]
    return write_scores(folder / target / "shard-00000.parquet", table, scores, 0)


def test_two_halves_make_a_whole(lists: Path) -> None:
    score(lists, "mined", "one", "first", 1.0)
    write_flag_embedding(lists / "one", lists / "corpus")
    assert not (lists / "one" / "flag_embedding.jsonl").exists(), "half of the queries have no scores yet"
    score(lists, "one", "two", "second", -2.0)
    write_flag_embedding(lists / "two", lists / "corpus")
    assert len((lists / "two" / "flag_embedding.jsonl").read_text().splitlines()) == len(QUERIES)
    table = read_shards(lists / "two")
    first_Q = find_half(table, "first")
    assert 0 < first_Q.sum() < len(QUERIES)
    for row, is_first in zip(table.to_pylist(), first_Q, strict=True):
        for name in ("positives", "negatives"):
            expected = [(1.0 if is_first else -2.0) * int(document[1:]) for document in row[name]]
            assert row[TEACHER_SCORES[name]] == expected
    score(lists, "two", "again", "both", 3.0)
    assert read_shards(lists / "again")[TEACHER_SCORES["positives"]][4].as_py() == [12.0]


def test_the_accuracy_is_that_of_lists_with_both_kinds(lists: Path) -> None:
    assert QUERIES[5]["positives"] == ["d0"]
    assert QUERIES[5]["negatives"] == ["d5"]
    with_negatives = sum(bool(row["negatives"]) for row in QUERIES)
    none_first, all_first = (score(lists, "mined", name, "both", sign) for name, sign in (("up", 1.0), ("down", -1.0)))
    said = "the teacher puts a positive first in 0% of the lists; below 60% it may do harm"
    assert describe_teacher(none_first) == ({"teacher_accuracy": 0.0}, said)
    assert describe_teacher(all_first) == ({"teacher_accuracy": 1.0}, "")
    assert all_first["compared"] == with_negatives < len(QUERIES)
    first_half = score(lists, "mined", "one", "first", -1.0)
    assert 0 < first_half["compared"] < with_negatives, "the other half has no scores yet"
    both, _ = describe_teacher(score(lists, "one", "two", "second", 1.0))
    assert both == {"teacher_accuracy": round(first_half["compared"] / with_negatives, 4)}
    assert describe_teacher({"rows": 3}) == ({}, "")


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=40))
def test_groups_are_in_one_half(rows: list[tuple[str, str]]) -> None:
    table = pa.table({"id": [name for name, _ in rows], "group": [group for _, group in rows]})
    first_Q, second_Q = (find_half(table, half) for half in ("first", "second"))
    assert (first_Q != second_Q).all()
    assert find_half(table, "both").all()
    halves: dict[str, set[bool]] = {}
    for (_, group), is_first in zip(rows, first_Q.tolist(), strict=True):
        halves.setdefault(group, set()).add(is_first)
    assert all(len(found) == 1 for found in halves.values())
    alone = table.drop_columns(["group"])
    assert find_half(alone, "first").tolist() == find_half(alone.append_column("group", table["id"]), "first").tolist()


def test_rankings_are_cut_and_other_tables_refused(lists: Path) -> None:
    ranked = [{"id": "q0", "text": "query 0", "documents": ["d3", "d1", "d2"], "scores": [3, 2, 1], "ranks": [1]}]
    write_shards(lists / "ranked", ranked, RANKED, 10)
    table, texts = Lists(lists / "ranked", lists / "corpus", 2).read(lists / "ranked" / "shard-00000.parquet")
    assert (table["documents"][0].as_py(), texts) == (["d3", "d1"], [["text 3", "text 1"]])
    check_lists(lists / "ranked")
    with pytest.raises(DataError, match="has none of the columns positives, negatives, documents"):
        check_lists(lists / "corpus")
