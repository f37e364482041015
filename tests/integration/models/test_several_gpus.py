"""One model over two GPUs gives the same results as on one device. The GPUs are simulated: they compute on the CPU and
refuse each other's tensors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_models import save_chat_model

from ratchet.errors import ModelError
from ratchet.models.adapters import lora
from ratchet.models.devices import name_device
from ratchet.models.embedder import projection
from ratchet.models.embedder.encoding_config import read_encoding_config
from ratchet.models.loading import spread_model
from ratchet.models.reranker.reranker_config import YES_NO

PROGRAM = Path(__file__).parents[2] / "support/models/spread_models.py"
CASES = [
    "bert",
    "qwen2",
    "qwen2 bfloat16",
    "qwen2 adapter",
    "projection",
    "answers",
    "answers adapter",
    "yes_no",
]
CASES += ["yes_no adapter", "cross_encoder"]


def make_adapter(kind: Any, base: Path, folder: Path, task: str) -> Path:
    model = lora.attach(
        kind.from_pretrained(base),
        lora_r=4,
        lora_alpha=64.0,
        lora_dropout=0.0,
        target_modules="all-linear",
        seed=0,
        task=task,
    )
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    lora.save(model, folder)
    return folder


@pytest.fixture(scope="module")
def found(tiny: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("spread")
    texts = [
        "Yes, one and two are three words.",
        "No: a passage of some more words",
        "user system assistant",
    ]
    save_chat_model(
        folder / "base",
        texts,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=512,
    )
    tied = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
    with torch.no_grad():
        for parameter in tied.parameters():
            parameter.mul_(12 if parameter.ndim == 2 else 1)
    tied.save_pretrained(folder / "base")
    replace(YES_NO, prompt="?", answer="Y", against="N").write(folder / "base")
    causal = make_adapter(
        transformers.AutoModelForCausalLM, folder / "base", folder / "causal", "CAUSAL_LM"
    )
    plain = make_adapter(
        transformers.AutoModel, tiny["qwen2"], folder / "plain", "FEATURE_EXTRACTION"
    )
    narrow = make_adapter(
        transformers.AutoModel, tiny["bert"], folder / "narrow", "FEATURE_EXTRACTION"
    )
    replace(read_encoding_config(tiny["bert"]), projection="2_Dense").write(narrow)
    projection.save(projection.init(32, 8, 0), narrow / "2_Dense")
    torch.manual_seed(0)
    shape = transformers.AutoConfig.from_pretrained(tiny["bert"], num_labels=1)
    transformers.AutoModelForSequenceClassification.from_config(shape).save_pretrained(
        folder / "cross"
    )
    transformers.AutoTokenizer.from_pretrained(tiny["bert"]).save_pretrained(folder / "cross")
    cases = {
        "bert": ("embed", tiny["bert"], None, "float32"),
        "qwen2": ("embed", tiny["qwen2"], None, "float32"),
        "qwen2 bfloat16": ("embed", tiny["qwen2"], None, "bfloat16"),
        "qwen2 adapter": ("embed", tiny["qwen2"], plain, "float32"),
        "projection": ("embed", tiny["bert"], narrow, "float32"),
        "answers": ("answer", folder / "base", None, "float32"),
        "answers adapter": ("answer", folder / "base", causal, "float32"),
        "yes_no": ("score", folder / "base", None, "float32"),
        "yes_no adapter": ("score", folder / "base", causal, "float32"),
        "cross_encoder": ("score", folder / "cross", None, "float32"),
    }
    words = [sys.executable, str(PROGRAM), json.dumps(cases, default=str)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-12000:]
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert list(results) == CASES
    return results


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_the_same(found: dict[str, Any], case: str) -> None:
    own = found[case]
    assert set(own["places"].values()) == {"pretended:0", "pretended:1"}
    tolerance = 1e-2 if "bfloat16" in case else 1e-4
    torch.testing.assert_close(
        torch.tensor(own["spread"]), torch.tensor(own["plain"]), rtol=tolerance, atol=tolerance
    )
    assert len(set(own["plain"])) > 3
    assert own["rotary"] == (
        [] if case in ("bert", "projection", "cross_encoder") else ["torch.float32"]
    )


def test_adapters_change_the_numbers(found: dict[str, Any]) -> None:
    for case in ("qwen2", "answers", "yes_no"):
        assert found[f"{case} adapter"]["spread"] != found[case]["spread"]


def test_a_tied_head_is_where_the_embeddings_are(found: dict[str, Any]) -> None:
    places = found["answers"]["places"]
    assert places["lm_head"] == places["model.embed_tokens"] == "pretended:0"
    assert places["model.norm"] == "pretended:1"


def test_a_model_that_does_not_fit_is_refused(tiny: dict[str, Path]) -> None:
    model = transformers.AutoModel.from_pretrained(tiny["qwen2"])
    with pytest.raises(ModelError, match=r"do not fit on 2 GPUs; .*set quantization=nf4"):
        spread_model(model, {0: 3000, 1: 3000})


def test_the_device_of_a_worker_follows_from_its_gpus() -> None:
    assert [name_device(gpus) for gpus in (None, 0.0, 0.5, 1.0, 2.0)] == [
        "cpu",
        "cpu",
        "cuda",
        "cuda",
        "balanced",
    ]
