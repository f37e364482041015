"""The same answers asked of vLLM (Kwon et al. 2023, "PagedAttention"): settings and requests as it takes them.

Imports nothing of vLLM, which runs elsewhere. Prompts travel as token ids and answers come back as such, so that what
stands in a prompt, where an answer ends and how it reads is decided here alone. An answer's seed follows from
(seed, its name), as for the other engine; what is drawn by it differs, since vLLM draws otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from models.devices import torch_dtype
from models.errors import ModelError
from models.sampling import Sampling, key

CPU_CACHE = 2**30
"""Bytes that keys and values may take on CPUs, where vLLM would take nine tenths of the machine; more by its own
variable, VLLM_CPU_KVCACHE_SPACE."""


def settings(base: Path, *, dtype: str, device: str, longest: int) -> dict[str, Any]:
    """Of an engine over the model in folder `base`. longest: tokens of the longest prompt with its longest answer.

    Raises ModelError where the model has not so many positions: vLLM would cut the answer.
    """
    positions = getattr(transformers.AutoConfig.from_pretrained(base), "max_position_embeddings", None)
    if positions is not None and longest > positions:
        raise ModelError(
            f"model {base}: {longest} tokens asked for, the longest prompt with max_new_tokens; expected at most its"
            f" {positions} positions; lower max_new_tokens"
        )
    found: dict[str, Any] = {
        "dtype": str(torch_dtype(dtype, torch.device(device))).removeprefix("torch."),
        "max_model_len": longest,
        "generation_config": "vllm",  # not the folder's: nothing is sampled by settings that the artifact does not name
        "disable_log_stats": True,
    }
    if device == "cpu":
        # Compiling takes a compiler, and longer than it saves. A prompt that is read in parts takes its seed back after
        # each, which generators on CPUs cannot: vLLM ends with an error.
        found |= {"enforce_eager": True, "enable_chunked_prefill": False, "kv_cache_memory_bytes": CPU_CACHE}
    return found


def parameters(sampling: Sampling, ends: frozenset[int], name: str) -> dict[str, Any]:
    """Of one answer. ends: tokens that end it; name: what its randomness follows from."""
    found: dict[str, Any] = {
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_new_tokens,
        "stop_token_ids": sorted(ends),
    }
    if sampling.temperature > 0:
        # 63 bits: it travels as a signed number of 64.
        found |= {"top_p": sampling.top_p, "top_k": sampling.top_k, "seed": key(sampling.seed, name) % 2**63}
    if sampling.stop:
        found["stop"] = list(sampling.stop)
    return found
