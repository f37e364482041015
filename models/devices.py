"""Device and dtype selection."""

from __future__ import annotations

from pathlib import Path

import torch

from ratchet.errors import ModelError


def resolve_device(device: str) -> torch.device:
    """Return the device for `cpu`, `cuda` or `auto` (CUDA if available)."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype for `float32`, `bfloat16` or `auto`: bfloat16 where the device multiplies it natively."""
    if name == "auto":
        return torch.bfloat16 if multiplies_bfloat16(device) else torch.float32
    if name not in ("float32", "bfloat16"):
        raise ModelError(f"dtype: '{name}' given; expected auto, float32 or bfloat16; correct the setting")
    return torch.float32 if name == "float32" else torch.bfloat16


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether this machine's device multiplies bfloat16 natively."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return True
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
