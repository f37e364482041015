"""The mine job against a simple mine: sort all documents, then go through the list."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratchet.data.tables import QUERIES, read_shards, write_shards
from ratchet.errors import DataError, InputError
from ratchet.jobs.retrieval import mine
from ratchet.jobs.retrieval.mine import Config, Inputs
from ratchet.orchestrator.job_interface import Context, Result
from tests.support.clusters.step_process import work_here

MakeContext = Callable[..., Context]


@pytest.fixture
def context(local_ray: None, context: MakeContext) -> MakeContext:
    return work_here(context)


def mined(ctx: Context, problem: Any, **config: Any) -> tuple[Result, list[dict[str, Any]]]:
    inputs = Inputs(
        problem.queries, problem.corpus, problem.query_embeddings, problem.corpus_embeddings
    )
    result = mine.run(ctx, Config(**config), inputs)
    return result, read_shards(ctx.out).to_pylist()


def allowed(
    problem: Any, q: int, lo: int, hi: int, ceiling: float = np.inf, floor: float = -np.inf
) -> list[int]:
    """Rows of the window that may be negatives: not a positive, not the query, each text once, within the limits."""
    taken = {problem.texts[row] for row in problem.positives[q]} | {problem.query_texts[q]}
    rows = []
    for row in problem.ranking(q)[lo:hi]:
        score = float(problem.corpus_ND[row] @ problem.query_QD[q])
        if problem.texts[row] not in taken:
            taken.add(problem.texts[row])
            if floor <= score <= ceiling:
                rows.append(row)
    return rows


def names(problem: Any, rows: list[int]) -> list[str]:
    return [problem.ids[row] for row in rows]


def test_the_best_of_the_window(problem: Any, context: MakeContext) -> None:
    result, rows = mined(
        context(), problem, window=(3, 50), num_negatives=7, sampling_strategy="top"
    )
    assert [row["id"] for row in rows] == [f"q{q}" for q in range(60)]
    for q, row in enumerate(rows):
        assert row["negatives"] == names(problem, allowed(problem, q, 3, 50)[:7])
        for kind in ("positive", "negative"):
            scores = [
                problem.corpus_ND[int(name[1:])] @ problem.query_QD[q] for name in row[f"{kind}s"]
            ]
            assert row[f"{kind}_scores"] == scores
    assert result.metrics["negatives"] == 60 * 7
    assert result.metrics["random_fill"] == 0


def test_random_sampling_of_negatives(problem: Any, context: MakeContext) -> None:
    result, rows = mined(context(), problem, window=(2, 30), num_negatives=28, seed=1)
    filled = 0
    for q, row in enumerate(rows):
        window, count = allowed(problem, q, 2, 30), row["random_fill"]
        inside = row["negatives"][: len(row["negatives"]) - count]
        assert set(inside) <= set(names(problem, window))
        assert len(inside) == min(28, len(window))
        assert len(row["negatives"]) == 28
        texts = [problem.texts[int(name[1:])] for name in row["negatives"]]
        assert len(set(texts)) == 28, "no document twice"
        assert not {*texts} & {
            problem.query_texts[q],
            *(problem.texts[row] for row in problem.positives[q]),
        }
        scores = [
            problem.corpus_ND[int(name[1:])] @ problem.query_QD[q] for name in row["negatives"]
        ]
        assert row["negative_scores"] == scores, "those of the fillings, too"
        filled += count
    assert result.metrics["random_fill"] == filled > 0


def test_suspected_false_negatives(problem: Any, context: MakeContext) -> None:
    ctx = context()
    _, rows = mined(
        ctx,
        problem,
        window=(0, 60),
        num_negatives=5,
        sampling_strategy="top",
        absolute_margin=2.0,
        max_score=9.0,
        min_score=-1.0,
    )
    lines = {
        line["query_id"]: line
        for line in map(json.loads, (ctx.out / "suspects.jsonl").open(encoding="utf-8"))
    }
    assert lines
    for q, row in enumerate(rows):
        best = max(row["positive_scores"])
        ceiling = min(best - 2.0, 9.0)
        fitting = allowed(problem, q, 0, 60, ceiling, floor=-1.0)
        inside = row["negatives"][: len(row["negatives"]) - row["random_fill"]]
        assert inside == names(problem, fitting[:5])
        above = allowed(problem, q, 0, 60, floor=np.nextafter(ceiling, np.inf))
        assert row["suspects"] == names(problem, above)
        assert not set(row["suspects"]) & set(row["negatives"])
        told = lines.get(row["id"], {"suspects": []})["suspects"]
        assert [suspect["id"] for suspect in told] == row["suspects"]
        assert [suspect["similarity"] for suspect in told] == row["suspect_scores"]


def test_workers_give_the_same_bytes(problem: Any, context: MakeContext) -> None:
    runs = {"plain": context(name="plain"), "workers": context(name="workers", workers=2, cpus=1.0)}
    found = {}
    for name, ctx in runs.items():
        mined(ctx, problem, window=(1, 40))
        found[name] = {path.name: path.read_bytes() for path in ctx.out.iterdir()}
    assert found["plain"] == found["workers"]


def test_flag_embedding_can_be_read_back(problem: Any, context: MakeContext) -> None:
    ctx = context()
    _, rows = mined(ctx, problem, window=(1, 40))
    text_of = dict(zip(problem.ids, problem.texts, strict=True))
    lines = (ctx.out / "flag_embedding.jsonl").read_text().splitlines()
    for row, line in zip(rows, map(json.loads, lines), strict=True):
        assert line["query"] == row["text"]
        assert line["pos"] == [text_of[name] for name in row["positives"]]
        assert line["neg"] == [text_of[name] for name in row["negatives"]]


def test_vectors_of_other_texts_are_refused(problem: Any, context: MakeContext) -> None:
    problem.write_vectors(
        problem.query_embeddings, [f"q{q + (q > 30)}" for q in range(60)], problem.query_QD, 25
    )
    with pytest.raises(
        DataError, match=r"query_vectors/shard-00001\.arrow: its \d+ ids are not those"
    ):
        mined(context(), problem)
    problem.write_vectors(
        problem.query_embeddings, [f"q{q}" for q in range(60)], problem.query_QD, 25
    )
    problem.write_vectors(problem.corpus_embeddings, problem.ids[:-1], problem.corpus_ND[:-1], 64)
    with pytest.raises(DataError, match="199 vectors for 200 texts"):
        mined(context(name="again"), problem)


@pytest.mark.parametrize(
    ("positives", "said"),
    [
        ([], "row 0, query 'q0': no positive given"),
        (["d7", "d999"], r"row 0: positive 'd999' is not in"),
    ],
)
def test_queries_without_a_positive_are_named(
    problem: Any, context: MakeContext, tmp_path: Path, positives: list[str], said: str
) -> None:
    row = {
        "id": "q0",
        "text": "?",
        "positives": positives,
        "grades": [1] * len(positives),
        "negatives": [],
    }
    write_shards(tmp_path / "queries", [row], QUERIES, 25)
    problem.queries = tmp_path / "queries"
    problem.write_vectors(problem.query_embeddings, ["q0"], problem.query_QD[:1], 25)
    with pytest.raises(InputError, match=said):
        mined(context(), problem)


def test_labelled_documents_alone_are_candidates(problem: Any, context: MakeContext) -> None:
    """For ranks, windows and random draws alike."""
    labelled = sorted({row for rows in problem.positives for row in rows})
    settings = {
        "window": (1, 30),
        "num_negatives": 40,
        "sampling_strategy": "top",
        "candidates": "labelled",
    }
    result, rows = mined(context(), problem, **settings)
    assert result.metrics["candidates"] == len(labelled) < 200
    for q, row in enumerate(rows):
        taken = {problem.texts[p] for p in problem.positives[q]} | {problem.query_texts[q]}
        expected = []
        for document in [one for one in problem.ranking(q) if one in labelled][1:30]:
            if problem.texts[document] not in taken:
                taken.add(problem.texts[document])
                expected.append(document)
        chosen = len(row["negatives"]) - row["random_fill"]
        assert row["negatives"][:chosen] == names(problem, expected)
        assert {*row["negatives"]} <= {*names(problem, labelled)}
        assert row["random_fill"] > 0
