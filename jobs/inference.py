"""The settings that all jobs share that run a model without training it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ratchet.errors import InputError
from ratchet.extras import require_extra


@dataclass(frozen=True)
class InferenceConfig:
    """Settings of a model's arithmetic."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of weights and arithmetic. `auto` is bfloat16 on GPUs and on CPUs with native bfloat16 arithmetic, so the
    last digits depend on the kind of machine. The other values give the same result on all CPUs."""
    quantization: Literal["none", "nf4"] = "none"
    """`nf4` keeps the linear layers in 4 bits: a quarter of the memory, slower, and slightly different results. An
    adapter is then not merged. It needs the extra `nf4`."""


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
    require_extra(f"{where}: given", "onnx", "onnx", "onnxscript", "onnxruntime")


def check_quantization(job: str, quantization: str) -> None:
    """Raise InputError if weights cannot be quantized here."""
    if quantization == "nf4":
        require_extra(f"{job}.quantization: nf4 given", "nf4", "bitsandbytes")


def check_engine(job: str, config: EngineConfig) -> None:
    """Raise InputError for an engine that is not installed, or for weights that it does not load."""
    check_quantization(job, config.quantization)
    if config.engine != "vllm":
        return
    require_extra(f"{job}.engine: 'vllm' given", "vllm", "vllm")
    if config.quantization != "none":
        raise InputError(
            f"{job}.quantization: {config.quantization} given; expected none with engine 'vllm', which serves merged"
            " weights; or set engine=transformers"
        )
