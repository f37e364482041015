"""Attention and padding, for each architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import ALL_ARCHITECTURES, make, mark_rare

from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import EncodingConfig
from ratchet.models.loading import eval_mode, open_model

# They make models of real architectures.
pytestmark = pytest.mark.slow

IDS = torch.arange(3, 15)[None]


@pytest.fixture(scope="module", params=mark_rare(ALL_ARCHITECTURES))
def folder(
    request: pytest.FixtureRequest, tiny: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    name = request.param
    return make(name, transformers.AutoModel, tmp_path_factory.mktemp(name), tiny["qwen2"])


def test_attention_of_training_on_gpus(folder: Path) -> None:
    """The device `meta` takes the path of GPUs: weights without data, and the same choice of the attention."""
    model, _ = open_model(
        transformers.AutoModel, folder, None, dtype="float32", device="meta", training=True
    )
    assert next(model.parameters()).is_meta
    assert model.config._attn_implementation == ("sdpa" if model._supports_sdpa else "eager")


def test_training_attention_on_cpus(folder: Path) -> None:
    options = {"dtype": "float32", "device": "cpu"}
    model, _ = open_model(transformers.AutoModel, folder, None, training=True, **options)
    assert model.config._attn_implementation == "eager"
    model(input_ids=IDS).last_hidden_state.square().sum().backward()
    assert all(
        bool(one.grad.isfinite().all()) for one in model.parameters() if one.grad is not None
    )
    expected = open_model(transformers.AutoModel, folder, None, **options)[0](
        input_ids=IDS
    ).last_hidden_state
    with eval_mode(model), torch.no_grad():
        found = model(input_ids=IDS).last_hidden_state
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "last_token"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_a_batch_changes_no_vector(folder: Path, pooling: Any, side: Any) -> None:
    """Against each text alone, in plain transformers."""
    encoding_config = EncodingConfig(pooling, max_length=200, padding_side=side)
    ours = encoder.load(folder, dtype="float32", device="cpu", encoding_config=encoding_config)
    with torch.no_grad():
        for parameter in ours.model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4)  # as initialised, attention hardly matters
        texts = ["w1", "w2w3w4 " * 9, "w5 w6w7", "w8 " * 20]
        found = torch.from_numpy(ours.encode(texts, "passage"))
        for text, vector_D in zip(texts, found, strict=True):
            hidden_LD = ours.model(
                input_ids=torch.tensor(ours.tokenize([text], "passage"))
            ).last_hidden_state[0]
            expected_D = hidden_LD[-1] if pooling == "last_token" else hidden_LD.mean(0)
            torch.testing.assert_close(
                vector_D, torch.nn.functional.normalize(expected_D, dim=0), atol=2e-4, rtol=0
            )
