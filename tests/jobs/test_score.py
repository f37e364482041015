"""The score job with MiniLM as a cross-encoder, and what its scores do to a ranking."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student_t

from data import flag_embedding
from data.tables import MINED, read_shards, write_shards
from jobs import evaluate_retrieval, score
from jobs.finetuning import Lists
from jobs.job import BadInput, Context
from jobs.score import Config, Inputs
from jobs.standing import Standing, heard, p_value
from models import reranker
from models.weights import MINILM, resolve

MakeContext = Callable[..., Context]


@pytest.fixture(scope="module", autouse=True)
def ray(local_ray: None) -> None:
    pass


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MiniLM with a random head."""
    folder, base = tmp_path_factory.mktemp("model"), resolve(MINILM)
    torch.manual_seed(0)
    transformers.AutoModelForSequenceClassification.from_pretrained(base, num_labels=1).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


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
    score.check(config, inputs)
    result = score.run(ctx, config, inputs)
    text_of = dict(zip(problem.ids, problem.texts, strict=True))
    ours = reranker.load(model, dtype="float32", device="cpu")
    found = read_shards(ctx.out).to_pylist()
    assert [{name: row[name] for name in rows[0]} for row in found] == rows
    for column, scores in (("positives", "teacher_positive_scores"), ("negatives", "teacher_negative_scores")):
        texts = [[text_of[name] for name in row[column]] for row in rows]
        expected = ours.score([row["text"] for row in rows], texts)
        for row, values in zip(found, expected, strict=True):
            np.testing.assert_allclose(row[scores], values, atol=1e-4)
    assert result.metrics["pairs"] == sum(len(row["positives"]) + len(row["negatives"]) for row in rows)

    lines = list(flag_embedding.rows(ctx.out / "flag_embedding.jsonl"))
    for row, line in zip(found, lines, strict=True):
        assert (line.query, line.neg) == (row["text"], [text_of[name] for name in row["negatives"]])
        assert (line.pos_scores, line.neg_scores) == (row["teacher_positive_scores"], row["teacher_negative_scores"])

    again = context(workers=2, cpus=1.0, batch_tokens=300)
    score.run(again, config, Inputs(model, ctx.out, problem.corpus))  # scores that are there already are replaced
    for one, other in zip(found, read_shards(again.out).to_pylist(), strict=True):
        np.testing.assert_allclose(one["teacher_positive_scores"], other["teacher_positive_scores"], atol=1e-4)


@pytest.mark.parametrize("p_value", [0.06, 0.04])
def test_a_reranker_that_does_not_clearly_order_better_does_not_teach(
    model: Path, problem: Any, tmp_path: Path, context: MakeContext, p_value: float
) -> None:
    rows = mined(problem, tmp_path / "mined")
    Standing("map@25", before=0.4, after=0.42, p_value=p_value).write(tmp_path / "standing")
    ctx, config = context(), Config(dtype="float32", max_length=64)
    result = score.run(ctx, config, Inputs(model, tmp_path / "mined", problem.corpus, standing=tmp_path / "standing"))
    found = read_shards(ctx.out).to_pylist()
    assert [{name: row[name] for name in rows[0]} for row in found] == rows
    scored = list(flag_embedding.rows(ctx.out / "flag_embedding.jsonl"))
    settings = Lists(distillation="kl_div")
    if p_value < 0.05:
        assert "teacher_negative_scores" in found[0]
        assert all(row.neg_scores is not None for row in scored)
        assert heard(settings, ctx.out) == settings
    else:
        assert result.metrics["teaches"] == "no: map@25 of held-out lists 0.4000, reranked 0.4200, p 0.06"
        assert result.metrics["pairs"] == 0
        assert "teacher_negative_scores" not in found[0]
        assert all(row.neg_scores is None for row in scored)
        assert heard(settings, ctx.out).distillation == "none"
    assert heard(settings, tmp_path / "mined") == settings, "nobody judged these: missing scores are an error"


@pytest.mark.parametrize("depth", [None, 10])
def test_a_reranked_list_has_the_ranks_that_sorting_gives(
    model: Path, problem: Any, context: MakeContext, depth: int | None
) -> None:
    top = 30
    config = evaluate_retrieval.Config(top=top, k=(1, 10, 25), tag="dense")
    vectors = {"query_embeddings": problem.query_embeddings, "corpus_embeddings": problem.corpus_embeddings}
    first = context()
    dense = evaluate_retrieval.run(first, config, evaluate_retrieval.Inputs(problem.queries, problem.corpus, **vectors))
    ranking = first.out / "ranking"
    scored = context()
    score.run(scored, Config(dtype="float32", max_length=64, depth=depth), Inputs(model, ranking, problem.corpus))
    last = context()
    inputs = evaluate_retrieval.Inputs(problem.queries, problem.corpus, before=first.out, scored=scored.out)
    config = evaluate_retrieval.Config(system="reranked", top=top, k=(1, 10, 25), tag="reranked")
    evaluate_retrieval.check(config, inputs)
    reranked = evaluate_retrieval.run(last, config, inputs)

    precisions = []
    for q, row in enumerate(read_shards(scored.out).to_pylist()):
        whole = [problem.ids[document] for document in problem.ranking(q)]
        taken = depth or top
        assert row["documents"] == whole[:taken]
        by_score = [row["documents"][i] for i in np.argsort(-np.array(row["teacher_scores"]), kind="stable")]
        order = by_score + whole[taken:]
        right = {problem.ids[document] for document in problem.positives[q]}
        hits = [rank for rank, name in enumerate(order, 1) if name in right]
        precisions.append(np.mean([number / rank for number, rank in enumerate(hits, 1)]))
    assert reranked.metrics["map"] == pytest.approx(float(np.mean(precisions)), abs=1e-6)
    assert reranked.metrics["map"] != dense.metrics["map"]
    if depth is None:
        assert reranked.metrics["r@25"] != dense.metrics["r@25"]
    else:
        assert reranked.metrics["r@10"] == dense.metrics["r@10"], "what is below the depth stays where it is"


def test_bad_lists_are_named(model: Path, problem: Any, tmp_path: Path, context: MakeContext) -> None:
    rows = mined(problem, tmp_path / "mined")
    rows[20]["negatives"] = ["nowhere"]
    write_shards(tmp_path / "unknown", rows, MINED, 15)
    with pytest.raises(BadInput, match=r"shard-00001.parquet: row 5: 'nowhere' is not in"):
        score.run(context(), Config(max_length=64), Inputs(model, tmp_path / "unknown", problem.corpus))
    with pytest.raises(BadInput, match="none of the columns positives, negatives, documents"):
        score.run(context(), Config(), Inputs(model, problem.corpus, problem.corpus))
    with pytest.raises(BadInput, match="depth: 0 given"):
        score.check(Config(depth=0), Inputs(model, tmp_path, problem.corpus))


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=40), st.integers(0, 9))
def test_a_lead_is_tested_query_by_query(pairs: list[tuple[float, float]], seed: int) -> None:
    """By the formula; and close to what flipping the signs of the differences gives, where that is smooth."""
    before, after = (np.array(side) for side in zip(*pairs, strict=True))
    lead = after - before
    found = p_value(before.tolist(), after.tolist())
    if lead.std(ddof=1) < 1e-3:
        assert 0 <= found <= 1
        return
    t = lead.mean() / (lead.std(ddof=1) / np.sqrt(len(lead)))
    assert found == pytest.approx(float(student_t.sf(t, len(lead) - 1)), abs=1e-6)


def test_a_test_by_random_signs_says_the_same() -> None:
    random = np.random.default_rng(3)
    before = random.random(200)
    after = np.clip(before + random.normal(0.02, 0.25, 200), 0, 1)
    lead = after - before
    flips = random.choice([-1, 1], (20_000, 200))
    by_chance = float(((flips * lead).mean(1) >= lead.mean()).mean())
    assert p_value(before.tolist(), after.tolist()) == pytest.approx(by_chance, abs=0.02)
    assert p_value([0.5] * 9, [0.5] * 9) == 1.0
    assert p_value([0.0, 0.0, 0.0], [5e-324, 0.0, 0.0]) == 1.0
