"""Engine arguments and sampling parameters for vLLM (Kwon et al. 2023, "PagedAttention").

This module does not import vLLM, which runs in its own processes. Texts and answers are exchanged as token ids, so that
templates, truncation, end tokens and decoding are the same as with transformers. Seeds are derived from (seed, name of
the answer) as well, but vLLM draws other tokens from them.
"""

from pathlib import Path
from typing import Any

import transformers

from ratchet.errors import ModelError
from ratchet.models.decoder.sampling import Sampling, derive_key

CPU_CACHE = 2**30
"""Bytes of the KV cache on CPUs, where vLLM would take nine tenths of the memory. VLLM_CPU_KVCACHE_SPACE raises it."""


def make_engine_args(base: Path, *, dtype: str, longest: int, gpus: float | None) -> dict[str, Any]:
    """Return the engine arguments for a model folder.

    dtype: `float32` or `bfloat16`. longest: tokens of the longest text plus max_new_tokens. gpus: number of GPUs of an
    engine, over which each layer is divided (tensor parallelism).

    Raises ModelError if the model has fewer positions than `longest`: vLLM would truncate the answer.
    """
    positions = getattr(
        transformers.AutoConfig.from_pretrained(base), "max_position_embeddings", None
    )
    if positions is not None and longest > positions:
        raise ModelError(
            f"model {base}: {longest} tokens asked for, the longest text with max_new_tokens; expected at most its"
            f" {positions} positions; lower max_new_tokens or max_length"
        )
    found: dict[str, Any] = {
        "dtype": dtype,
        "max_model_len": longest,
        "generation_config": "vllm",  # not the folder's: all sampling parameters are ours
        "disable_log_stats": True,
    }
    if gpus and gpus > 1:
        # One actor has all GPUs, as with transformers, so they are on one machine.
        found |= {"tensor_parallel_size": int(gpus), "distributed_executor_backend": "mp"}
    if not gpus:
        # Compilation needs a compiler and takes longer than it saves. Chunked prefill rewinds the seed, which CPU
        # generators do not support: vLLM fails.
        found |= {
            "enforce_eager": True,
            "enable_chunked_prefill": False,
            "kv_cache_memory_bytes": CPU_CACHE,
        }
    return found


def make_sampling_params(sampling: Sampling, ends: frozenset[int], name: str) -> dict[str, Any]:
    """Return the sampling parameters of one answer. ends: tokens that end it. name: determines the seed."""
    found: dict[str, Any] = {
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_new_tokens,
        "stop_token_ids": sorted(ends),
    }
    if sampling.temperature > 0:
        # 63 bits: it is sent as a signed 64-bit number
        found |= {
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": derive_key(sampling.seed, name) % 2**63,
        }
    if sampling.stop:
        found["stop"] = list(sampling.stop)
    return found
