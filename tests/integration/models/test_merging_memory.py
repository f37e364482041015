"""The memory that checking a merged model takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import transformers
from architectures import make, trained

from ratchet.models.adapters import merging
from ratchet.models.embedder.encoding_config import EncodingConfig


def test_checking_a_merge_holds_one_layer(tiny_decoder: Path, tmp_path: Path) -> None:
    """A copy of the weights has 351 MB, a layer 28 MB at most. Measured in a process of its own, as in merging."""
    size: dict[str, Any] = {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_attention_heads": 12,
        "vocab_size": 300,
    }
    size |= {"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4}
    base = make("qwen2", transformers.AutoModel, tmp_path / "base", tiny_decoder, dtype="bfloat16", files=4, **size)
    weights = sum(file.stat().st_size for file in base.glob("*.safetensors"))
    assert weights > 350e6
    EncodingConfig("mean", max_length=64).write(base)
    trained(transformers.AutoModel.from_pretrained(base), [], "FEATURE_EXTRACTION", tmp_path / "adapter")
    (tmp_path / "merged").mkdir()
    merging.merge(base, tmp_path / "adapter", tmp_path / "merged")
    program = """
import sys
from pathlib import Path
from ratchet.models.adapters import merging
import torch, transformers
transformers.Qwen2Model
torch.ones(512, 512) @ torch.ones(512, 512)
peak = lambda: int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
before = peak()
found = merging.check(*map(Path, sys.argv[1:]), ["w1 w2", "w3"])
assert found.drift < 1e-2 and found.change > 1e-3, found
print(peak() - before)
"""
    arguments = [sys.executable, "-c", program, *(str(tmp_path / name) for name in ("base", "adapter", "merged"))]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    grown = int(done.stdout.strip().splitlines()[-1]) * 1024
    assert 10e6 < grown < weights / 2, f"peak grew by {grown / 1e6:.0f} MB; the weights have {weights / 1e6:.0f} MB"
