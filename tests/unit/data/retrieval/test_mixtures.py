"""Several data sets as one: texts, ids and splits."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.data.formats.columns import parse_options
from ratchet.data.retrieval import Document, Query, RetrievalData
from ratchet.data.retrieval.mixtures import Part, unite
from ratchet.data.retrieval.splits import split_queries
from ratchet.errors import DataError


def part(
    texts: dict[str, str], queries: list[Query], split: str = "", options: str = "", **about: Any
) -> Part:
    """A data set with documents of these ids and texts."""
    place = about.pop("place", "a")
    corpus = [
        Document(name, text, about.get("where", f"{place}:{n}"))
        for n, (name, text) in enumerate(texts.items())
    ]
    return (
        place,
        RetrievalData(corpus, queries, numbered=about.get("numbered", False)),
        split,
        parse_options(options, "x"),
    )


def query(name: str, *positives: str, **about: Any) -> Query:
    return Query(
        name, about.pop("text", f"text of {name}"), positives, (1,) * len(positives), **about
    )


FIRST = part({"d0": "zero", "d1": "one"}, [query("q0", "d0"), query("q1", "d1")])


def test_a_text_of_two_data_sets_is_one_document() -> None:
    second = part(
        {"e0": "one", "e1": "two", "e2": "two"},
        [query("r0", "e0", "e1"), query("r1", "e2")],
        place="b",
    )
    data = unite([FIRST, second])
    assert [(d.id, d.text) for d in data.corpus] == [
        ("d0", "zero"),
        ("d1", "one"),
        ("e1", "two"),
        ("e2", "two"),
    ]
    assert [(q.id, q.positives, q.source) for q in data.queries] == [
        ("q0", ("d0",), "0"),
        ("q1", ("d1",), "0"),
        ("r0", ("d1", "e1"), "1"),
        ("r1", ("e2",), "1"),
    ]


def test_united_documents_are_named_once() -> None:
    row = query("r", "e0", "e1", "e2", negatives=("e4",))
    texts = {"e0": "zero", "e1": "zero", "e2": "new", "e4": "one"}
    made = unite([FIRST, part(texts, [row], place="b")]).queries[-1]
    assert (made.positives, made.grades, made.negatives) == (("d0", "e2"), (1, 1), ("d1",))


def test_one_id_for_two_texts() -> None:
    second = {"d0": "other", "x": "y"}
    said = r"b:0: document id 'd0' is also at a:0; expected unique ids; rename or remove one"
    with pytest.raises(DataError, match=said):
        unite([FIRST, part(second, [query("r", "d0")], place="b")])
    with pytest.raises(DataError, match=r"b:9: query id 'q0' is also at a; expected unique ids"):
        unite([FIRST, part({"x": "y"}, [query("q0", "x", where="b:9")], place="b")])
    data = unite([FIRST, part(second, [query("q0", "d0")], options="name=b", place="b")])
    assert [document.id for document in data.corpus] == ["d0", "d1", "b/d0", "b/x"]
    assert (data.queries[-1].id, data.queries[-1].positives) == ("b/q0", ("b/d0",))


def test_numbers_that_a_reader_gave_never_collide() -> None:
    numbered = [
        part(
            {"d0": f"{name} zero", "d1": f"{name} one"},
            [query("q0", "d0")],
            place=name,
            numbered=True,
            where="",
        )
        for name in ("a", "b")
    ]
    data = unite([*numbered, FIRST])
    assert [document.id for document in data.corpus] == ["0/d0", "0/d1", "1/d0", "1/d1", "d0", "d1"]
    assert [query.id for query in data.queries] == ["0/q0", "1/q0", "q0", "q1"]


def test_a_single_data_set_stays_as_it_is() -> None:
    assert unite([FIRST]) is FIRST[1]


def test_a_data_set_for_a_split_replaces_that_of_the_others() -> None:
    splits = ("train", "valid", "test")
    own = [query(f"q{n}", "d0", split=split) for n, split in enumerate(splits)]
    test = [query(f"t{n}", "e0", split=split) for n, split in enumerate(splits)]
    free = [query("v0", "f0"), query("v1", "f0")]
    parts = [
        part({"d0": "zero"}, own),
        part({"f0": "five"}, free, "valid", place="v"),
        part({"e0": "eight"}, test, "test", place="t"),
    ]
    data = unite(parts)
    assert [(q.id, q.split) for q in data.queries] == [
        ("q0", "train"),
        ("v0", "valid"),
        ("v1", "valid"),
        ("t2", "test"),
    ]
    assert data.notes["queries of another split, left out"] == 2 + 2
    sides = split_queries(data.queries, 0.2, 0.1, 1)
    assert {name: [q.id for q in own] for name, own in sides.items()} == {
        "train": ["q0"],
        "valid": ["v0", "v1"],
        "test": ["t2"],
    }


def test_queries_for_test_only_are_never_split() -> None:
    data = unite(
        [part({"d0": "zero", "d1": "one"}, [query(f"q{n}", "d0") for n in range(9)], "test")]
    )
    assert {name: len(own) for name, own in split_queries(data.queries, 0.2, 0.1, 1).items()} == {
        "train": 0,
        "valid": 0,
        "test": 9,
    }


def test_an_instruction_replaces_those_of_the_data() -> None:
    queries = [query("r0", "e0", task="own"), query("r1", "e0")]
    made = unite([FIRST, part({"e0": "x"}, queries, options="instruction=find", place="b")]).queries
    assert [q.task for q in made] == ["", "", "find", "find"]
