"""Device and dtype selection."""

from pathlib import Path

import torch

BALANCED = "balanced"
"""Device setting: the layers of the model are spread over all GPUs that the process sees."""


def name_device(gpus: float | None) -> str:
    """Return the device of a worker that has this many GPUs: `cpu`, `cuda` or `balanced`."""
    if not gpus:
        return "cpu"
    if gpus <= 1:
        return "cuda"
    return BALANCED


def resolve_device(device: str) -> torch.device:
    """Return the device of inputs for `cpu`, `cuda`, `auto` (CUDA if available) or `balanced` (the first GPU)."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device("cuda" if device == BALANCED else device)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of a name in torch, or for `auto` bfloat16 if it is native, else float32."""
    if name == "auto":
        if multiplies_bfloat16(device):
            return torch.bfloat16
        return torch.float32
    dtype: torch.dtype = getattr(torch, name)
    return dtype


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
