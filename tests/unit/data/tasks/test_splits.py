"""Properties of splits of samples with documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.data.tasks import get_task, read_samples
from ratchet.data.tasks.splits import group_samples, split_groups
from ratchet.data.tasks.squad import make_task
from ratchet.data.tasks.task import Sample
from ratchet.errors import DataError

TASK = get_task("squad-sequential")


def make_groups(sizes: list[list[int]]) -> list[list[Sample]]:
    """sizes: the number of questions of each group of each document."""
    groups = []
    for d, own in enumerate(sizes):
        for g, questions in enumerate(own):
            turns = tuple((f"question {d} {g} {q}", "answer") for q in range(questions))
            groups.append([Sample(f"{d}-{g}", f"{d}-{g}", "", turns, None, document=f"d{d}")])
    return groups


SIZES = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=5), min_size=3, max_size=12)


@pytest.mark.slow
@given(sizes=SIZES, seed=st.integers(0, 99), most=st.none() | st.integers(1, 30))
@settings(deadline=None)
def test_documents_stay_in_one_split(sizes: list[list[int]], seed: int, most: int | None) -> None:
    groups = make_groups(sizes)
    options = {
        "test_fraction": 0.2,
        "validation_fraction": 0.1,
        "seed": seed,
        "source": Path("s.json"),
    }
    try:
        every = split_groups(TASK, groups, None, **options).groups
    except DataError:
        assert (
            len(sizes) <= 4 or max(map(len, sizes)) > 1
        )  # one document may have most of the groups
        return
    sides = {name: {group[0].document for group in chosen} for name, chosen in every.items()}
    assert all(sides.values())
    assert sum(map(len, sides.values())) == len(sizes)
    assert sum(map(len, every.values())) == len(groups)
    found = split_groups(TASK, groups, None, max_train=most, **options).groups["train"]
    assert found == every["train"][: len(found)]
    if most is not None:
        questions = [sum(len(sample.turns) for sample in group) for group in every["train"]]
        assert len(found) == 1 or sum(questions[: len(found)]) <= most
        assert len(found) == len(questions) or sum(questions[: len(found) + 1]) > most


def test_the_passages_of_one_article_cannot_be_split() -> None:
    options = {
        "test_fraction": 0.1,
        "validation_fraction": 0.1,
        "seed": 1,
        "source": Path("s.json"),
    }
    with pytest.raises(DataError, match=r"9 groups in 2 documents, .*; expected at least 3"):
        split_groups(TASK, make_groups([[1] * 4, [1] * 5]), None, **options)


def test_the_document_of_a_passage_is_its_article(tmp_path: Path) -> None:
    def make_paragraph(name: str) -> dict[str, Any]:
        asked = {"id": name, "question": f"Who {name}?", "answers": [{"text": "Rome"}]}
        return {"context": f"Rome {name}", "qas": [asked]}

    articles = [{"paragraphs": [make_paragraph(name) for name in names]} for names in ("ab", "cd")]
    file = tmp_path / "s.json"
    file.write_text(json.dumps({"data": articles}))
    groups = group_samples(TASK, read_samples(TASK, file))
    assert [group[0].document for group in groups] == ["a0", "a0", "a1", "a1"]


def write_passages(folder: Path, sizes: list[int]) -> Path:
    """Write an article per passage, with that many questions."""
    articles = []
    for number, size in enumerate(sizes):
        asked = [
            {"id": f"{number}-{q}", "question": f"Who {number} {q}?", "answers": [{"text": "Rome"}]}
            for q in range(size)
        ]
        articles.append({"paragraphs": [{"context": f"Rome {number}", "qas": asked}]})
    file = folder / "squad.json"
    file.write_text(json.dumps({"data": articles}))
    return file


def test_questions_of_a_passage_are_drawn_within_limits(tmp_path: Path) -> None:
    sizes = [2, 5, 7, 10, 30] * 40
    file = write_passages(tmp_path, sizes)
    asked: dict[str, dict[str, list[str]]] = {}
    for name in ("squad-batch", "squad-sequential"):
        task = make_task(name, (5, 10), seed=1)
        found = asked.setdefault(name, {})
        for sample in read_samples(task, file):
            assert len(sample.gold["answers"]) == len(sample.turns)
            for question, _ in sample.turns:
                found.setdefault(sample.document, []).append(question.rpartition("Question: ")[2])
    batch = asked["squad-batch"]
    assert batch == asked["squad-sequential"]
    counts: dict[int, set[int]] = {}
    for number, size in enumerate(sizes):
        chosen = batch.get(f"a{number}", [])
        assert len(set(chosen)) == len(chosen)
        assert all(question.startswith(f"Who {number} ") for question in chosen)
        counts.setdefault(size, set()).add(len(chosen))
    assert counts == {
        2: {0},
        5: {5},
        7: {5, 6, 7},
        10: {5, 6, 7, 8, 9, 10},
        30: {5, 6, 7, 8, 9, 10},
    }
    assert any(questions != sorted(questions) for questions in batch.values())
