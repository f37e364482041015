"""The evaluation job against trec_eval and against a full sort."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import pytrec_eval

from ratchet.errors import DataError, InputError
from ratchet.jobs.retrieval import evaluate_retrieval
from ratchet.jobs.retrieval.evaluate_retrieval import Config, Inputs
from ratchet.orchestrator.job_interface import Context, Result
from ratchet.orchestrator.job_interface.settings import validate
from tests.support.clusters.step_process import work_here

MakeContext = Callable[..., Context]


@pytest.fixture
def context(local_ray: None, context: MakeContext) -> MakeContext:
    return work_here(context)


def evaluated(ctx: Context, problem: Any, before: Path | None = None, **config: Any) -> Result:
    bm25 = config.get("system") == "bm25"
    vectors = (None, None) if bm25 else (problem.query_embeddings, problem.corpus_embeddings)
    inputs = Inputs(problem.queries, problem.corpus, *vectors, before=before)
    given = validate(Config, config, "evaluate_retrieval")
    evaluate_retrieval.check(given, inputs, {})
    return evaluate_retrieval.run(ctx, given, inputs)


def first_ranks(problem: Any) -> list[int]:
    orders = [problem.ranking(q) for q in range(len(problem.positives))]
    return [
        min(orders[q].index(row) for row in rows) + 1 for q, rows in enumerate(problem.positives)
    ]


def check_against_trec_eval(out: Path, metrics: dict[str, Any]) -> None:
    """All metrics again, from the two files that were written (the run holds the whole ranking)."""
    run: dict[str, dict[str, float]] = {}
    for line in (out / "run.trec").read_text().splitlines():
        query, _, document, rank, _, _ = line.split()
        # trec_eval breaks ties by name; ours stand by row.
        run.setdefault(query, {})[document] = -float(rank)
    qrels: dict[str, dict[str, int]] = {}
    for line in (out / "qrels.trec").read_text().splitlines():
        query, _, document, grade = line.split()
        qrels.setdefault(query, {})[document] = int(grade)
    kinds = {"map_cut": "map", "P": "p", "recall": "r", "ndcg_cut": "ndcg", "success": "hit"}
    ks = (1, 5, 10, 25, 100)
    measures = {"map", "recip_rank", *(f"{name}.{','.join(map(str, ks))}" for name in kinds)}
    found = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(run)
    theirs = {"map": "map", "recip_rank": "mrr"}
    theirs |= {f"{name}_{k}": f"{kind}@{k}" for name, kind in kinds.items() for k in ks}
    per_query = pq.read_table(out / "per_query.parquet").to_pylist()
    assert [row["id"] for row in per_query] == list(qrels)
    for their, ours in theirs.items():
        assert metrics[ours] == pytest.approx(
            np.mean([values[their] for values in found.values()]), abs=1e-6
        ), ours
        for row in per_query:
            assert row[ours] == pytest.approx(found[row["id"]][their], abs=1e-9), ours


def test_dense_metrics_are_trec_evals(problem: Any, context: MakeContext) -> None:
    ctx = context()
    result = evaluated(ctx, problem, k=(1, 5, 10, 25, 100), top=200)
    check_against_trec_eval(ctx.out, dict(result.metrics))
    table = pq.read_table(ctx.out / "per_query.parquet").to_pylist()
    assert [row["first_rank"] for row in table] == first_ranks(problem)
    assert [row["top"] for row in table] == [
        [problem.ids[r] for r in problem.ranking(q)[:5]] for q in range(60)
    ]
    assert result.metrics["queries"] == 60
    (rows,) = result.tables.values()
    assert [row["k"] for row in rows] == [1, 5, 10, 25, 100]
    assert rows[3]["MAP"] == result.metrics["map@25"]


def test_ranks_are_exact_beyond_the_written_ranking(problem: Any, context: MakeContext) -> None:
    short, whole = context(name="short"), context(name="whole", workers=2, cpus=1.0)
    a, b = evaluated(short, problem, top=5), evaluated(whole, problem, top=200)
    assert a.metrics == b.metrics
    lines = [
        (short.out / "run.trec").read_text().splitlines(),
        (whole.out / "run.trec").read_text().splitlines(),
    ]
    assert len(lines[0]) == 60 * 5
    assert lines[0] == [line for line in lines[1] if int(line.split()[3]) <= 5]


def test_bm25_ranks_by_words(tmp_path: Path, problem: Any, context: MakeContext) -> None:
    from ratchet.data.lexical_baselines import BM25

    ctx = context()
    result = evaluated(ctx, problem, system="bm25", k=(1, 5, 10, 25, 100), top=200, tag="bm25")
    check_against_trec_eval(ctx.out, dict(result.metrics))
    scores_QN = BM25(problem.texts).score(problem.query_texts)
    expected = [
        min(sorted(range(200), key=lambda row: (-scores_QN[q][row], row)).index(p) for p in rows)
        + 1
        for q, rows in enumerate(problem.positives)
    ]
    assert pq.read_table(ctx.out / "per_query.parquet")["first_rank"].to_pylist() == expected
    assert (ctx.out / "run.trec").read_text().startswith("q0 Q0 ")
    assert {line.split()[5] for line in (ctx.out / "run.trec").read_text().splitlines()} == {"bm25"}


def test_cases_show_what_rose_and_what_fell(problem: Any, context: MakeContext) -> None:
    before, after = context(name="before"), context(name="after")
    evaluated(before, problem)
    old = first_ranks(problem)
    # Ten queries now point at their answer; one, whose answer was first, away from it.
    for q in range(20, 30):
        problem.query_QD[q] = problem.corpus_ND[problem.positives[q][0]] * 3
    good = old.index(min(old))
    problem.query_QD[good] = -problem.corpus_ND[problem.positives[good][0]]
    problem.write_vectors(
        problem.query_embeddings, [f"q{q}" for q in range(60)], problem.query_QD, 25
    )
    result = evaluated(after, problem, before=before.out, tag="trained")
    new = first_ranks(problem)
    ratio = [a / b for a, b in zip(old, new, strict=True)]
    rose, fell = result.cases["answer rose most"], result.cases["answer fell most"]
    order = sorted(range(60), key=lambda q: (-ratio[q], q))
    risen = [q for q in order if ratio[q] > 1]
    fallen = [q for q in order[::-1] if ratio[q] < 1]
    assert [card["title"] for card in fell] == [problem.query_texts[q] for q in fallen[:2]]
    assert [card["title"] for card in rose] == [
        problem.query_texts[q] for q in risen[: 6 - len(fell)]
    ]
    assert list(rose[0]["columns"]) == [
        f"before: answer at rank {old[risen[0]]}",
        f"trained: answer at rank {new[risen[0]]}",
    ]
    (_, shown) = rose[0]["columns"].items()
    texts = [problem.texts[row] for row in problem.ranking(risen[0])[:5]]
    assert [item["text"] for item in shown[1]] == texts
    assert [item["good"] for item in shown[1]] == [
        row in problem.positives[risen[0]] for row in problem.ranking(risen[0])[:5]
    ]
    json.dumps(asdict(result))


def test_queries_that_only_fell_are_not_called_risen(problem: Any, context: MakeContext) -> None:
    before, after = context(name="before"), context(name="after")
    for q, rows in enumerate(problem.positives):
        problem.query_QD[q] = problem.corpus_ND[rows[0]] * 3
    problem.write_vectors(
        problem.query_embeddings, [f"q{q}" for q in range(60)], problem.query_QD, 25
    )
    evaluated(before, problem)
    problem.write_vectors(
        problem.query_embeddings, [f"q{q}" for q in range(60)], -problem.query_QD, 25
    )
    result = evaluated(after, problem, before=before.out)
    assert list(result.cases) == ["answer fell most"]


def test_what_does_not_fit_is_named(problem: Any, context: MakeContext, tmp_path: Path) -> None:
    for system, said in (
        ("dense", "query_embeddings, corpus_embeddings"),
        ("knn", "query_embeddings, train, train_embeddings"),
        ("reranked", "scored"),
    ):
        config = validate(Config, {"system": system}, "evaluate_retrieval")
        with pytest.raises(
            InputError, match=f"system={system} given; expected {said} too; give them"
        ):
            evaluate_retrieval.run(context(), config, Inputs(problem.queries, problem.corpus))
    for config, said in (
        ({"k": (0,)}, r"evaluate_retrieval\.k: \(0,\) given; expected >= 1"),
        ({"tag": "two words"}, "expected one word"),
    ):
        with pytest.raises(InputError, match=said):
            evaluated(context(), problem, **config)
    problem.write_vectors(problem.corpus_embeddings, problem.ids[::-1], problem.corpus_ND, 64)
    with pytest.raises(
        DataError, match=r"corpus_vectors/shard-00000\.arrow: its \d+ ids are not those"
    ):
        evaluated(context(), problem)
