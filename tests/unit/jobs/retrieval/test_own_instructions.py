"""The instruction of each query in the jobs: used unless a setting replaces it, the same as texts rendered by hand."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reranker_finetuning import DECODER, make_inputs
from shard_work import process_shard

from ratchet.data.tables import open_mapped_shard, read_shards, write_table
from ratchet.jobs.pretrained import pretrained
from ratchet.jobs.retrieval import (
    embed,
    embedder_training,
    finetune_embedder,
    rerank,
    reranker_training,
)
from ratchet.jobs.retrieval import embed as embedding
from ratchet.jobs.retrieval import rerank as reranking
from ratchet.jobs.training.worker import WorkerInfo
from ratchet.models.model_files import MINILM, UNUSED_FILES, resolve
from ratchet.models.presets import PROMPT
from ratchet.orchestrator.job_interface import Resources
from ratchet.orchestrator.job_interface.source_digest import SourceDigests
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.recipe import Settings, build, find
from ratchet.orchestrator.store import Store

OWN = ["q1x1 q2x2", "", "q3x3"]
HERE, SHARE = WorkerInfo(0, 1, "cpu"), Resources(1, cpus=1.0, gpus=0.0)


def instruct(
    folder: Path, target: Path, column: str, render: str = "", rows: int = 100, default: str = ""
) -> Path:
    """Copy a table with OWN in turn, in a column or rendered into the text."""
    table = read_shards(folder).slice(0, rows)
    own = [OWN[row % 3] for row in range(len(table))]
    if render:
        texts = [
            render.format(own=one or default, text=text)
            for one, text in zip(own, table["text"].to_pylist(), strict=True)
        ]
        table = table.set_column(table.column_names.index("text"), "text", pa.array(texts))
    else:
        table = table.append_column(column, pa.array([one or None for one in own], pa.string()))
    write_table(target / "shard-00000.parquet", table)
    return target


def embed_queries(config: embed.Config, inputs: embed.Inputs, target: Path) -> np.ndarray:
    source = inputs.texts / "shard-00000.parquet"
    process_shard(embedding.Worker(inputs, config, 4096, "cpu"), source, target)
    return np.array(open_mapped_shard(target)["embedding"].to_pylist())


@pytest.mark.slow
def test_queries_are_embedded_with_their_own_task(concepts: Path, tmp_path: Path) -> None:
    plain = embed.Config(role="query", dtype="float32")
    config = dataclasses.replace(plain, query_template="q9x1 {task} q8x2 {text}")
    valid = concepts / "valid"
    own = embed.Inputs(concepts / "base", instruct(valid, tmp_path / "own", "task"))
    by_hand = embed.Inputs(
        concepts / "base", instruct(valid, tmp_path / "hand", "task", "q9x1 {own} q8x2 {text}")
    )
    file = tmp_path / "out.parquet"
    found = embed_queries(config, own, file)
    np.testing.assert_allclose(found, embed_queries(plain, by_hand, file), atol=1e-5)
    given = dataclasses.replace(config, task="q5x5")
    everywhere = embed_queries(given, own, file)
    assert not np.allclose(everywhere, found, atol=1e-3)
    np.testing.assert_array_equal(
        everywhere, embed_queries(given, embed.Inputs(concepts / "base", valid), file)
    )
    np.testing.assert_array_equal(
        embed_queries(plain, own, file),
        embed_queries(plain, embed.Inputs(concepts / "base", valid), file),
    )


@pytest.mark.slow
def test_pairs_are_scored_with_the_prompt_of_their_query(
    concepts: Path, tiny_decoder: Path, tmp_path: Path
) -> None:
    lists = instruct(concepts / "mined", tmp_path / "lists", "prompt", rows=3)
    source = lists / "shard-00000.parquet"

    inputs = rerank.Inputs(tiny_decoder, lists, concepts / "corpus")

    def score(config: rerank.Config) -> list[list[float]]:
        process_shard(
            reranking.Worker(inputs, config, 4096, "cpu"), source, tmp_path / "out.parquet"
        )
        found: list[list[float]] = pq.read_table(tmp_path / "out.parquet")[
            "teacher_negative_scores"
        ].to_pylist()
        return found

    config = rerank.Config(dtype="float32", max_length=256)
    found = score(config)
    for number, prompt in enumerate(OWN):
        given = dataclasses.replace(config, prompt=prompt or PROMPT)
        alike = score(given)
        for row in range(number, len(found), 3):
            np.testing.assert_allclose(found[row], alike[row], atol=1e-5)
    assert not np.allclose(found[0], alike[0], atol=1e-4)


@pytest.mark.slow
def test_an_embedder_is_trained_and_evaluated_with_own_tasks(
    concepts: Path, tmp_path: Path
) -> None:
    inputs = finetune_embedder.Inputs(
        concepts / "base", concepts / "mined", concepts / "corpus", concepts / "valid"
    )
    config = finetune_embedder.Config(dtype="float32", batch_size=16, num_negatives=2)

    def run(
        name: str, render: str, query_template: str | None
    ) -> tuple[list[list[int]], dict[str, float]]:
        folders = (
            instruct(getattr(inputs, f), tmp_path / name / f, "task", render)
            for f in ("mined", "valid")
        )
        changed = dataclasses.replace(inputs, **dict(zip(("mined", "valid"), folders, strict=True)))
        given = dataclasses.replace(config, query_template=query_template)
        task = embedder_training.EmbedderTask(HERE, given, changed, SHARE)
        batch = task.prepare(0, 1)
        queries = batch.ids_R[: len(batch.drawn.query_Q)]
        return sorted(queries), task.evaluate().metrics  # a batch is ordered by characters

    ids, metrics = run("own", "", "q9x1 {task} q8x2 {text}")
    expected_ids, expected = run("hand", "q9x1 {own} q8x2 {text}", None)
    assert (ids, metrics) == (expected_ids, expected)
    assert run("plain", "", None)[0] != ids


@pytest.mark.slow
def test_a_reranker_is_trained_and_evaluated_with_own_prompts(
    concepts: Path, tiny_decoder: Path, tmp_path: Path
) -> None:
    inputs = dataclasses.replace(make_inputs(concepts, tmp_path), base=tiny_decoder)
    config = dataclasses.replace(
        DECODER, distillation="none", separator="", batch_size=6, num_negatives=1, depth=2
    )

    def run(name: str, render: str, **changes: str) -> tuple[float, reranker_training.RerankerTask]:
        fields = ("mined", "valid", "ranking")
        own = [
            instruct(getattr(inputs, f), tmp_path / name / f, "prompt", render, 6, PROMPT)
            for f in fields
        ]
        changed = dataclasses.replace(inputs, **dict(zip(fields, own, strict=True)))
        task = reranker_training.RerankerTask(
            HERE, dataclasses.replace(config, **changes), changed, SHARE
        )
        return sum(float(task.loss(part).detach()) for part in task.batch(0, 0).microbatches), task

    loss, task = run("own", "", query_template="A {prompt}: {text}")
    expected, by_hand = run("hand", "A {own}: {text}", query_template="{text}", prompt="")
    assert loss == pytest.approx(expected, rel=1e-5)
    assert task.evaluate().metrics == by_hand.evaluate().metrics


@pytest.fixture(scope="module")
def e5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "e5-base-v2"
    shutil.copytree(resolve(MINILM), folder, ignore=shutil.ignore_patterns(*UNUSED_FILES))
    return folder


def plan_notes(tmp_path: Path, *lines: str) -> list[str]:
    rows: list[dict[str, Any]] = [
        {"query": f"q {i}", "pos": [f"p {i}"], "neg": [f"p {i + 1}"]} for i in range(30)
    ]
    for i, row in enumerate(rows):
        row |= {"prompt": f"Find {i % 2}.", "reranker_prompt": "Judge."}
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = Settings.read([f"data={tmp_path / 'data.jsonl'}", "iterations=1", *lines])
    plan = Plan(build(find("retriever"), settings)[0], Store.open(str(tmp_path / "store")))
    plan.check()
    return plan.notes


@pytest.mark.slow
def test_plan_names_preset_and_instructions(e5: Path, tiny_decoder: Path, tmp_path: Path) -> None:
    notes = plan_notes(tmp_path, f"base={e5}", f"reranker={tiny_decoder}")
    unused = (
        "distinct tasks in the data: 2, not used: the prompt of the model has no place for them"
    )
    query = f'preset e5 (mean, max 256, "query: {{text}}"); {unused}'
    assert f"zero_shot/embed_test: {query}" in notes
    assert 'zero_shot/embed_corpus: preset e5 (mean, max 256, "passage: {text}")' in notes
    assert f"iter0/finetune_embedder: {query}" in notes
    assert "iter0/finetune_reranker: distinct prompts in the data: 1, used" in notes
    template = "zero_shot/embed_test.query_template=Instruct: {task}\\nQuery: {text}"
    notes = plan_notes(
        tmp_path,
        f"base={e5}",
        template,
        "finetune_reranker.prompt=Judge it.",
        f"reranker={tiny_decoder}",
    )
    shown = (
        'preset e5 (mean, max 256, "Instruct: {task}\\nQuery: {text}");'
        " distinct tasks in the data: 2, used"
    )
    assert f"zero_shot/embed_test: {shown}" in notes
    assert (
        "iter0/finetune_reranker: distinct prompts in the data: 1, not used: prompt is set" in notes
    )


@pytest.mark.slow
def test_a_name_that_selects_a_preset_is_part_of_the_digest(e5: Path, tmp_path: Path) -> None:
    """The same files under another name are encoded otherwise, so they must not be the same step."""
    digests = SourceDigests(tmp_path / "digests.json")
    shutil.copytree(e5, tmp_path / "other")
    shutil.copytree(e5, tmp_path / "elsewhere" / "e5-large")
    first, other, again = (
        digests.digest(pretrained(str(folder)))
        for folder in (e5, tmp_path / "other", tmp_path / "elsewhere/e5-large")
    )
    assert first != other
    assert first == again, "of the same family"
