"""The questions of the quickstart."""

from __future__ import annotations

from collections import Counter

from ratchet.data.formats.examples import FILE, QUESTIONS, read_example_questions


def test_the_file_holds_the_questions_and_is_small() -> None:
    data = read_example_questions(QUESTIONS)
    assert len({query.group for query in data.queries}) == QUESTIONS
    assert len(data.queries) == 3 * QUESTIONS
    assert FILE.stat().st_size < 300_000


def test_the_first_questions_use_misconceptions_equally_often() -> None:
    data = read_example_questions(320)
    assert data.queries == read_example_questions(QUESTIONS).queries[:960]
    counts = Counter(query.positives[0] for query in data.queries)
    assert set(counts) == {document.id for document in data.corpus}
    assert max(counts.values()) <= 2 * min(counts.values())


def test_a_query_reads_like_eedis() -> None:
    first = read_example_questions(1).queries[0]
    assert [line.partition(": ")[0] for line in first.text.splitlines()] == [
        "Question",
        "Hint",
        "Correct answer",
        "Wrong answer",
    ]
