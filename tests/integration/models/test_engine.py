"""The engine starts without a compiler, and leaves nothing in the user's cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

START = """
import os, sys, torch
os.environ["LOCAL_RANK"] = "0"
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
from ratchet.models import engine
model = torch.nn.Linear(4, 1)
started = engine.start_engine(
    model, learning_rate=0.1, weight_decay=0.0, max_grad_norm=1.0, zero_stage=1, device="cpu"
)
before = model.weight.detach().clone()
started.backward(model(torch.ones(2, 4)).sum())
started.step()
print("moved", not torch.equal(before, model.weight))
"""


def test_nothing_is_compiled_and_a_lock_that_a_killed_process_left_stops_nobody(tmp_path: Path) -> None:
    cache = tmp_path / "extensions"
    stale = cache / "py311_cpu" / "deepspeed_shm_comm"
    stale.mkdir(parents=True)
    (stale / "lock").touch()
    done = subprocess.run(
        [sys.executable, "-c", START, str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"TORCH_EXTENSIONS_DIR": str(cache), "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "moved True" in done.stdout, done.stderr
    assert [path.name for path in cache.rglob("*") if path.is_file()] == ["lock"]
