"""Where a model runs, and in what precision it is fastest there."""

from __future__ import annotations

from pathlib import Path

import torch

from models.errors import ModelError


def place(device: str) -> torch.device:
    """`cpu`, `cuda`, or `auto`."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)


def torch_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the device multiplies it natively."""
    if name == "auto":
        return torch.bfloat16 if device.type != "cpu" or _cpu_has_bfloat16() else torch.float32
    if name not in ("float32", "bfloat16"):
        raise ModelError(f"dtype: '{name}' given; expected auto, float32 or bfloat16")
    return torch.float32 if name == "float32" else torch.bfloat16


def _cpu_has_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
