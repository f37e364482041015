from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.errors import ModelError
from ratchet.models.adapters import lora
from ratchet.models.batching import batch_by_tokens, pad
from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import EncodingConfig, read_encoding_config
from ratchet.models.loading import turn_off_dropout

REAL = [
    "What is 3 x 2 + 4 - 5?",
    "Adds the denominators when adding fractions",
    "Question: " + "a long one, with brackets ( 1 + 2 ) " * 40,
    "",
    "Ignores the brackets",
]


def one_by_one(folder: Path, rows: list[list[int]], pooling: str, normalize: bool) -> np.ndarray:
    """Without batches and padding, by transformers alone."""
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    out = []
    for row in rows:
        with torch.no_grad():
            hidden_LD = model(input_ids=torch.tensor([row])).last_hidden_state[0]
        vector = {"cls": hidden_LD[0], "mean": hidden_LD.mean(0), "last_token": hidden_LD[-1]}[
            pooling
        ].numpy()
        out.append(vector / np.linalg.norm(vector) if normalize else vector)
    return np.stack(out)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "qwen2", "gpt2"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "last_token"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing(
    tiny: dict[str, Path], texts: list[str], kind: str, pooling: str, side: str
) -> None:
    agreed = EncodingConfig(
        pooling, normalize=pooling == "mean", padding_side=side, add_eos=kind == "gpt2"
    )  # type: ignore[arg-type]
    one = encoder.load(tiny[kind], dtype="float32", encoding_config=agreed)
    rows = one.tokenize(texts, "query")
    assert len(set(map(len, rows))) > 10
    expected = one_by_one(tiny[kind], rows, pooling, agreed.normalize)
    np.testing.assert_allclose(
        one.encode(texts, "query", batch_tokens=200), expected, atol=2e-4, rtol=1e-4
    )
    # Both sides of the branch that leaves the mask out.
    ids_BL, mask_BL = pad(one.tokenize(texts[:6], "query"), 0, side)
    assert not mask_BL.all()
    np.testing.assert_allclose(
        one.embed(ids_BL, mask_BL).detach(), expected[:6], atol=2e-4, rtol=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "tolerance", "given"),
    [
        ("float32", 1e-5, REAL),
        ("bfloat16", 1e-2, [text for text in REAL if len(text) < 100]),
    ],  # slow on many CPUs
)
def test_minilm_gives_sentence_transformers_vectors(
    minilm: Path, dtype: str, tolerance: float, given: list[str]
) -> None:
    from sentence_transformers import SentenceTransformer

    peer = SentenceTransformer(
        str(minilm), device="cpu", model_kwargs={"dtype": getattr(torch, dtype)}
    )
    expected = peer.encode(given, convert_to_tensor=True).float().numpy()
    one = encoder.load(minilm, dtype=dtype, device="cpu")
    assert (one.dim, one.dtype, one.encoding_config.max_length) == (384, getattr(torch, dtype), 256)
    found = one.encode(given, "query")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=tolerance)
    assert np.array_equal(found, one.encode(given, "query"))
    assert np.array_equal(
        found, encoder.load(minilm, dtype=dtype, device="cpu").encode(given, "query")
    )


@pytest.mark.slow
def test_order_does_not_depend_on_batches_or_windows(
    tiny: dict[str, Path], texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = encoder.load(tiny["bert"], dtype="float32")
    expected = one.encode(texts, "query")
    calls: list[np.ndarray] = []
    monkeypatch.setattr(encoder, "WINDOW", 7)
    for batch_tokens in (1, 64, 4096):
        calls.clear()
        found = one.encode(texts, "query", batch_tokens=batch_tokens, progress=calls.append)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert sorted(np.concatenate(calls)) == sorted(map(len, one.tokenize(texts, "query")))
    assert one.encode([], "query").shape == (0, 32)


def test_tokens_are_cut_ended_and_never_none(tiny: dict[str, Path]) -> None:
    agreed = EncodingConfig("last_token", max_length=5, query_template="w0 {text}", add_eos=True)
    one = encoder.load(tiny["gpt2"], dtype="float32", encoding_config=agreed)
    assert one.tokenize(["w1", "w1 w2 w3 w4 w5 w6"], "query") == [[3, 4, 1], [3, 4, 5, 6, 1]]
    assert one.tokenize(["", "w1"], "passage") == [[1], [4, 1]]
    one = encoder.load(
        tiny["gpt2"], dtype="float32", encoding_config=replace(agreed, add_eos=False)
    )
    assert one.tokenize(["", "w1 w2 w3 w4 w5 w6"], "passage") == [[1], [4, 5, 6, 7, 8]]
    assert np.isfinite(one.encode(["", "w1"], "passage")).all()


def test_training_has_gradients_and_no_dropout(tiny: dict[str, Path]) -> None:
    one = encoder.load(tiny["bert"], dtype="float32", training=True)
    assert one.model.training
    ids_BL, mask_BL = pad(one.tokenize(["w1 w2", "w3 w4 w5"], "query"), 0)
    vectors_BD = one.embed(ids_BL, mask_BL)
    assert torch.equal(vectors_BD, one.embed(ids_BL, mask_BL))
    (vectors_BD[0] @ vectors_BD[1]).backward()
    gradient = one.model.encoder.layer[0].attention.self.query.weight.grad
    assert gradient is not None
    assert gradient.abs().sum() > 0


def test_every_dropout_rate_of_a_config_is_turned_off() -> None:
    for kind in (
        transformers.BertConfig,
        transformers.GPT2Config,
        transformers.DistilBertConfig,
        transformers.T5Config,
    ):
        config = kind()
        turn_off_dropout(config)
        rates = {name: value for name, value in config.to_dict().items() if "drop" in name}
        assert rates
        assert not any(rates.values()), rates
    nested = transformers.LlavaConfig(text_config=transformers.Qwen2Config(attention_dropout=0.5))
    turn_off_dropout(nested)
    assert nested.text_config.attention_dropout == 0


def test_encode_is_without_an_adapters_dropout(tiny: dict[str, Path], texts: list[str]) -> None:
    one = encoder.load(tiny["bert"], dtype="float32", training=True)
    one.model = lora.attach(
        one.model, lora_r=2, lora_alpha=4, lora_dropout=0.5, target_modules="all-linear", seed=0
    )
    for name, parameter in one.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    one.model.train()
    assert np.array_equal(one.encode(texts, "query"), one.encode(texts, "query"))
    assert one.model.training


def test_an_adapter_is_merged_into_the_weights(
    tiny: dict[str, Path], texts: list[str], tmp_path: Path
) -> None:
    kept = encoder.load(tiny["bert"], dtype="float32", training=True)
    plain = kept.encode(texts, "query")
    kept.model = lora.attach(
        kept.model, lora_r=2, lora_alpha=4, lora_dropout=0.0, target_modules="all-linear", seed=0
    )
    torch.manual_seed(3)
    for name, parameter in kept.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    lora.save(kept.model, tmp_path)
    EncodingConfig("cls").write(tmp_path)
    one = encoder.load(tiny["bert"], tmp_path, dtype="float32")
    assert one.encoding_config.pooling == "cls"  # the adapter's, not the base's
    one.encoding_config = kept.encoding_config
    found = one.encode(texts, "query")
    np.testing.assert_allclose(found, kept.encode(texts, "query"), atol=1e-5)
    assert np.abs(found - plain).max() > 0.01


def test_what_is_not_finite_is_named(tiny: dict[str, Path]) -> None:
    one = encoder.load(tiny["bert"], dtype="float32")
    with torch.no_grad():
        one.model.embeddings.word_embeddings.weight[5] = float("inf")
    with pytest.raises(ModelError, match="text 1: not finite"):
        one.encode(["w1", "w2", "w3"], "query")


@given(
    st.lists(st.integers(1, 90), max_size=60),
    st.integers(1, 300),
    st.sampled_from([1, 8]),
    st.sampled_from(["left", "right"]),
)
@settings(deadline=None)
def test_batches_hold_every_row_once_within_the_budget(
    lengths: list[int], batch_tokens: int, multiple: int, side: str
) -> None:
    batches = batch_by_tokens(lengths, batch_tokens, multiple)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    previous = 10**9
    for batch in batches:
        rows = [list(range(1, lengths[i] + 1)) for i in batch]
        ids_BL, mask_BL = pad(rows, 0, side, multiple)
        assert ids_BL.shape[1] % multiple == 0
        assert ids_BL.shape[1] - max(map(len, rows)) < multiple
        assert ids_BL.numel() <= batch_tokens or len(batch) == 1
        assert ids_BL.shape[1] <= previous
        previous = ids_BL.shape[1]
        for row, ids_L, mask_L in zip(rows, ids_BL, mask_BL, strict=True):
            assert ids_L[mask_L.bool()].tolist() == row
            assert ids_L.tolist() == (
                row + [0] * (len(ids_L) - len(row))
                if side == "right"
                else [0] * (len(ids_L) - len(row)) + row
            )


def test_weights_that_are_not_in_the_folder_are_not_made_up(
    tiny: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny["bert"], tmp_path / "deeper")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(ModelError, match=r"encoder.layer.2.*missing"):
        encoder.load(folder)


def test_the_encoding_config_of_a_folder_is_used(minilm: Path) -> None:
    assert encoder.load(minilm, dtype="float32").encoding_config == read_encoding_config(minilm)
