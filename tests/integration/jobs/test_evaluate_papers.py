"""Metrics over statements against a brute-force sort, and against pytrec_eval on real statements."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, median, pstdev

import numpy as np
import pyarrow as pa
import pytest

from ratchet.data.formats.papers import STATEMENTS
from ratchet.data.tables import (
    embeddings_schema,
    open_mapped,
    read_shards,
    write_mapped,
    write_table,
)
from ratchet.jobs.statements.evaluate_papers import Config, Inputs, run
from ratchet.orchestrator.job_interface import Context, Resources

SIZES = [1, 5, 2, 1, 9, 3, 4, 1, 30, 2]

DIM = 4


def context(folder: Path, workers: int = 1) -> Context:
    for name in ("out", "work"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    resources = Resources(workers, cpus=1.0, gpus=0.0)
    return Context("evaluate", "ba" * 32, 1, folder / "out", folder / "work", resources)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """Shards that cut papers apart; few different vectors, so that there are ties and duplicates."""
    folder, random = tmp_path_factory.mktemp("statements"), np.random.default_rng(0)
    papers = [f"p{n}" for n, size in enumerate(SIZES) for _ in range(size)]
    words = ["sum", "ring", "map", "field", "open"]
    texts = [" ".join(random.choice(words, random.integers(0, 4))) for _ in papers]
    table = pa.table([[f"s{n}" for n in range(len(papers))], texts, papers], schema=STATEMENTS)
    vectors_SD = random.integers(-2, 3, (len(papers), DIM)).astype(np.float32)
    for number, start in enumerate(range(0, len(papers), 7)):
        part = table.slice(start, 7)
        write_table(folder / f"statements/shard-{number:05d}.parquet", part)
        flat = pa.FixedSizeListArray.from_arrays(
            pa.array(vectors_SD[start : start + 7].ravel()), DIM
        )
        rows = pa.Table.from_arrays(
            [part["id"].combine_chunks(), flat], schema=embeddings_schema(DIM)
        )
        write_mapped(folder / f"vectors/shard-{number:05d}.arrow", rows)
    return Inputs(folder / "statements", folder / "vectors")


def by_sorting(scores_SS: np.ndarray, paper: list[str]) -> list[list[int]]:
    """The ranks of the others of each statement's paper, ascending."""
    ranks = []
    for i, scores in enumerate(scores_SS):
        order = [int(j) for j in np.argsort(-scores, kind="stable") if j != i]
        ranks.append([n for n, j in enumerate(order, 1) if paper[j] == paper[i]])
    return ranks


def expected(ranks: list[list[int]], k: int) -> dict[str, float]:
    asked = [own for own in ranks if own]
    mean = {
        "mrr": [1 / own[0] for own in asked],
        "map": [np.mean([(n + 1) / rank for n, rank in enumerate(own)]) for own in asked],
        f"p@{k}": [sum(rank <= k for rank in own) / k for own in asked],
        f"r@{k}": [sum(rank <= k for rank in own) / len(own) for own in asked],
    }
    return {name: float(np.mean(values)) for name, values in mean.items()}


@pytest.mark.parametrize("system", ["dense", "bm25"])
def test_metrics_are_those_of_a_sort(
    local_ray: None, inputs: Inputs, tmp_path: Path, system: str
) -> None:
    from ratchet.data.lexical_baselines import BM25

    config = Config(system=system, k=(1, 5, 1000))  # type: ignore[arg-type]
    result = run(context(tmp_path, workers=2), config, inputs)
    table = read_shards(inputs.statements)
    paper, texts = table["paper"].to_pylist(), table["text"].to_pylist()
    if system == "dense":
        vectors = np.stack(open_mapped(inputs.embeddings)["embedding"].to_pylist())
        scores_SS = vectors @ vectors.T
    else:
        scores_SS = BM25(texts).score(texts)
    ranks = by_sorting(scores_SS, paper)
    for k in (1, 5, 1000):
        for name, value in expected(ranks, k).items():
            assert result.metrics[name] == pytest.approx(value, abs=1e-6), name
    assert result.metrics["queries"] == sum(size for size in SIZES if size > 1)
    assert result.metrics["statements"] == sum(SIZES)
    assert result.metrics["papers"] == len(SIZES)
    (statistics,) = result.tables["other statements of a paper"]
    counts = sorted(size - 1 for size in SIZES for _ in range(size))
    assert statistics["Mean"] == pytest.approx(mean(counts), abs=1e-4)
    assert statistics["Median"] == median(counts)
    assert statistics["Std Dev"] == pytest.approx(pstdev(counts), abs=1e-4)
    assert (statistics["Min"], statistics["Max"]) == (counts[0], counts[-1])
    for percent in (50, 75, 90, 95, 99):
        reached = [n for n in counts if sum(m <= n for m in counts) >= percent / 100 * len(counts)]
        assert statistics[f"P{percent}"] == reached[0]
    assert result.tables["metrics by cut-off"] == [
        {"K": k, "Precision@K": result.metrics[f"p@{k}"], "Recall@K": result.metrics[f"r@{k}"]}
        for k in (1, 5, 1000)
    ]
    found = read_shards(tmp_path / "out/ranks")
    assert [sorted(own) for own in found["ranks"].to_pylist()] == [own for own in ranks if own]


def test_a_sample_asks_the_same_of_all(local_ray: None, inputs: Inputs, tmp_path: Path) -> None:
    result = run(context(tmp_path), Config(max_queries=20), inputs)
    assert result.metrics["queries"] == 20
    found = read_shards(tmp_path / "out/ranks")
    assert len(found) == 20
    assert max(rank for own in found["ranks"].to_pylist() for rank in own) > 20
