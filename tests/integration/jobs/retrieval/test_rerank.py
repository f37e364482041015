"""The rerank job with MiniLM as a cross-encoder, and rankings ordered by its scores."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ratchet.data.tables import MINED, read_shards, write_shards
from ratchet.errors import InputError
from ratchet.jobs.retrieval import evaluate_retrieval, rerank
from ratchet.jobs.retrieval import evaluate_retrieval as evaluation
from ratchet.jobs.retrieval.rerank import Config, Inputs
from ratchet.jobs.training.config import RetrievalFinetuneConfig
from ratchet.jobs.training.teacher_gate import TeacherGate, drop_refused_teacher
from ratchet.models.model_files import MINILM, resolve
from ratchet.models.reranker import reranker
from ratchet.orchestrator.job_interface import Context
from ratchet.orchestrator.job_interface.settings import validate
from tests.support.clusters.step_process import work_here

MakeContext = Callable[..., Context]


@pytest.fixture
def context(local_ray: None, context: MakeContext) -> MakeContext:
    return work_here(context)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MiniLM with a random head."""
    folder, base = tmp_path_factory.mktemp("model"), resolve(MINILM)
    torch.manual_seed(0)
    transformers.AutoModelForSequenceClassification.from_pretrained(
        base, num_labels=1
    ).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


def read_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "flag_embedding.jsonl").read_text().splitlines()]


def mined(problem: Any, folder: Path) -> list[dict[str, Any]]:
    rows = [
        {
            "id": f"q{q}",
            "text": problem.query_texts[q],
            "positives": [problem.ids[row] for row in problem.positives[q]],
            "negatives": [problem.ids[row] for row in problem.ranking(q)[: q % 5]],
            "positive_scores": [1.0] * len(problem.positives[q]),
            "negative_scores": [0.5] * (q % 5),
        }
        for q in range(40)
    ]
    write_shards(folder, rows, MINED, 15)
    return rows


def test_each_list_gets_the_scores_of_its_pairs(
    model: Path, problem: Any, tmp_path: Path, context: MakeContext
) -> None:
    rows = mined(problem, tmp_path / "mined")
    ctx = context()
    inputs = Inputs(model, tmp_path / "mined", problem.corpus)
    config = Config(dtype="float32", max_length=64)
    rerank.check(config, inputs, {})
    result = rerank.run(ctx, config, inputs)
    text_of = dict(zip(problem.ids, problem.texts, strict=True))
    ours = reranker.load(model, dtype="float32", device="cpu")
    found = read_shards(ctx.out).to_pylist()
    assert [{name: row[name] for name in rows[0]} for row in found] == rows
    for column, scores in (
        ("positives", "teacher_positive_scores"),
        ("negatives", "teacher_negative_scores"),
    ):
        texts = [[text_of[name] for name in row[column]] for row in rows]
        expected = ours.score([row["text"] for row in rows], texts)
        for row, values in zip(found, expected, strict=True):
            np.testing.assert_allclose(row[scores], values, atol=1e-4)
    assert result.metrics["pairs"] == sum(
        len(row["positives"]) + len(row["negatives"]) for row in rows
    )

    lines = read_lines(ctx.out)
    for row, line in zip(found, lines, strict=True):
        assert (line["query"], line["neg"]) == (
            row["text"],
            [text_of[name] for name in row["negatives"]],
        )
        scores = row["teacher_positive_scores"], row["teacher_negative_scores"]
        assert (line["pos_scores"], line["neg_scores"]) == scores

    again = context(workers=2, cpus=1.0, batch_tokens=300)
    rerank.run(
        again, config, Inputs(model, ctx.out, problem.corpus)
    )  # scores that are there already are replaced
    for one, other in zip(found, read_shards(again.out).to_pylist(), strict=True):
        np.testing.assert_allclose(
            one["teacher_positive_scores"], other["teacher_positive_scores"], atol=1e-4
        )


@pytest.mark.parametrize("p_value", [0.06, 0.04])
def test_unclear_reranker_is_no_teacher(
    model: Path, problem: Any, tmp_path: Path, context: MakeContext, p_value: float
) -> None:
    rows = mined(problem, tmp_path / "mined")
    (tmp_path / "mined" / "suspects.jsonl").write_text("{}\n")
    TeacherGate("map@25", before=0.4, after=0.42, p_value=p_value).write(tmp_path / "teacher_gate")
    ctx, config = context(), Config(dtype="float32", max_length=64)
    result = rerank.run(
        ctx,
        config,
        Inputs(model, tmp_path / "mined", problem.corpus, teacher_gate=tmp_path / "teacher_gate"),
    )
    found = read_shards(ctx.out).to_pylist()
    assert [{name: row[name] for name in rows[0]} for row in found] == rows
    settings = RetrievalFinetuneConfig(distillation="kl_div")
    if p_value < 0.05:
        assert "teacher_negative_scores" in found[0]
        assert all("neg_scores" in line for line in read_lines(ctx.out))
        assert drop_refused_teacher(settings, ctx.out) == settings
    else:
        assert (
            result.metrics["teacher_gate"]
            == "no: map@25 of held-out lists 0.4000, reranked 0.4200, p 0.06"
        )
        assert result.note.startswith("the teacher is not used: map@25 of held-out lists 0.4000,")
        assert result.metrics["pairs"] == 0
        for path in (tmp_path / "mined").glob("*.parquet"):
            assert (ctx.out / path.name).read_bytes() == path.read_bytes(), "the same lists"
        assert drop_refused_teacher(settings, ctx.out).distillation == "none"
    assert drop_refused_teacher(settings, tmp_path / "mined") == settings, (
        "here missing scores are an error"
    )


@pytest.mark.parametrize("depth", [None, 10])
def test_a_reranked_list_has_the_ranks_that_sorting_gives(
    model: Path, problem: Any, context: MakeContext, depth: int | None
) -> None:
    top = 30
    config = evaluate_retrieval.Config(top=top, k=(1, 10, 25), tag="dense")
    vectors = {
        "query_embeddings": problem.query_embeddings,
        "corpus_embeddings": problem.corpus_embeddings,
    }
    first = context()
    dense = evaluation.run(
        first, config, evaluate_retrieval.Inputs(problem.queries, problem.corpus, **vectors)
    )
    ranking = first.out / "ranking"
    scored = context()
    rerank.run(
        scored,
        Config(dtype="float32", max_length=64, depth=depth),
        Inputs(model, ranking, problem.corpus),
    )
    last = context()
    inputs = evaluate_retrieval.Inputs(
        problem.queries, problem.corpus, before=first.out, scored=scored.out
    )
    config = evaluate_retrieval.Config(system="reranked", top=top, k=(1, 10, 25), tag="reranked")
    evaluate_retrieval.check(config, inputs, {})
    reranked = evaluation.run(last, config, inputs)

    precisions = []
    for q, row in enumerate(read_shards(scored.out).to_pylist()):
        whole = [problem.ids[document] for document in problem.ranking(q)]
        taken = depth or top
        assert row["documents"] == whole[:taken]
        by_score = [
            row["documents"][i] for i in np.argsort(-np.array(row["teacher_scores"]), kind="stable")
        ]
        order = by_score + whole[taken:]
        right = {problem.ids[document] for document in problem.positives[q]}
        hits = [rank for rank, name in enumerate(order, 1) if name in right]
        precisions.append(np.mean([number / rank for number, rank in enumerate(hits, 1)]))
    assert reranked.metrics["map"] == pytest.approx(float(np.mean(precisions)), abs=1e-6)
    assert reranked.metrics["map"] != dense.metrics["map"]
    if depth is None:
        assert reranked.metrics["r@25"] != dense.metrics["r@25"]
    else:
        assert reranked.metrics["r@10"] == dense.metrics["r@10"], (
            "what is below the depth stays where it is"
        )


def test_bad_lists_are_named(
    model: Path, problem: Any, tmp_path: Path, context: MakeContext
) -> None:
    rows = mined(problem, tmp_path / "mined")
    rows[20]["negatives"] = ["nowhere"]
    write_shards(tmp_path / "unknown", rows, MINED, 15)
    with pytest.raises(InputError, match=r"shard-00001.parquet: row 5: 'nowhere' is not in"):
        rerank.run(
            context(), Config(max_length=64), Inputs(model, tmp_path / "unknown", problem.corpus)
        )
    with pytest.raises(InputError, match="none of the columns positives, negatives, documents"):
        rerank.run(context(), Config(), Inputs(model, problem.corpus, problem.corpus))
    with pytest.raises(InputError, match="depth: 0 given"):
        validate(Config, {"depth": 0}, "rerank")
