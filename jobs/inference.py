"""The settings that all jobs share that run a model without training it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class InferenceConfig:
    """Settings of a model's arithmetic."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of weights and arithmetic. `auto` is bfloat16 on GPUs and on CPUs with native bfloat16 arithmetic, so the
    last digits depend on the kind of machine. The other values give the same result on all CPUs."""
    quantization: Literal["none", "nf4"] = "none"
    """`nf4` keeps the linear layers in 4 bits: a quarter of the memory, slower, and slightly different results. An
    adapter is then not merged."""
