"""Lists of documents, and the scores that a reranker gives them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ratchet.data.scored_lists import Lists, check_lists, describe_teacher, write_scores
from ratchet.data.tables import CORPUS, MINED, RANKED, write_shards
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
    write_shards(
        tmp_path / "corpus", [{"id": f"d{n}", "text": f"text {n}"} for n in range(9)], CORPUS, 100
    )
    write_shards(tmp_path / "mined", QUERIES, pa.schema([*MINED, ("group", pa.string())]), 100)
    return tmp_path


def score(folder: Path, source: str, target: str, factor: float) -> dict[str, int]:
    """A text's score is its number times the factor."""
    table, texts = Lists(folder / source, folder / "corpus", None).read(
        folder / source / "shard-00000.parquet"
    )
    scores = [
        np.array([factor * int(text.split()[1]) for text in own], np.float32) for own in texts
    ]
    return write_scores(folder / target / "shard-00000.parquet", table, scores, 0)


def test_the_accuracy_is_that_of_lists_with_both_kinds(lists: Path) -> None:
    assert QUERIES[5]["positives"] == ["d0"]
    assert QUERIES[5]["negatives"] == ["d5"]
    with_negatives = sum(bool(row["negatives"]) for row in QUERIES)
    none_first, all_first = (
        score(lists, "mined", name, sign) for name, sign in (("up", 1.0), ("down", -1.0))
    )
    said = "the teacher puts a positive first in 0% of the lists; below 60% it may do harm"
    assert describe_teacher(none_first) == ({"teacher_accuracy": 0.0}, said)
    assert describe_teacher(all_first) == ({"teacher_accuracy": 1.0}, "")
    assert all_first["compared"] == with_negatives < len(QUERIES)
    again = score(lists, "up", "again", -1.0)
    assert again == all_first, "earlier scores are replaced"
    assert describe_teacher({"rows": 3}) == ({}, "")


def test_rankings_are_cut_and_other_tables_refused(lists: Path) -> None:
    ranked = [
        {
            "id": "q0",
            "text": "query 0",
            "documents": ["d3", "d1", "d2"],
            "scores": [3, 2, 1],
            "ranks": [1],
        }
    ]
    write_shards(lists / "ranked", ranked, RANKED, 10)
    table, texts = Lists(lists / "ranked", lists / "corpus", 2).read(
        lists / "ranked" / "shard-00000.parquet"
    )
    assert (table["documents"][0].as_py(), texts) == (["d3", "d1"], [["text 3", "text 1"]])
    check_lists(lists / "ranked")
    with pytest.raises(DataError, match="has none of the columns positives, negatives, documents"):
        check_lists(lists / "corpus")
