"""Indexes of documents: their recall against a full sort, and the answers to queries."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ratchet.data.tables import CORPUS, write_shards
from ratchet.data.vectors import write_vectors
from ratchet.jobs.indexes.build_index import Config, Inputs, run
from ratchet.jobs.indexes.finder import load_finder
from ratchet.jobs.indexes.prompt import ask
from ratchet.models.embedder import encoder
from ratchet.models.model_files import MINILM, resolve
from ratchet.orchestrator.job_interface import Context

pytestmark = pytest.mark.slow

MakeContext = Callable[..., Context]
SUBJECTS = (
    "The cat",
    "A dog",
    "One fox",
    "The old king",
    "My neighbour",
    "No pilot",
    "Every nurse",
    "Some child",
)
VERBS = ("sees", "paints", "buys", "forgets", "repairs", "sings about", "fears")
OBJECTS = ("the river", "a red boat", "seven keys", "the moon", "a bitter soup", "an empty train")
TEXTS = [f"{a} {b} {c}." for a in SUBJECTS for b in VERBS for c in OBJECTS]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    folder, model = tmp_path_factory.mktemp("index"), resolve(MINILM)
    ids = [f"d{number}" for number in range(len(TEXTS))]
    rows = [{"id": name, "text": text} for name, text in zip(ids, TEXTS, strict=True)]
    paths = write_shards(folder / "texts", rows, CORPUS, 100)
    vectors_ND = encoder.load(model, dtype="float32", device="cpu").encode(TEXTS, "passage")
    for number, path in enumerate(paths):
        part = slice(100 * number, 100 * (number + 1))
        write_vectors(
            folder / "vectors" / f"{path.stem}.arrow",
            pa.chunked_array([ids[part]]),
            vectors_ND[part],
        )
    return Inputs(model, folder / "vectors", folder / "texts")


def rank(model: Path, query: str) -> np.ndarray:
    """Return the rows of all documents by a full sort."""
    loaded = encoder.load(model, dtype="float32", device="cpu")
    rows: np.ndarray = np.argsort(
        -(loaded.encode(TEXTS, "passage") @ loaded.encode([query], "query")[0]), kind="stable"
    )
    return rows


@pytest.mark.parametrize(
    ("values", "least"),
    [
        ({"kind": "flat"}, 1.0),
        ({"kind": "ivf", "lists": 12, "probes": 12}, 1.0),
        ({"kind": "ivf", "lists": 12, "probes": 4}, 0.6),
        ({"kind": "hnsw"}, 0.95),
    ],
)
def test_kinds_have_the_recall_that_they_report(
    values: dict[str, Any], least: float, inputs: Inputs, context: MakeContext
) -> None:
    made = context(1)
    result = run(made, Config(**values, samples=60), inputs)
    assert least <= float(result.metrics["recall@10"]) <= 1.0
    assert (result.metrics["documents"], result.metrics["dimensions"]) == (len(TEXTS), 384)
    found = load_finder(inputs.model, made.out, "").find("a hungry cat near water", 5)
    expected = [f"d{row}" for row in rank(inputs.model, "a hungry cat near water")[:5]]
    if least == 1.0:
        assert [name for name, _, _ in found] == expected
        assert [score for *_, score in found] == sorted(
            (score for *_, score in found), reverse=True
        )
    assert all(TEXTS[int(name[1:])] == text for name, text, _ in found)


def test_fewer_lists_searched_find_less(inputs: Inputs, context: MakeContext) -> None:
    recalls = [
        float(
            run(context(1), Config(kind="ivf", lists=24, probes=probes), inputs).metrics[
                "recall@10"
            ]
        )
        for probes in (1, 4, 24)
    ]
    assert recalls[0] < recalls[1] < recalls[2] == 1.0


def test_search_reads_arguments_and_stdin(
    inputs: Inputs,
    context: MakeContext,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = context(1)
    run(made, Config(), inputs)
    paths = {**vars(inputs), "index": made.out}
    options = {"top": 2, "json": True, "query": ["a soup", "the moon"]}
    ask(paths, argparse.Namespace(documents="", **options))
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first["query"], second["query"], len(first["documents"])) == ("a soup", "the moon", 2)
    assert "soup" in first["documents"][0]["text"]
    monkeypatch.setattr("sys.stdin", io.StringIO("a train\n\nkeys\n"))
    ask(paths, argparse.Namespace(documents="", **{**options, "json": False, "query": None}))
    said = capsys.readouterr().out
    assert "\na train\n  1  0." in said
    assert "\nkeys\n  1  0." in said
