"""Few-shot examples that are drawn for queries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ratchet.data.retrieval import Query
from ratchet.data.retrieval.examples import ExampleDraw


def make(number: int, group: str = "", topics: tuple[str, ...] = ()) -> Query:
    return Query(f"q{number}", f"text {number}", ("d",), (1,), group=group, topics=topics)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 2)), max_size=30),
    st.integers(1, 5),
    st.integers(0, 99),
)
def test_examples_are_of_other_groups_and_of_the_nearest_topic(
    rows: list[tuple[int, int, int]], count: int, seed: int
) -> None:
    """Against a search of all training queries. rows: (group, construct, subject)."""
    queries = [make(i, f"g{g}", (f"c{c}-{s}", f"s{s}")) for i, (g, c, s) in enumerate(rows)]
    train = queries[::2]
    draw = ExampleDraw(train, seed)
    for place, query in enumerate(queries):
        found = draw.draw(query, place, count)
        others = [one for one in train if one.group != query.group]
        assert len(found) == min(count, len(others))
        assert len({one.id for one in found}) == len(found)
        assert all(one in others for one in found)

        def distance(one: Query, query: Query = query) -> int:
            shared = [start for start in (0, 1, 2) if one.topics[start:] == query.topics[start:]]
            return shared[0]

        nearest = sorted(map(distance, others))[: len(found)]
        assert sorted(map(distance, found)) == nearest
        assert draw.draw(query, place, count) == found, "the same again"


def test_queries_with_the_same_text_are_no_examples() -> None:
    train = [make(1), make(1)._replace(id="other"), make(2)]
    draw = ExampleDraw(train, 0)
    assert [one.id for one in draw.draw(train[0], 0, 3)] == ["q2"]
    assert draw.draw(make(9), 0, 2) != []
    assert ExampleDraw([], 0).draw(make(1), 0, 2) == []


def test_examples_of_training_queries_do_not_tell_their_answers() -> None:
    train = [make(i, f"g{i}")._replace(positives=(f"d{i % 2}",)) for i in range(200)]
    draw = ExampleDraw(train, 0)
    for place in range(20):
        found = draw.draw(train[place], place, 5, trains=True)
        assert {one.positives for one in found} == {(f"d{1 - place % 2}",)}
    assert (
        ExampleDraw(train[:1], 0).draw(make(5)._replace(positives=("d0",)), 0, 1, trains=True) == []
    )


def test_a_large_group_of_the_query_itself_is_passed_over() -> None:
    train = [make(i, "own") for i in range(500)] + [make(500, "other")]
    found = [ExampleDraw(train, 0).draw(train[0], place, 1) for place in range(20)]
    assert [[one.id for one in own] for own in found] == [["q500"]] * 20


def test_large_topics_are_drawn_from_at_random() -> None:
    train = [make(i, f"g{i}") for i in range(1000)]
    draw = ExampleDraw(train, 1)
    found = {draw.draw(train[0], place, 1)[0].id for place in range(200)}
    assert len(found) > 150
