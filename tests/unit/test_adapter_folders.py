"""A folder with an adapter of PEFT as the base of a recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from command import run
from tiny_models import save_model

import ratchet
from ratchet.errors import ModelError

# They plan and run.
pytestmark = pytest.mark.slow

TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8"]


def save_adapter(folder: Path, base: Path, **settings: Any) -> Path:
    model = transformers.AutoModel.from_pretrained(base)
    config = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, **settings)
    peft.get_peft_model(model, config).save_pretrained(str(folder))
    return folder


def test_an_adapter_embeds_as_peft_does(tmp_path: Path) -> None:
    base = save_model(tmp_path / "base", "bert")
    adapter = save_adapter(tmp_path / "my adapter", base, task_type="FEATURE_EXTRACTION")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    folder = tmp_path / "vectors"
    # In a process of its own: another test may have started Ray in this one.
    status, output = run(
        *("embed", str(adapter), str(tmp_path / "texts.txt"), str(folder)),
        *("--store", str(tmp_path / "store"), "--set", "embed.dtype=float32"),
    )
    assert status == 0, output
    found = np.load(folder / "embeddings.npy")
    model = peft.PeftModel.from_pretrained(
        transformers.AutoModel.from_pretrained(base), str(adapter)
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    with torch.no_grad():
        for text, vector in zip(TEXTS, found, strict=True):
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
            expected = torch.nn.functional.normalize(hidden, dim=0).numpy()
            np.testing.assert_allclose(vector, expected, atol=1e-5)


def test_the_plan_merges_the_adapter_once(tmp_path: Path) -> None:
    base = save_model(tmp_path / "base", "bert")
    adapter = save_adapter(tmp_path / "adapter", base)
    rows = [json.dumps({"query": f"w{n}", "positive": f"w{n + 1}"}) for n in range(40)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(rows))
    plan = ratchet.plan(
        "retriever",
        store=tmp_path / "store",
        data=tmp_path / "pairs.jsonl",
        base=str(adapter),
        bootstrap=str(adapter),
    )
    assert plan["merge_adapter"] == "to run"


def test_an_adapter_without_a_base_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "adapter_config.json"
    file.write_text('{"peft_type": "LORA", "base_model_name_or_path": null}')
    (tmp_path / "x.txt").write_text("a\nb")
    with pytest.raises(ModelError, match=r"adapter_config\.json: no base_model_name_or_path"):
        ratchet.plan("embed", store=tmp_path / "s", model=str(tmp_path), texts=tmp_path / "x.txt")
