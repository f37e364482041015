"""Mixtures of experts: attention gets adapters that merge rightly; what does not is refused in the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import make

from ratchet.errors import InputError
from ratchet.jobs.answers import generate, sft
from ratchet.jobs.retrieval import embed
from ratchet.models.adapters import lora
from ratchet.models.decoder import decoder
from ratchet.models.loading import open_model, train_in_float32

CAUSAL = transformers.AutoModelForCausalLM
NAMES = ["gpt_oss", "mixtral", "qwen3_moe"]
ATTENTION = "q_proj,k_proj,v_proj,o_proj"
IDS = torch.arange(3, 15)[None]


@pytest.fixture(scope="module", params=NAMES)
def base(
    request: pytest.FixtureRequest, tiny: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return make(
        request.param, CAUSAL, tmp_path_factory.mktemp(request.param), tiny["qwen2"], pad_token_id=0
    )


def compute(folder: Path, adapter: Path | None = None) -> torch.Tensor:
    model, _ = open_model(CAUSAL, folder, adapter, dtype="float32", device="cpu")
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=IDS).logits
    return logits


@pytest.mark.slow
def test_an_adapter_of_the_attention_is_trained_and_merged(base: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "lora_r": 4,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
        "seed": 0,
        "task": "CAUSAL_LM",
    }
    model, _ = open_model(CAUSAL, base, None, dtype="float32", device="cpu", training=True)
    adapted = lora.attach(model, target_modules=ATTENTION, **options)
    train_in_float32(adapted)
    optimizer = torch.optim.AdamW([one for one in adapted.parameters() if one.requires_grad], 1e-2)
    for _ in range(3):
        adapted(input_ids=IDS, labels=IDS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        expected = adapted.eval()(input_ids=IDS).logits
    lora.save(adapted, tmp_path / "adapter")
    merged = tmp_path / "merged"
    decoder.merge(base, tmp_path / "adapter", merged)
    assert float((expected - compute(base)).abs().max()) > 1e-3
    torch.testing.assert_close(compute(base, tmp_path / "adapter"), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(compute(merged), expected, atol=1e-4, rtol=1e-4)


def test_four_bits_are_refused(base: Path) -> None:
    jobs: list[tuple[Any, Any]] = [(generate, None), (embed, None)]
    for job, texts in jobs:
        with pytest.raises(InputError, match=r"quantization: nf4 given, for a mixture of experts"):
            job.JOB.check(job.Config(quantization="nf4"), job.Inputs(base, texts), {})
    with pytest.raises(InputError, match=r"quantization: nf4 given, for a mixture of experts"):
        sft.JOB.check(
            sft.Config(quantization="nf4", target_modules=ATTENTION),
            sft.Inputs(base, None, None),
            {},  # type: ignore[arg-type]
        )
