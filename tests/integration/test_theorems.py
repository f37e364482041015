"""The theorems recipe through the command, with the weights and the test papers of CITER's scripts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import transformers
from citer import ScriptEncoder
from quickstart_runs import run
from store_contents import results

from ratchet.data.tables import open_mapped, read_shards
from ratchet.orchestrator.store import Store

pytestmark = pytest.mark.timeout(900)


@pytest.mark.soak
def test_a_run_starts_from_the_weights_of_the_scripts(tiny_decoder: Path, tmp_path: Path) -> None:
    theirs = ScriptEncoder(tiny_decoder, "qwen2", 24)
    adapter, projection = theirs.save(tmp_path / "outputs")
    rows = [
        {"arxiv_id": f"p{i}", "lemmas": [f"t{i}x1 t{i}x2"], "theorems": [f"t{i}x2", f"t{i}x3"]}
        for i in range(50)
    ]
    (tmp_path / "papers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = (
        *(
            f"data={tmp_path / 'papers.jsonl'}",
            f"base={tiny_decoder}",
            f"adapter={adapter}",
            f"projection={projection}",
        ),
        *("max_length=32", "bm25=true", "embed.dtype=float32"),
        *(
            "finetune_embedder_pairs.epochs=1",
            "finetune_embedder_pairs.batch_size=16",
            "embed.workers=1",
        ),
    )
    store = tmp_path / "store"
    status, output = run(
        store, "run", "theorems", *(part for line in lines for part in ("--set", line))
    )
    assert status == 0, output
    assert [
        line.split("  ")[0]
        for line in output.splitlines()
        if line.startswith(("given", "finetuned"))
    ], output
    found = results(store)
    folders = {name: Store.open(store).path(commit.manifest) for name, commit in found.items()}
    tested = read_shards(folders["prepare"] / "test")
    places = np.arange(50)
    np.random.default_rng(42).shuffle(places)
    assert set(tested["paper"].to_pylist()) == {f"p{place}" for place in places[40:]}
    expected = theirs.encode(
        transformers.AutoTokenizer.from_pretrained(tiny_decoder), tested["text"].to_pylist(), 32
    )
    vectors = np.array(open_mapped(folders["start/embed"])["embedding"].to_pylist())
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
