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
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from tiny_models import save_model

import ratchet
from ratchet.errors import ModelError
from ratchet.models.embedder import encoder
from ratchet.models.roles import find_usage

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


LONG = " ".join(f"w{number % 40}" for number in range(30))
"""Longer than the limit of the models below."""
POOLINGS = {"bert": "cls", "qwen2": "mean"}
LAYERS = {"bert": ["query", "value", "intermediate.dense"], "qwen2": ["q_proj", "up_proj"]}


def save_layout(folder: Path, base: Path, kind: str = "bert") -> SentenceTransformer:
    """Save an adapter as sentence-transformers does, whose pooling, projection, prompts and length are not the base's.
    Return the model."""
    transformer = Transformer(str(base), max_seq_length=16)
    pooling = Pooling(32, pooling_mode=POOLINGS[kind])
    projection = Dense(32, 8, activation_function=torch.nn.Identity())
    modules = [transformer, pooling, projection, Normalize()]
    prompts = {"query": "w1 w2 ", "document": "w3 "}
    model = SentenceTransformer(modules=modules, prompts=prompts, device="cpu")
    settings = {"target_modules": LAYERS[kind], "init_lora_weights": False}
    model.add_adapter(peft.LoraConfig(r=4, **settings))
    model.save_pretrained(str(folder))
    return model


@pytest.mark.parametrize("kind", ["bert", "qwen2"])
def test_an_adapter_keeps_the_layout_of_sentence_transformers(kind: str, tmp_path: Path) -> None:
    base = save_model(tmp_path / "base", kind)
    model = save_layout(tmp_path / "adapter", base, kind)
    assert find_usage(base, tmp_path / "adapter") == "embedder"
    found = encoder.load(base, tmp_path / "adapter", dtype="float32", device="cpu")
    for role, encode in (("query", model.encode_query), ("passage", model.encode_document)):
        expected = encode([*TEXTS, LONG])
        assert not np.allclose(expected[0], expected[1], atol=0.01), "the texts differ"
        np.testing.assert_allclose(found.encode([*TEXTS, LONG], role), expected, atol=1e-5)


def test_an_adapter_of_the_hub_is_merged(tmp_path: Path) -> None:
    """From the cache of the hub's client, with the base by its hub id too."""
    cache = tmp_path / "hub"
    places = {}
    for name in ("base", "adapter"):
        places[name] = cache / f"models--someone--{name}" / "snapshots" / "abc"
        (cache / f"models--someone--{name}" / "refs").mkdir(parents=True)
        (cache / f"models--someone--{name}" / "refs" / "main").write_text("abc")
    save_model(places["base"], "bert")
    model = save_layout(places["adapter"], places["base"])
    file = places["adapter"] / "adapter_config.json"
    about = json.loads(file.read_text()) | {"base_model_name_or_path": "someone/base"}
    file.write_text(json.dumps(about))
    (tmp_path / "texts.txt").write_text("\n".join([*TEXTS, LONG]))
    status, output = run(
        *("embed", "someone/adapter", str(tmp_path / "texts.txt"), str(tmp_path / "vectors")),
        *("--store", str(tmp_path / "store"), "--set", "embed.dtype=float32"),
        environment={"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"},
    )
    assert status == 0, output
    assert "merge_adapter" in output
    found = np.load(tmp_path / "vectors" / "embeddings.npy")
    np.testing.assert_allclose(found, model.encode_document([*TEXTS, LONG]), atol=1e-5)


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
