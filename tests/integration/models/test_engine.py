"""The DeepSpeed engine starts without a compiler, and leaves nothing in the user's cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.soak
def test_deepspeed_compiles_nothing(tmp_path: Path) -> None:
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


SUM = """
import os, sys, torch
os.environ["LOCAL_RANK"] = "0"
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
import deepspeed
from deepspeed.utils import safe_get_full_grad
from ratchet.models import engine
from ratchet.models.loading import train_in_float32

PARTS, stage = 1024, int(sys.argv[2])
for kind in ("adapter", "full"):
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 4, bias=False)
    model = torch.nn.Sequential(*layers).to(torch.bfloat16)
    model[0].requires_grad_(kind == "full")
    if kind == "adapter":
        train_in_float32(model)
    trained = model[1].weight
    inputs = torch.randn(PARTS, 3, 8).to(torch.bfloat16) + 1
    training = engine.start_engine(
        model, learning_rate=0.0, weight_decay=0.0, max_grad_norm=0.0, zero_stage=stage, device="cpu"
    )
    for number, rows in enumerate(inputs):
        engine.start_part(training)
        loss = model(rows).float().sum() / PARTS
        training.set_gradient_accumulation_boundary(number == PARTS - 1)
        training.backward(loss)
    found = safe_get_full_grad(trained).double()
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        hidden = (inputs.double() @ model[0].weight.detach().double().T).to(torch.bfloat16).double()
        expected = hidden.sum((0, 1)).expand(4, 8) / PARTS
    print("error", kind, float((found - expected).norm() / expected.norm()))
"""


@pytest.mark.soak
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_gradients_of_a_thousand_parts_add_up(tmp_path: Path, stage: int) -> None:
    """Over a base in bfloat16, which would stop growing after some hundred parts, against a sum in float64."""
    done = subprocess.run(
        [sys.executable, "-c", SUM, str(tmp_path), str(stage)],
        cwd=ROOT,
        env=os.environ | {"DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = dict(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("error "))
    assert set(found) == {"adapter", "full"}, done.stderr
    assert float(found["adapter"]) < 1e-3
    assert float(found["full"]) < 2e-3  # read in bfloat16
