"""The settings that all jobs share that run a model without training it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ratchet.errors import InputError


@dataclass(frozen=True)
class InferenceConfig:
    """Settings of a model's arithmetic."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of weights and arithmetic. `auto` is bfloat16 on GPUs and on CPUs with native bfloat16 arithmetic, so the
    last digits depend on the kind of machine. The other values give the same result on all CPUs."""
    quantization: Literal["none", "nf4"] = "none"
    """`nf4` keeps the linear layers in 4 bits: a quarter of the memory, slower, and slightly different results. An
    adapter is then not merged."""


@dataclass(frozen=True)
class EngineConfig(InferenceConfig):
    """Settings of the jobs that vLLM can do too."""

    engine: Literal["transformers", "vllm"] = "transformers"
    """`vllm` uses continuous batching, for many texts on GPUs: single-turn questions, embedders without a projection,
    and rerankers that answer Yes or No. An adapter is merged first."""


def check_adapter(job: str, adapter: Path | None) -> None:
    """Raise InputError for a folder that is no LoRA adapter."""
    if adapter is not None and not (adapter / "adapter_config.json").is_file():
        raise InputError(f"{job}.adapter: {adapter} has no adapter_config.json; expected the folder of a LoRA adapter")


def require_onnx(where: str) -> None:
    """Raise InputError, beginning with `where`, if ONNX models can be neither written nor run."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"{where}: given, without {', '.join(missing)}; expected the extra; pip install 'ratchet[onnx]'"
        )


def check_engine(job: str, config: EngineConfig) -> None:
    """Raise InputError for an engine that is not installed, or for weights that it does not load."""
    if config.engine != "vllm":
        return
    if importlib.util.find_spec("vllm") is None:
        raise InputError(
            f"{job}.engine: 'vllm' given; expected it to be installed (the extra: pip install '.[vllm]'); or set"
            " engine=transformers"
        )
    if config.quantization != "none":
        raise InputError(
            f"{job}.quantization: {config.quantization} given; expected none with engine 'vllm', which serves merged"
            " weights; or set engine=transformers"
        )
