"""Finetuning with batches of one data set each, from files to the drawn batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ratchet
from ratchet.data.tables import read_shards
from ratchet.data.triplets import Triplets
from ratchet.errors import InputError

SIZES = {"first": 40, "second": 20}


def write_sets(folder: Path) -> list[Path]:
    files = []
    for name, size in SIZES.items():
        rows = []
        for n in range(size):
            rows.append(json.dumps({"query": f"{name} q{n}", "positive": f"{name} d{n}"}))
        file = folder / f"{name}.jsonl"
        file.write_text("\n".join(rows))
        files.append(file)
    return files


def plan(folder: Path, data: str, **settings: str) -> dict[str, str]:
    named = {f"finetune_embedder.{name}": value for name, value in settings.items()}
    return ratchet.plan("retriever", store=folder / "store", settings=named, data=data)


def test_a_single_data_set_and_wrong_weights_are_refused(tmp_path: Path) -> None:
    first, second = write_sets(tmp_path)
    both = f"{first}?name=web,{second}"
    assert plan(tmp_path, both, batch_by="source", source_weights="web=2,1=0.5")
    with pytest.raises(InputError, match="batch_by: source given, for one data set"):
        plan(tmp_path, str(first), batch_by="source")
    with pytest.raises(
        InputError, match=r"source_weights: .* given; expected none with batch_by=random"
    ):
        plan(tmp_path, both, source_weights="web=2")
    for wrong in ("web", "web=0", "=2", "web=-1"):
        with pytest.raises(InputError, match=f"source_weights: {wrong} given"):
            plan(tmp_path, both, batch_by="source", source_weights=wrong)


def test_prepared_queries_know_their_data_set(context: Any, tmp_path: Path) -> None:
    from ratchet.jobs.retrieval.prepare import Config, Inputs, run

    inputs = Inputs(data=tuple(write_sets(tmp_path)))
    made = context()
    result = run(made, Config(reading=("name=web", "")), inputs)
    assert result.metrics["sources"] == 2
    train = read_shards(made.out / "train")
    for query, source in zip(train["text"].to_pylist(), train["source"].to_pylist(), strict=True):
        assert source == ("web" if query.startswith("first") else "1")
    corpus = read_shards(made.out / "corpus")
    data = Triplets(train, corpus, batch_size=8, source_weights={"web": 2.0})
    for batch in data.split_epoch(0):
        assert len({train["source"][int(query)].as_py() for query in batch}) == 1
