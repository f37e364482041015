"""The choice of negatives, against a second implementation written from the description, over random cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.data.negative_settings import NegativeSettings
from ratchet.data.negatives import choose_negatives


def sixteenths(lowest: int, highest: int) -> st.SearchStrategy[float]:
    """Numbers whose sums and products are exact, so that two implementations can only differ where one is wrong."""
    return st.integers(lowest, highest).map(lambda value: value / 16)


@st.composite
def cases(draw: st.DrawFn) -> dict:
    size = draw(st.integers(3, 40))
    texts = np.array(
        draw(st.lists(st.integers(0, size), min_size=size, max_size=size)), dtype=np.int64
    )
    order = np.array(draw(st.permutations(range(size))), dtype=np.int64)
    scores = np.sort(np.array(draw(st.lists(sixteenths(-16, 16), min_size=size, max_size=size))))[
        ::-1
    ]
    lo = draw(st.integers(0, 6))
    settings = NegativeSettings(
        (lo, lo + draw(st.integers(1, size))),
        draw(st.integers(1, 12)),
        draw(st.sampled_from(["random", "top"])),
        draw(st.none() | sixteenths(0, 8)),
        draw(st.none() | sixteenths(8, 16)),
        draw(st.none() | sixteenths(-8, 16)),
        draw(st.none() | sixteenths(-16, 3)),
    )
    forbidden = set(draw(st.lists(st.integers(0, size), min_size=1, max_size=4)))
    return {
        "settings": settings,
        "candidates": order,
        "scores": scores,
        "positive": draw(sixteenths(-16, 16)),
        "forbidden": forbidden,
        "texts": texts,
        "seed": draw(st.integers(0, 5)),
        "query_id": draw(st.sampled_from(["a", "b"])),
    }


def pool_of(case: dict) -> list[int]:
    """Rows of the window that may be negatives, in the order of their rank, one by one from the description."""
    settings: NegativeSettings = case["settings"]
    pool, seen = [], set()
    lo, hi = settings.window
    for rank, (row, score) in enumerate(
        zip(case["candidates"].tolist(), case["scores"].tolist(), strict=True)
    ):
        if not lo <= rank < hi:
            continue
        text = int(case["texts"][row])
        fresh = text not in seen
        seen.add(text)
        if text in case["forbidden"] or not fresh:
            continue
        positive = case["positive"]
        if settings.absolute_margin is not None and score > positive - settings.absolute_margin:
            continue
        if settings.percent_of_positive is not None:
            share = settings.percent_of_positive
            limit = positive * share if positive >= 0 else positive * (2 - share)
            if score > limit:
                continue
        if settings.max_score is not None and score > settings.max_score:
            continue
        if settings.min_score is not None and score < settings.min_score:
            continue
        pool.append(row)
    return pool


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(cases())
def test_choice_of_negatives(case: dict) -> None:
    chosen = choose_negatives(**case)
    pool, settings, texts = pool_of(case), case["settings"], case["texts"]
    mined, filled = (
        chosen.rows[: len(chosen.rows) - chosen.random_fill],
        chosen.rows[len(chosen.rows) - chosen.random_fill :],
    )
    assert len(mined) == min(len(pool), settings.num_negatives)
    assert set(mined.tolist()) <= set(pool)
    if settings.sampling_strategy == "top":
        assert mined.tolist() == pool[: settings.num_negatives]
    assert mined.tolist() == sorted(mined.tolist(), key=pool.index), (
        "not in the order of their rank"
    )
    taken = [int(texts[row]) for row in chosen.rows]
    assert len(set(taken)) == len(taken)
    assert not set(taken) & case["forbidden"]
    suspects = {int(texts[row]) for row in chosen.suspects}
    assert not suspects & case["forbidden"]
    above = case["candidates"][case["scores"] > settings.ceiling(case["positive"])]
    too_similar = {int(texts[row]) for row in above}
    assert not suspects - too_similar
    assert not too_similar & {int(texts[row]) for row in filled}
    left = {int(text) for text in texts} - case["forbidden"] - too_similar - set(taken)
    assert len(chosen.rows) == settings.num_negatives or not left, "the corpus had more"


@pytest.mark.slow
@given(cases())
def test_a_draw_depends_on_seed_and_query_alone(case: dict) -> None:
    assert choose_negatives(**case).rows.tolist() == choose_negatives(**case).rows.tolist()


def test_another_seed_or_query_draws_others() -> None:
    case = {
        "settings": NegativeSettings((2, 200), 15),
        "candidates": np.arange(500),
        "scores": np.linspace(1, 0, 500),
        "positive": 1.0,
        "forbidden": {3},
        "texts": np.arange(500),
    }
    draws = [
        tuple(choose_negatives(**case, seed=s, query_id=q).rows)
        for s, q in ((1, "a"), (2, "a"), (1, "b"))
    ]
    assert len(set(draws)) == 3
    assert all(2 <= row < 200 and row != 3 for draw in draws for row in draw)


@pytest.mark.parametrize(("lo", "hi"), [(2, 200), (0, 30), (10, 400)])
def test_the_candidates_are_those_of_flag_embeddings_hn_mine(lo: int, hi: int) -> None:
    """Written from what `scripts/hn_mine.py` does with its index: search as deep as the range ends, cut the range, then
    drop positives and the query's own text. Its pool has each text once."""
    import faiss

    from ratchet.models.search.top_k import top_k

    random = np.random.default_rng(lo)
    corpus = [f"text {i}" for i in range(300)]
    queries = [f"text {i}" if i % 3 == 0 else f"query {i}" for i in range(40)]
    positives = [[corpus[i] for i in random.choice(300, 3, replace=False)] for _ in queries]
    corpus_ND, query_QD = (random.standard_normal((n, 16)).astype(np.float32) for n in (300, 40))
    index = faiss.IndexFlatIP(16)
    index.add(corpus_ND)
    found_QK = index.search(query_QD, hi)[1]

    scores_QK, rows_QK = top_k(query_QD, [(0, corpus_ND)], hi)
    texts, known = np.arange(300), {text: row for row, text in enumerate(corpus)}
    for q, query in enumerate(queries):
        theirs = {
            i
            for i in found_QK[q, lo:hi].tolist()
            if i >= 0 and corpus[i] not in positives[q] and corpus[i] != query
        }
        forbidden = {known[text] for text in [*positives[q], query] if text in known}
        everything = NegativeSettings((lo, hi), max(1, len(theirs)), "top")
        ours = choose_negatives(
            everything, rows_QK[q], scores_QK[q], np.inf, forbidden, texts, 0, query
        )
        assert set(ours.rows.tolist()) == theirs
        assert ours.random_fill == 0
        one_more = NegativeSettings((lo, hi), len(theirs) + 1, "top")
        assert choose_negatives(
            one_more, rows_QK[q], scores_QK[q], np.inf, forbidden, texts, 0, query
        ).random_fill == min(1, len(corpus) - len(theirs) - len(forbidden))


@pytest.mark.parametrize("hi", [20, 60, 150])
def test_ceiling_holds_for_random_fill(hi: int) -> None:
    """The 100 best of 200 documents are above the ceiling of 0.5."""
    scores, rows = np.linspace(0.99, 0.0, 200), np.arange(200)
    settings = NegativeSettings((0, hi), 15, absolute_margin=0.1)
    for number in range(20):
        chosen = choose_negatives(
            settings, rows[:hi], scores[:hi], 0.6, [], rows, number, f"q{number}"
        )
        assert (scores[chosen.rows] <= 0.5).all()
        assert (len(chosen.rows) == 15) == (hi == 150)
