"""Merged folders: they give the same results as base and adapter, and other libraries load them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from architectures import make, trained
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tiny_models import save_chat_model
from tokenizers import processors

from ratchet.errors import ModelError
from ratchet.models import merging
from ratchet.models.adapters import lora
from ratchet.models.embedder import encoder, projection
from ratchet.models.embedder.encoding_config import EncodingConfig, read_encoding_config
from ratchet.models.embedder.sentence_transformers_layout import write_layout
from ratchet.models.model_files import RERANKER_CONFIG_FILE, read_main_dtype
from ratchet.models.reranker import reranker
from ratchet.models.reranker.reranker_config import RerankerConfig, read_reranker_config
from ratchet.models.roles import find_usage

TEXTS = ["Adds the denominators.", "Squares each term of a sum.", "Reads the scale wrongly.", "x"]


@pytest.fixture(scope="module")
def texts(texts: list[str]) -> list[str]:
    return texts[:20]


def embedder_adapter(base: Path, folder: Path, agreed: EncodingConfig | None = None) -> Path:
    one = encoder.load(base, dtype="float32", device="cpu", training=True)
    trained(one.model, [], "FEATURE_EXTRACTION", folder)
    (agreed or one.encoding_config).write(folder)
    return folder


def reranker_adapter(base: Path, folder: Path, agreed: RerankerConfig) -> Path:
    one = reranker.load(base, dtype="float32", device="cpu", training=True, reranker_config=agreed)
    task = "CAUSAL_LM" if agreed.kind == "yes_no" else "SEQ_CLS"
    trained(one.model, reranker.find_heads(one), task, folder)
    agreed.write(folder)
    return folder


def merged(base: Path, adapter: Path, folder: Path) -> merging.MergeCheck:
    folder.mkdir()
    merging.merge(base, adapter, folder)
    return merging.check(base, adapter, folder, TEXTS)


@pytest.mark.slow
def test_merged_embedder_in_sentence_transformers(minilm: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    adapter = embedder_adapter(minilm, tmp_path / "adapter")
    found = merged(minilm, adapter, tmp_path / "merged")
    assert found.drift < 1e-5
    assert found.change > 1e-2
    expected = encoder.load(minilm, adapter, dtype="float32", device="cpu").encode(TEXTS, "query")
    theirs = SentenceTransformer(str(tmp_path / "merged"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(theirs, expected, atol=1e-5)
    assert read_encoding_config(tmp_path / "merged") == read_encoding_config(adapter)
    plain = transformers.AutoModel.from_pretrained(tmp_path / "merged", output_loading_info=True)[1]
    assert not [name for name in plain["missing_keys"] if "pooler" not in name]


@pytest.mark.slow
def test_a_dot_product_model_stays_one(tiny: dict[str, Path], tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    adapter = embedder_adapter(
        tiny["bert"], tmp_path / "adapter", EncodingConfig("mean", normalize=False)
    )
    merged(tiny["bert"], adapter, tmp_path / "merged")
    peer = SentenceTransformer(str(tmp_path / "merged"), device="cpu")
    assert peer.similarity_fn_name == "dot"
    (tmp_path / "merged/encoding_config.json").unlink()
    assert not read_encoding_config(tmp_path / "merged").normalize


PLAIN = EncodingConfig("last_token", max_length=40)
SHOT = {"examples": (("w1", "w2"), ("w3", "w4")), "example_template": "{task} {text} {answer}"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "qwen2", "gpt2"])
@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({}, ""),
        (
            {
                "task": "w5 w6",
                "query_template": "{task} w7 {text}",
                "passage_template": "w8 {task} {text}",
            },
            "",
        ),
        ({"add_eos": True}, ""),
        (
            {
                "add_eos": True,
                "padding_side": "left",
                "task": "w1",
                "query_template": "{task} {text}",
            },
            "",
        ),
        ({"pooling": "mean", "normalize": False, "max_length": 12}, ""),
        ({"pooling": "cls"}, ""),
        (SHOT | {"task": "w9", "query_template": "{task} {text}"}, ""),
        ({"query_template": "{text} w1"}, "text behind {text}"),
        ({"passage_template": "w2 {text} w1"}, "text behind {text}"),
        ({"query_max_length": 3}, "query_max_length"),
    ],
)
def test_parity_with_sentence_transformers(
    tiny: dict[str, Path],
    texts: list[str],
    tmp_path: Path,
    kind: str,
    change: dict[str, Any],
    missing: str,
) -> None:
    from sentence_transformers import SentenceTransformer

    base = tmp_path / "base"
    shutil.copytree(tiny[kind], base)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base, padding_side="left")
    tokenizer.chat_template = "{% for m in messages %}w1 {{ m.content }} w2{% endfor %}"
    tokenizer.save_pretrained(base)
    adapter = embedder_adapter(base, tmp_path / "adapter", replace(PLAIN, **change))
    expected = {
        role: encoder.load(base, adapter, dtype="float32", device="cpu").encode(texts, role)  # type: ignore[arg-type]
        for role in ("query", "passage")
    }
    target = tmp_path / "merged"
    target.mkdir()
    assert missing in (why := merging.merge(base, adapter, target))
    assert bool(why) == bool(missing)
    ours = encoder.load(target, dtype="float32", device="cpu")
    assert ours.encoding_config == read_encoding_config(adapter)
    np.testing.assert_allclose(ours.encode(texts, "query"), expected["query"], atol=1e-4, rtol=1e-4)
    assert (target / "modules.json").is_file() == (not missing)
    if missing:
        return
    peer = SentenceTransformer(str(target), device="cpu")
    np.testing.assert_allclose(peer.encode_query(texts), expected["query"], atol=1e-3, rtol=1e-3)
    np.testing.assert_allclose(
        peer.encode_document(texts), expected["passage"], atol=1e-3, rtol=1e-3
    )


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"add_bos_token": True, "add_eos_token": False}])
def test_a_first_token_stays_where_the_last_is_added(
    tiny: dict[str, Path], texts: list[str], tmp_path: Path, settings: dict[str, bool]
) -> None:
    """transformers builds the post-processor anew if tokenizer_config.json has one of the settings."""
    from sentence_transformers import SentenceTransformer

    shutil.copytree(tiny["gpt2"], tmp_path / "base")
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        tmp_path / "base", bos_token="[UNK]", pad_token=None
    )
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[UNK] $A", pair="[UNK] $A $B", special_tokens=[("[UNK]", 2)]
    )
    tokenizer.save_pretrained(tmp_path / "base")
    file = tmp_path / "base/tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    adapter = embedder_adapter(
        tmp_path / "base", tmp_path / "adapter", replace(PLAIN, add_eos=True, max_length=20)
    )
    expected = encoder.load(tmp_path / "base", adapter, dtype="float32", device="cpu").encode(
        texts, "query"
    )
    merged(tmp_path / "base", adapter, tmp_path / "merged")
    peer = SentenceTransformer(str(tmp_path / "merged"), device="cpu")
    assert peer.tokenizer("w1").input_ids == [2, 4, 1]
    np.testing.assert_allclose(peer.encode_query(texts), expected, atol=1e-3)


def test_a_tokenizer_that_cannot_be_adapted_has_no_layout(
    tiny: dict[str, Path], tmp_path: Path
) -> None:
    """A tokenizer without tokenizer.json does not append the token."""
    base = tmp_path / "base"
    shutil.copytree(tiny["bert"], base)
    (base / "tokenizer.json").unlink()
    (base / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[SEP]", "[UNK]", "[CLS]", "[MASK]", *"abc12=+.,tex"])
    )
    config = {"tokenizer_class": "BertTokenizer", "eos_token": "[MASK]"}
    (base / "tokenizer_config.json").write_text(json.dumps(config))
    before = (base / "tokenizer_config.json").read_bytes()
    why = write_layout(replace(PLAIN, add_eos=True), 32, base)
    assert why == "its tokenizer gives other tokens in sentence-transformers"
    assert (base / "tokenizer_config.json").read_bytes() == before
    assert not (base / "modules.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
def test_a_projection_goes_along(minilm: Path, tmp_path: Path, bias: bool) -> None:
    from sentence_transformers import SentenceTransformer

    adapter = embedder_adapter(
        minilm, tmp_path / "adapter", replace(read_encoding_config(minilm), projection="2_Dense")
    )
    layer = projection.init(384, 100, 0, bias=bias)
    if bias:
        torch.nn.init.normal_(layer.bias, std=0.1)
    projection.save(layer, adapter / "2_Dense")
    found = merged(minilm, adapter, tmp_path / "merged")
    assert found.drift < 1e-5
    expected = encoder.load(minilm, adapter, dtype="float32", device="cpu").encode(TEXTS, "query")
    assert expected.shape == (len(TEXTS), 100)
    theirs = SentenceTransformer(str(tmp_path / "merged"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(theirs, expected, atol=1e-5)
    again = encoder.load(tmp_path / "merged", dtype="float32", device="cpu").encode(TEXTS, "query")
    np.testing.assert_allclose(again, expected, atol=1e-5)
    # An adapter without one leaves the base's in place.
    plain = embedder_adapter(tmp_path / "merged", tmp_path / "second")
    assert read_encoding_config(plain).projection == "2_Dense"
    assert merged(tmp_path / "merged", plain, tmp_path / "third").drift < 1e-5
    about = json.loads((adapter / "2_Dense/config.json").read_text())
    (adapter / "2_Dense/config.json").write_text(json.dumps(about | {"in_features": 7}))
    with pytest.raises(ModelError, match="from 7 dimensions"):
        encoder.load(minilm, adapter)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_a_merged_decoder_keeps_its_head(tiny: dict[str, Path], tmp_path: Path, tied: bool) -> None:
    base = tmp_path / "base"
    config = transformers.AutoConfig.from_pretrained(tiny["qwen2"], tie_word_embeddings=tied)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(base)
    transformers.AutoTokenizer.from_pretrained(tiny["qwen2"]).save_pretrained(base)
    agreed = RerankerConfig("yes_no", 64, None, "w1{text}", "w2{text}", "w", "w3", answer="w")
    adapter = reranker_adapter(base, tmp_path / "adapter", agreed)
    found = merged(base, adapter, tmp_path / "merged")
    assert found.drift < 1e-4
    assert found.change > 1e-3
    _, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "merged", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert read_reranker_config(tmp_path / "merged") == agreed


@pytest.mark.slow
def test_foreign_adapters_merge(tiny: dict[str, Path], tmp_path: Path) -> None:
    kind = transformers.AutoModelForSequenceClassification
    base = make("bert", kind, tmp_path / "base", tiny["bert"], num_labels=1)
    adapter = reranker_adapter(base, tmp_path / "adapter", read_reranker_config(base))
    (adapter / RERANKER_CONFIG_FILE).unlink()
    found = merged(base, adapter, tmp_path / "merged")
    assert found.drift < 1e-4 * found.change
    assert read_reranker_config(tmp_path / "merged") == read_reranker_config(base)
    named = tmp_path / "Qwen3-Reranker-0.6B"
    shutil.copytree(tiny["qwen2"], named)
    assert find_usage(named) == "reranker"
    assert find_usage(named, embedder_adapter(named, tmp_path / "embedder")) == "embedder"


@pytest.mark.slow
@pytest.mark.parametrize("filler", [None, -1, 2])
def test_merged_classifier_scores_batches(tmp_path: Path, filler: int | None) -> None:
    base = tmp_path / "base"
    save_chat_model(base, ["w1 w2 w3"], max_position_embeddings=64)
    config = transformers.AutoConfig.from_pretrained(base, num_labels=1, pad_token_id=None)
    model = transformers.Qwen2ForSequenceClassification(config)
    model.config.pad_token_id = filler
    model.save_pretrained(base)
    adapter = reranker_adapter(base, tmp_path / "adapter", RerankerConfig("cross_encoder", 64))
    assert merged(base, adapter, tmp_path / "merged").drift < 1e-4
    ours = reranker.load(tmp_path / "merged", dtype="float32", device="cpu")
    assert ours.filler == (ours.tokens.tokenizer.pad_token_id if filler in (None, -1) else filler)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "merged"
    ).eval()
    rows = [[5, 6, 7], [8, 9]]
    padded = torch.tensor([rows[0], [*rows[1], ours.filler]])
    with torch.no_grad():
        together = theirs(padded, attention_mask=torch.tensor([[1, 1, 1], [1, 1, 0]])).logits[:, 0]
        alone = torch.cat([theirs(torch.tensor([row])).logits[:, 0] for row in rows])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_merged_cross_encoder_has_its_head(minilm: Path, tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    adapter = reranker_adapter(minilm, tmp_path / "adapter", RerankerConfig("cross_encoder", 128))
    assert not reranker.can_score(minilm)
    found = merged(minilm, adapter, tmp_path / "merged")
    assert found.drift < 1e-4
    assert reranker.can_score(tmp_path / "merged")
    (ours,) = reranker.load(tmp_path / "merged", dtype="float32", device="cpu").score(
        ["x + 1"], [TEXTS]
    )
    theirs = CrossEncoder(str(tmp_path / "merged"), device="cpu").predict(
        [("x + 1", text) for text in TEXTS], activation_fn=torch.nn.Identity()
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layers_are_merged_in_float32_and_rounded_once(
    tiny: dict[str, Path], tmp_path: Path, stored: str, dtype: str
) -> None:
    base = tmp_path / "base"
    plain = transformers.AutoModel.from_pretrained(tiny["qwen2"], dtype=getattr(torch, stored))
    plain.save_pretrained(base)
    transformers.AutoTokenizer.from_pretrained(tiny["qwen2"]).save_pretrained(base)
    adapter = embedder_adapter(base, tmp_path / "adapter")
    ours = encoder.load(base, adapter, dtype=dtype, device="cpu").model.state_dict()
    whole = transformers.AutoModel.from_pretrained(base, dtype=torch.float32)
    theirs = PeftModel.from_pretrained(whole, adapter).merge_and_unload().state_dict()
    merging.merge(base, adapter, tmp_path / "merged")
    folder = encoder.load(tmp_path / "merged", dtype=dtype, device="cpu").model.state_dict()
    assert ours.keys() == theirs.keys() == folder.keys()
    for name, weight in theirs.items():
        rounded = weight.to(getattr(torch, stored)).to(getattr(torch, dtype))
        assert torch.equal(ours[name], rounded), name
        assert torch.equal(folder[name], rounded), name


@pytest.mark.slow
def test_weights_are_stored_as_the_bases_are(tiny: dict[str, Path], tmp_path: Path) -> None:
    base = tmp_path / "base"
    transformers.AutoModel.from_pretrained(
        tiny["bert"], dtype=torch.bfloat16, add_pooling_layer=False
    ).save_pretrained(base)
    transformers.AutoTokenizer.from_pretrained(tiny["bert"]).save_pretrained(base)
    found = merged(base, embedder_adapter(base, tmp_path / "adapter"), tmp_path / "merged")
    assert read_main_dtype(tmp_path / "merged") == "bfloat16"
    assert 0 < found.drift < 1e-2


@pytest.mark.slow
def test_another_bases_adapter_and_a_changed_folder_are_seen(
    minilm: Path, tiny: dict[str, Path], tmp_path: Path
) -> None:
    adapter = embedder_adapter(minilm, tmp_path / "adapter")
    with pytest.raises(ModelError, match="does not fit the model"):
        merged(tiny["bert"], adapter, tmp_path / "merged")
    assert merged(minilm, adapter, tmp_path / "sound").drift < 1e-5
    other = embedder_adapter(minilm, tmp_path / "other")
    weights = (tmp_path / "other" / lora.WEIGHTS).read_bytes()
    (other / lora.WEIGHTS).write_bytes(weights)
    changed = {name: 3 * value for name, value in load_file(other / lora.WEIGHTS).items()}
    save_file(changed, other / lora.WEIGHTS, metadata={"format": "pt"})
    assert merging.check(minilm, other, tmp_path / "sound", TEXTS).drift > 1e-2


@pytest.mark.slow
def test_an_adapter_that_does_nothing_changes_nothing(minilm: Path, tmp_path: Path) -> None:
    one = encoder.load(minilm, dtype="float32", device="cpu", training=True)
    model = lora.attach(
        one.model, lora_r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear", seed=0
    )
    lora.save(model, tmp_path / "adapter")
    one.encoding_config.write(tmp_path / "adapter")
    found = merged(minilm, tmp_path / "adapter", tmp_path / "merged")
    assert abs(found.change) < 1e-6
    assert abs(found.drift) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_an_embedder_of_a_decoder_keeps_the_head(
    tiny: dict[str, Path], tmp_path: Path, tied: bool
) -> None:
    base = tmp_path / "base"
    config = transformers.AutoConfig.from_pretrained(tiny["qwen2"], tie_word_embeddings=tied)
    torch.manual_seed(0)
    whole = transformers.AutoModelForCausalLM.from_config(config)
    whole.save_pretrained(base)
    transformers.AutoTokenizer.from_pretrained(tiny["qwen2"]).save_pretrained(base)
    found = merged(base, embedder_adapter(base, tmp_path / "adapter"), tmp_path / "merged")
    assert found.drift < 1e-5 < found.change
    assert read_reranker_config(tmp_path / "merged").kind == "yes_no"
    again, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "merged", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert torch.equal(again.lm_head.weight, whole.lm_head.weight)


@pytest.mark.slow
def test_an_embedder_of_an_encoder_keeps_the_pooler(tiny: dict[str, Path], tmp_path: Path) -> None:
    base = make("bert", transformers.AutoModel, tmp_path / "base", tiny["bert"], pad_token_id=0)
    found = merged(base, embedder_adapter(base, tmp_path / "adapter"), tmp_path / "merged")
    assert found.drift < 1e-5 < found.change
    before, after = (
        load_file(folder / "model.safetensors") for folder in (base, tmp_path / "merged")
    )
    assert before.keys() == after.keys()
    assert torch.equal(before["pooler.dense.weight"], after["pooler.dense.weight"])
