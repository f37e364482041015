"""The instructions that come with queries stay with them, from the file through mining, evaluation and reranking."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from shard_work import process_shard

from ratchet.data import scored_lists
from ratchet.data.formats import pairs
from ratchet.data.tables import GROUPED, MINED, RANKED, embeddings_schema, read_shards, write_mapped
from ratchet.jobs.retrieval import evaluate_retrieval, mine, mining, ranking
from ratchet.jobs.retrieval import prepare as preparing
from ratchet.jobs.retrieval.prepare import Config, Inputs
from ratchet.orchestrator.job_interface import Context

MakeContext = Callable[..., Context]


def prepared(context: MakeContext, folder: Path, **instructions: str) -> Path:
    """Prepare 30 queries; the first 20 have the instructions, numbered by their parity."""
    rows: list[dict[str, Any]] = [
        {"query": f"q {i}", "pos": [f"p {i}"], "neg": [f"p {i + 1}"]} for i in range(30)
    ]
    for i, row in enumerate(rows[:20]):
        row |= {name: f"{text} {i % 2}" for name, text in instructions.items()}
    file = folder / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ctx = context()
    preparing.run(ctx, Config(), Inputs(file))
    return ctx.out


def embed(folder: Path, target: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = [
        {"id": name, "embedding": rng.standard_normal(8)}
        for name in read_shards(folder)["id"].to_pylist()
    ]
    write_mapped(target / "shard-00000.arrow", pa.Table.from_pylist(rows, embeddings_schema(8)))
    return target


@pytest.fixture
def instructed(context: MakeContext, tmp_path: Path) -> Path:
    return prepared(context, tmp_path, prompt="find", reranker_prompt="judge")


def mine_train(folder: Path, target: Path) -> Path:
    vectors = embed(folder / "train", target / "q"), embed(folder / "corpus", target / "c")
    worker = mining.Worker(
        mine.Config(window=(0, 10), num_negatives=3),
        mine.Inputs(folder / "train", folder / "corpus", *vectors),
        "cpu",
    )
    process_shard(
        worker, folder / "train/shard-00000.parquet", target / "mined/shard-00000.parquet"
    )
    return target / "mined"


def evaluate_test(folder: Path, target: Path) -> Path:
    inputs = evaluate_retrieval.Inputs(folder / "test", folder / "corpus")
    worker = ranking.Worker(evaluate_retrieval.Config(system="bm25", top=5), inputs, "cpu")
    process_shard(worker, folder / "test/shard-00000.parquet", target / "shard-00000.parquet")
    return target


def said(folder: Path) -> dict[str, tuple[str, str]]:
    return {row["text"]: (row["task"], row["prompt"]) for row in read_shards(folder).to_pylist()}


def expected(query: str) -> tuple[str, str]:
    number = int(query.removeprefix("q "))
    return (f"find {number % 2}", f"judge {number % 2}") if number < 20 else ("", "")


def test_queries_keep_their_own_instructions(instructed: Path, tmp_path: Path) -> None:
    tables = [
        instructed / "train",
        instructed / "valid",
        instructed / "test",
        mine_train(instructed, tmp_path),
    ]
    tables.append(evaluate_test(instructed, tmp_path / "ranking"))
    found = [said(table) for table in tables]
    assert all(pair == expected(query) for table in found for query, pair in table.items())
    assert found[3] == found[0]
    assert found[4] == found[2]
    assert len(found[0] | found[1] | found[2]) == 30


def test_scored_lists_keep_instructions(instructed: Path, tmp_path: Path) -> None:
    mined = mine_train(instructed, tmp_path)
    table, texts = scored_lists.Lists(mined, instructed / "corpus", None).read(
        mined / "shard-00000.parquet"
    )
    scores = [np.arange(len(own), dtype=np.float32) for own in texts]
    scored_lists.write_scores(tmp_path / "scored/shard-00000.parquet", table, scores, 0)
    assert said(tmp_path / "scored") == said(mined)
    scored_lists.write_flag_embedding(tmp_path / "scored", instructed / "corpus")
    queries = pairs.read(tmp_path / "scored/flag_embedding.jsonl", {}).queries
    assert {query.text: (query.task, query.prompt) for query in queries} == said(mined)


def test_reranked_rankings_keep_them(instructed: Path, tmp_path: Path) -> None:
    ranked = evaluate_test(instructed, tmp_path / "ranking")
    table, texts = scored_lists.Lists(ranked, instructed / "corpus", None).read(
        ranked / "shard-00000.parquet"
    )
    scored_lists.write_scores(
        tmp_path / "scored/shard-00000.parquet",
        table,
        [np.arange(len(own), dtype=np.float32) for own in texts],
        0,
    )
    inputs = evaluate_retrieval.Inputs(
        instructed / "test", instructed / "corpus", scored=tmp_path / "scored"
    )
    config = evaluate_retrieval.Config(system="reranked", top=5)
    ranking.write_reranked(config, inputs, read_shards(instructed / "test"), tmp_path / "reranked")
    assert said(tmp_path / "reranked") == said(ranked)


def test_a_task_without_a_prompt_is_one_column(context: MakeContext, tmp_path: Path) -> None:
    out = prepared(context, tmp_path, prompt="find")
    assert read_shards(out / "train").schema == pa.schema([*GROUPED, ("task", pa.string())])


def test_tables_of_data_without_instructions_are_as_before(
    context: MakeContext, tmp_path: Path
) -> None:
    out = prepared(context, tmp_path)
    assert read_shards(out / "train").schema == GROUPED
    assert read_shards(mine_train(out, tmp_path)).schema.names[: len(MINED)] == MINED.names
    assert not {"task", "prompt"} & set(read_shards(tmp_path / "mined").column_names)
    assert read_shards(evaluate_test(out, tmp_path / "ranking")).schema == pa.schema(
        [*RANKED, GROUPED.field("group")]
    )
