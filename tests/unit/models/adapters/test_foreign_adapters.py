"""Adapters as PEFT writes them, without Ratchet's files: merged rightly, or refused before a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import transformers
from architectures import make

from ratchet.errors import InputError, ModelError
from ratchet.jobs.answers import generate
from ratchet.jobs.export.export_model import Inputs, write_model
from ratchet.jobs.retrieval import embed
from ratchet.models import merging
from ratchet.models.adapters import lora
from ratchet.models.embedder import encoder
from ratchet.models.roles import find_usage

CAUSAL = transformers.AutoModelForCausalLM
CLASSIFIER = transformers.AutoModelForSequenceClassification


def save_adapter(
    base: Path, folder: Path, kind: Any, labels: int | None = None, **settings: Any
) -> Path:
    model = kind.from_pretrained(base, **({} if labels is None else {"num_labels": labels}))
    settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"} | settings
    peft.get_peft_model(model, peft.LoraConfig(**settings)).save_pretrained(str(folder))
    return folder


@pytest.mark.parametrize(
    "variant", ["pissa", "pissa_niter_4", "olora", "lora_ga", "corda", "loftq"]
)
def test_adapters_with_a_changed_base_are_refused(
    variant: str, tiny: dict[str, Path], tmp_path: Path
) -> None:
    base, adapter = tiny["qwen2"], save_adapter(tiny["qwen2"], tmp_path / "adapter", CAUSAL)
    about = json.loads((adapter / lora.CONFIG).read_text())
    (adapter / lora.CONFIG).write_text(json.dumps(about | {"init_lora_weights": variant}))
    uses: list[Callable[[], object]] = [
        lambda: encoder.load(base, adapter, dtype="float32", device="cpu"),
        lambda: embed.JOB.check(embed.Config(), embed.Inputs(base, None, adapter), {}),  # type: ignore[arg-type]
    ]
    for use in uses:
        with pytest.raises(ModelError, match=f"init_lora_weights={variant}"):
            use()


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant", [{"use_rslora": True}, {"use_dora": True}, {"rank_pattern": {"q_proj": 2}}]
)
def test_variants_of_lora_are_merged(
    variant: dict[str, Any], tiny: dict[str, Path], tmp_path: Path
) -> None:
    adapter = save_adapter(
        tiny["qwen2"],
        tmp_path / "adapter",
        transformers.AutoModel,
        task_type="FEATURE_EXTRACTION",
        init_lora_weights=False,
        **variant,
    )
    (tmp_path / "merged").mkdir()
    merging.merge(tiny["qwen2"], adapter, tmp_path / "merged")
    found = merging.check(tiny["qwen2"], adapter, tmp_path / "merged", ["w1 w2", "w3"])
    assert found.drift < 1e-4 < found.change


@pytest.mark.slow
def test_adapters_of_another_task_are_refused(tiny: dict[str, Path], tmp_path: Path) -> None:
    causal = save_adapter(tiny["qwen2"], tmp_path / "causal", CAUSAL, task_type="CAUSAL_LM")
    assert find_usage(tiny["qwen2"], causal) == "decoder"
    with pytest.raises(ModelError, match="of a causal language model"):
        merging.check_inputs(tiny["qwen2"], causal, None)
    qwen2 = make("qwen2", CAUSAL, tmp_path / "base", tiny["qwen2"], pad_token_id=0)
    classifier = save_adapter(
        qwen2, tmp_path / "decoder", CLASSIFIER, task_type="SEQ_CLS", labels=1
    )
    assert find_usage(qwen2, classifier) == "reranker"
    with pytest.raises(ModelError, match="of a sequence classifier"):
        merging.check_inputs(qwen2, classifier, None)
    query = {"task_type": "SEQ_CLS", "target_modules": ["query"]}
    several = save_adapter(tiny["bert"], tmp_path / "several", CLASSIFIER, labels=3, **query)
    with pytest.raises(ModelError, match="does not fit the model"):
        merging.merge(tiny["bert"], several, tmp_path)
    one = save_adapter(tiny["bert"], tmp_path / "one", CLASSIFIER, labels=1, **query)
    merging.check_inputs(tiny["bert"], one, None)
    cases: list[tuple[Any, Path, Path]] = [
        (embed, tiny["bert"], one),
        (embed, qwen2, causal),
        (generate, qwen2, one),
    ]
    for job, base, adapter in cases:
        with pytest.raises(InputError, match=r"adapter: .* was trained as"):
            job.JOB.check(job.Config(), job.Inputs(base, None, adapter), {})


@pytest.mark.parametrize("name", ["distilbert", "gpt2", "bert"])
def test_embedders_are_exported_with_the_width_of_their_class(
    name: str, tiny: dict[str, Path], tmp_path: Path
) -> None:
    folder = make(name, transformers.AutoModel, tmp_path / "model", tiny["qwen2"])
    write_model("embedder", Inputs(folder), tmp_path / "out")
    about = json.loads((tmp_path / "out/1_Pooling/config.json").read_text())
    assert about["word_embedding_dimension"] == 128
