"""Memory for merging an adapter and for checking the merged model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from architectures import make, trained
from safetensors.torch import save_file

from ratchet.models.adapters import lora, merging
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


def test_merging_holds_one_tensor(tmp_path: Path) -> None:
    """Each of 24 tensors has 8 MB. Measured in a process of its own, whose peak, unlike ru_maxrss, is not
    that of its parent."""
    layers = {f"layers.{i}.q.weight": torch.randn(2048, 2048).to(torch.bfloat16) for i in range(24)}
    transformers.Qwen2Config().save_pretrained(tmp_path)
    save_file(layers, tmp_path / "model.safetensors", metadata={"format": "pt"})
    adapter, target = tmp_path / "adapter", tmp_path / "merged"
    adapter.mkdir()
    target.mkdir()
    pairs = {
        f"base_model.model.{name[:-7]}.lora_{part}.weight": torch.ones(shape)
        for name in layers
        for part, shape in (("A", (4, 2048)), ("B", (2048, 4)))
    }
    save_file(pairs, adapter / lora.WEIGHTS)
    (adapter / lora.CONFIG).write_text(json.dumps({"r": 4, "lora_alpha": 8}))
    program = """
import sys
from pathlib import Path
from ratchet.models.adapters.shard_merge import merge_shards
import torch
torch.ones(512, 512) @ torch.ones(512, 512)
peak = lambda: int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
before = peak()
merge_shards(*map(Path, sys.argv[1:]))
print(peak() - before)
"""
    arguments = [sys.executable, "-c", program, str(tmp_path), str(adapter), str(target)]
    grown = int(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout) * 1024
    assert 10e6 < grown < 180e6, f"peak grew by {grown / 1e6:.0f} MB; the weights have 201 MB"
