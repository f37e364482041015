"""MTEB takes an exported folder as it is, and its scores are those of Ratchet's vectors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import command
import numpy as np
import pyarrow as pa
import pytest
from hub_server import serve_hub
from scipy.stats import spearmanr

from ratchet.models.embedder import encoder
from ratchet.models.model_files import MINILM

pytest.importorskip("mteb")
PAIRS = [
    ("a man plays a guitar", "someone plays an instrument", 4.0),
    ("a man plays a guitar", "a plane takes off", 0.2),
    ("two dogs run in the snow", "dogs are running through snow", 4.8),
    ("the market fell today", "stocks lost value on Monday", 3.1),
    ("a cat sleeps", "the committee voted on the budget", 0.0),
    ("she cuts an onion", "a woman slices a vegetable", 3.6),
]
CODE = """
import json, mteb, sys
from sentence_transformers import SentenceTransformer
found = mteb.evaluate(SentenceTransformer(sys.argv[1]), mteb.get_tasks(tasks=["STSBenchmark"]), cache=None)
print(json.dumps(found.task_results[0].scores["test"][0]))
"""


@pytest.mark.soak
def test_a_task_of_mteb_scores_an_exported_folder(tmp_path: Path) -> None:
    """The task is MTEB's; its data set has six pairs of our own."""
    folder = tmp_path / "model"
    status, output = command.run("export", MINILM, str(folder), "--store", str(tmp_path / "store"))
    assert status == 0, output
    columns = dict(zip(("sentence1", "sentence2", "score"), zip(*PAIRS, strict=True), strict=True))
    with serve_hub(
        "mteb/stsbenchmark-sts", "data/test-00000-of-00001.parquet", pa.table(columns)
    ) as (address, _):
        env = os.environ | {
            "HF_ENDPOINT": address,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_OFFLINE": "0",
        }
        asked = [sys.executable, "-c", CODE, str(folder)]
        done = subprocess.run(
            asked, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-3000:]
    scores = json.loads(done.stdout.splitlines()[-1])
    one = encoder.load(folder, device="cpu")
    first, second = (one.encode([pair[side] for pair in PAIRS], "passage") for side in (0, 1))
    expected = spearmanr(np.sum(first * second, 1), [score for _, _, score in PAIRS]).statistic
    assert scores["cosine_spearman"] == pytest.approx(expected)
    assert 0.5 < expected < 1
