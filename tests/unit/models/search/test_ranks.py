"""Ranks against a full sort, metrics against pytrec_eval."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
import pytrec_eval
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from public_data import FOLDER, needs_public_data

from ratchet.models.search import products, rank_metrics, ranks, top_k

KS = (1, 3, 10)


def vectors(seed: int, queries: int, rows: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors with exact duplicates and with near ones, a float32 step apart."""
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((max(1, rows // 3), dim)).astype(np.float32)
    corpus = base[rng.integers(0, len(base), rows)]
    nudged = rng.random(rows) < 0.5
    corpus[nudged, 0] = np.nextafter(corpus[nudged, 0], np.float32(9))
    return rng.standard_normal((queries, dim)).astype(np.float32), corpus


def brute_ranks(scores_QN: np.ndarray, lists: list[list[int]], exclude: np.ndarray) -> np.ndarray:
    out = []
    for q, rows in enumerate(lists):
        order = [
            row for row in np.argsort(-scores_QN[q], kind="stable").tolist() if row != exclude[q]
        ]
        out += [order.index(row) + 1 for row in rows]
    return np.array(out, np.int64)


def exact_scores(query: np.ndarray, corpus: np.ndarray) -> np.ndarray:
    """In float64, rounded once; by rows, so that equal rows have equal scores."""
    corpus_ND = corpus.astype(np.float64)
    return np.array(
        [(corpus_ND * q_D).sum(axis=1).astype(np.float32) for q_D in query.astype(np.float64)]
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, list[list[int]], np.ndarray]:
    """A seed, rows, relevant rows per query (some none, some nearly all) and a row to leave out (-1: none)."""
    rows = draw(st.integers(2, 90))
    lists, exclude = [], []
    for _ in range(draw(st.integers(1, 6))):
        order = draw(st.permutations(range(rows)))
        lists.append(list(order[: draw(st.integers(0, rows - 1))]))
        exclude.append(order[-1] if draw(st.booleans()) else -1)
    return draw(st.integers(0, 10**6)), rows, lists, np.array(exclude)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "QUERIES_AT_ONCE", 4)
    monkeypatch.setattr(products, "ROWS_AT_ONCE", 16)
    monkeypatch.setattr(ranks, "PAIRS_AT_ONCE", 7)
    monkeypatch.setattr(ranks, "SCORES_AT_ONCE", 200)


@pytest.mark.slow
@given(
    case=cases(), block=st.integers(1, 90), dim=st.sampled_from([1, 5, 40]), k=st.integers(1, 100)
)
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_ranks_are_those_of_a_full_sort(
    small_tiles: None,
    case: tuple[int, int, list[list[int]], np.ndarray],
    block: int,
    dim: int,
    k: int,
) -> None:
    seed, rows, lists, exclude = case
    query, corpus = vectors(seed, len(lists), rows, dim)
    relevant = ranks.Relevant.from_lists(lists)
    scores = exact_scores(query, corpus)
    expected = brute_ranks(scores, lists, exclude)
    blocks = [(start, corpus[start : start + block]) for start in range(0, rows, block)]
    own = ranks.score_relevant(query, relevant, blocks)
    one, two = (ranks.RankCounter(relevant, own) for _ in range(2))
    for number, part in enumerate(blocks):
        for tile in products.multiply(query, [part], "cpu", exclude):
            (one if number % 2 else two).add(*tile)
    np.testing.assert_array_equal(1 + one.before_R + two.before_R, expected)

    scores[np.flatnonzero(exclude >= 0), exclude[exclude >= 0]] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    for found in (
        ranks.rank_and_search(query, relevant, lambda: blocks, k, exclude_Q=exclude),
        ranks.rank_in_blocks(
            lambda some: scores[some], rows, relevant, exclude, k, lambda done: None
        ),
    ):
        np.testing.assert_array_equal(found[0], expected)
        np.testing.assert_array_equal(found[1], np.take_along_axis(scores, order, 1))
        np.testing.assert_array_equal(found[2], order)


@pytest.mark.slow
@given(case=cases(), dim=st.sampled_from([1, 5, 40]), block=st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_ranks_of_all_against_all_are_those_of_a_full_sort(
    case: tuple[int, int, list[list[int]], np.ndarray], dim: int, block: int
) -> None:
    seed, rows, lists, _ = case
    _, corpus = vectors(seed, 1, rows, dim)
    lists = [
        [row for row in own if row != q] for q, own in enumerate([*lists, *[[]] * rows][:rows])
    ]
    blocks = [(start, corpus[start : start + block]) for start in range(0, rows, block)]
    relevant, every = ranks.Relevant.from_lists(lists), np.arange(rows)
    found = ranks.rank_relevant(corpus, relevant, lambda: blocks, exclude_Q=every)
    np.testing.assert_array_equal(found, brute_ranks(exact_scores(corpus, corpus), lists, every))


def test_the_order_is_that_of_search() -> None:
    query, corpus = vectors(4, 20, 400, 30)
    _, rows = top_k.top_k(query, [(0, corpus)], 400)
    relevant = ranks.Relevant.from_lists([sorted(set(range(q, 400, 7 + q))) for q in range(20)])
    found = ranks.rank_relevant(query, relevant, lambda: [(0, corpus[:150]), (150, corpus[150:])])
    np.testing.assert_array_equal(rows[relevant.query_R, found - 1], relevant.indices)


def test_shards_scores_go_together() -> None:
    query, corpus = vectors(8, 3, 50, 8)
    relevant = ranks.Relevant.from_lists([[0, 49], [], [25]])
    whole = ranks.score_relevant(query, relevant, [(0, corpus)])
    parts = [
        ranks.score_relevant(query, relevant, [(start, corpus[start : start + 25])])
        for start in (0, 25)
    ]
    assert np.isnan(parts[0]).sum() == 2
    np.testing.assert_array_equal(np.fmax(*parts), whole)


def trec(
    lists: list[list[int]], grades: list[list[int]], order: np.ndarray
) -> dict[str, dict[str, float]]:
    """pytrec_eval's values of a ranking [Q, N], given as falling scores so that its own tie rule never acts."""
    qrels = {
        f"q{q}": {f"d{row}": grade for row, grade in zip(rows, grades[q], strict=True)}
        for q, rows in enumerate(lists)
    }
    run = {
        f"q{q}": {f"d{row}": float(-place) for place, row in enumerate(order[q])}
        for q in range(len(lists))
    }
    cut = ",".join(map(str, KS))
    measures = {f"{name}.{cut}" for name in ("map_cut", "P", "recall", "ndcg_cut", "success")}
    return pytrec_eval.RelevanceEvaluator(qrels, measures | {"map", "recip_rank"}).evaluate(run)


@pytest.mark.slow
@given(case=cases(), grading=st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None)
def test_metrics_are_trec_evals(
    case: tuple[int, int, list[list[int]], np.ndarray], grading: object
) -> None:
    seed, rows, lists, _ = case
    grades = [[grading.randint(1, 3) for _ in rows_] for rows_ in lists]  # type: ignore[attr-defined]
    query, corpus = vectors(seed, len(lists), rows, 6)
    relevant = replace(ranks.Relevant.from_lists(lists), grades=np.concatenate(grades))
    found = ranks.rank_relevant(query, relevant, lambda: [(0, corpus)])
    got = rank_metrics.compute_rank_metrics(found, relevant, KS)
    expected = trec(lists, grades, np.argsort(-exact_scores(query, corpus), axis=1, kind="stable"))
    names = {"mrr": "recip_rank", "map": "map"}
    for k in KS:
        names |= {f"map@{k}": f"map_cut_{k}", f"p@{k}": f"P_{k}", f"r@{k}": f"recall_{k}"}
        names |= {f"ndcg@{k}": f"ndcg_cut_{k}", f"hit@{k}": f"success_{k}"}
    assert set(got.values) == set(names)
    for ours, theirs in names.items():
        for q, rows_ in enumerate(lists):
            if rows_:
                assert got.per_query[ours][q] == pytest.approx(
                    expected[f"q{q}"][theirs], abs=1e-9
                ), ours
            else:
                assert np.isnan(got.per_query[ours][q])


@needs_public_data
def test_metrics_on_a_real_ranking() -> None:
    """Questions as queries over the real misconceptions, by BM25: dense scores with many ties at zero."""
    import bm25s

    with (FOLDER / "eedi" / "misconception_mapping.csv").open(newline="") as file:
        texts = [row["MisconceptionName"] for row in csv.DictReader(file)]
    queries, lists = [], []
    with (FOLDER / "eedi" / "train.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            queries.append(row["QuestionText"] + " " + row["ConstructName"])
            lists.append(
                sorted(
                    {
                        int(float(row[f"Misconception{x}Id"]))
                        for x in "ABCD"
                        if row[f"Misconception{x}Id"]
                    }
                )
            )
    queries, lists = queries[:150], [[], *lists[1:150]]
    index = bm25s.BM25()
    index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
    words = bm25s.tokenize(queries, return_ids=False, show_progress=False)
    scores = np.stack([index.get_scores(tokens) for tokens in words])
    relevant = ranks.Relevant.from_lists(lists)
    nobody = np.full(len(queries), -1)
    found, *_ = ranks.rank_in_blocks(
        lambda some: scores[some], len(texts), relevant, nobody, 1, lambda done: None
    )
    got = rank_metrics.compute_rank_metrics(found, relevant, KS)
    expected = trec(
        lists, [[1] * len(rows) for rows in lists], np.argsort(-scores, axis=1, kind="stable")
    )
    kept = [expected[f"q{q}"] for q, rows in enumerate(lists) if rows]
    assert got.empty == 1
    for ours, theirs in {
        "map": "map",
        "map@10": "map_cut_10",
        "ndcg@10": "ndcg_cut_10",
        "r@3": "recall_3",
    }.items():
        assert got.values[ours] == pytest.approx(np.mean([one[theirs] for one in kept]), abs=1e-9)
    assert got.values["map@10"] > 0.03


def test_map_of_one_relevant_document() -> None:
    relevant = ranks.Relevant.from_lists([[3], [4], [0, 1, 2]])
    found = np.array([2, 26, 1, 2, 30])
    got = rank_metrics.compute_rank_metrics(found, relevant, (2, 25))
    assert got.per_query["map@25"].tolist() == pytest.approx([1 / 2, 0, 2 / 3])
    assert got.per_query["map@2"].tolist() == pytest.approx([1 / 2, 0, 2 / 3])


def test_queries_without_relevant_documents_are_reported() -> None:
    relevant = ranks.Relevant.from_lists([[5], [], []])
    skipped = rank_metrics.compute_rank_metrics(np.array([1]), relevant, (1,))
    assert (skipped.queries, skipped.empty) == (3, 2)
    assert skipped.values["mrr"] == 1
    nothing = rank_metrics.compute_rank_metrics(
        np.empty(0, np.int64), ranks.Relevant.from_lists([[], []]), (1,)
    )
    assert nothing.values["map"] == 0
    assert nothing.empty == 2
