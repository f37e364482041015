"""vLLM loads exported folders by itself, and gives Ratchet's vectors and transformers' words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from architectures import make

from ratchet.jobs.export.export_model import Config, Inputs, run
from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import EncodingConfig
from ratchet.models.model_files import MINILM, resolve
from ratchet.orchestrator.job_interface import Context

vllm: Any = pytest.importorskip("vllm")

TEXTS = [
    "What is 2 + 2?",
    "Paris is the capital of France, on the river Seine.",
    "adds the denominators",
]
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 128,
    "seed": 0,
}
ENGINE |= {"kv_cache_memory_bytes": 2**28, "generation_config": "vllm"}


@pytest.mark.parametrize("architecture", ["minilm", "qwen2"])
def test_embedders(architecture: str, context: Callable[[], Context], tmp_path: Path) -> None:
    base = resolve(MINILM)
    if architecture != "minilm":
        base = make(architecture, transformers.AutoModel, tmp_path / "base", base, vocab_size=30522)
        EncodingConfig("last_token", query_template="query: {text}", max_length=128).write(base)
    made = context()
    run(made, Config(), Inputs(base))
    folder = made.out / "model"
    engine = vllm.LLM(str(folder), runner="pooling", **ENGINE)
    prompt = "" if architecture == "minilm" else "query: "
    found = np.array(
        [one.outputs.embedding for one in engine.embed([prompt + text for text in TEXTS])]
    )
    ours = encoder.load(folder, dtype="float32", device="cpu").encode(TEXTS, "query")
    assert np.abs(found - ours).max() < 1e-4


def test_causal_language_models(context: Callable[[], Context], tmp_path: Path) -> None:
    base = make(
        "llama",
        transformers.AutoModelForCausalLM,
        tmp_path / "base",
        resolve(MINILM),
        vocab_size=30522,
    )
    made = context()
    run(made, Config(), Inputs(base))
    folder = made.out / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = [tokenizer(text).input_ids for text in TEXTS]
    engine = vllm.LLM(str(folder), **ENGINE)
    sampling = vllm.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
    found = [
        list(one.outputs[0].token_ids)
        for one in engine.generate([{"prompt_token_ids": ids} for ids in rows], sampling)
    ]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for ids, own in zip(rows, found, strict=True):
        made_ids = model.generate(
            torch.tensor([ids]), max_new_tokens=8, min_new_tokens=8, do_sample=False
        )
        assert own == made_ids[0, len(ids) :].tolist()
