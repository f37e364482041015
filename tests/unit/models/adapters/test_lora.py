from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import PeftModel
from torch import Tensor

from ratchet.errors import ModelError
from ratchet.models.adapters import lora
from ratchet.models.decoder import decoder
from ratchet.models.embedder import encoder

IDS_BL = torch.arange(3, 33).reshape(2, 15)


def body(folder: Path) -> Any:
    return transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()


def attached(folder: Path, *, seed: int = 0, trained: bool = False) -> PeftModel:
    model = lora.attach(
        body(folder),
        lora_r=4,
        lora_alpha=8,
        lora_dropout=0.0,
        target_modules="all-linear",
        seed=seed,
    ).eval()
    if trained:
        torch.manual_seed(5)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
    return model


@torch.no_grad()
def states(model: Any) -> Tensor:
    return model(input_ids=IDS_BL).last_hidden_state


def adapter(model: Any) -> dict[str, Tensor]:
    return {
        name: parameter.detach() for name, parameter in model.named_parameters() if "lora_" in name
    }


def test_fresh_adapter_depends_on_its_seed(tiny: dict[str, Path]) -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    one = attached(tiny["bert"])
    assert torch.equal(torch.rand(3), expected)  # the program's own random numbers go on
    torch.manual_seed(12)
    again, other = attached(tiny["bert"]), attached(tiny["bert"], seed=1)
    assert all(torch.equal(adapter(one)[name], tensor) for name, tensor in adapter(again).items())
    assert not all(
        torch.equal(adapter(one)[name], tensor) for name, tensor in adapter(other).items()
    )
    assert torch.equal(states(one), states(body(tiny["bert"])))
    trainable = {name for name, parameter in one.named_parameters() if parameter.requires_grad}
    assert trainable == set(adapter(one))
    assert len(trainable) == 2 * 12  # all linear layers: six in each of two blocks


def test_layers_that_are_not_there_are_refused(tiny: dict[str, Path]) -> None:
    with pytest.raises(ModelError, match="target_modules"):
        lora.attach(
            body(tiny["bert"]),
            lora_r=2,
            lora_alpha=4,
            lora_dropout=0.0,
            target_modules="nothing",
            seed=0,
        )


@pytest.mark.slow
def test_saved_adapters_load_here_and_in_plain_peft(tiny: dict[str, Path], tmp_path: Path) -> None:
    model = attached(tiny["bert"], trained=True)
    lora.save(model, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert (states(model) - states(body(tiny["bert"]))).abs().max() > 0.01
    torch.testing.assert_close(states(lora.load(body(tiny["bert"]), tmp_path)), states(model))
    torch.testing.assert_close(
        states(PeftModel.from_pretrained(body(tiny["bert"]), str(tmp_path))), states(model)
    )
    alone = lora.load(body(tiny["bert"]), tmp_path).merge_and_unload()
    assert not adapter(alone)
    torch.testing.assert_close(states(alone), states(model), atol=1e-5, rtol=1e-5)
    again = lora.load(body(tiny["bert"]), tmp_path, trainable=True)
    assert all(
        parameter.requires_grad for name, parameter in again.named_parameters() if "lora_" in name
    )
    assert not any(
        parameter.requires_grad
        for parameter in lora.load(body(tiny["bert"]), tmp_path).parameters()
    )


@pytest.mark.soak
def test_the_same_adapter_is_the_same_bytes_in_every_process(
    tiny: dict[str, Path], tmp_path: Path
) -> None:
    code = (
        "import sys, transformers; from pathlib import Path; from ratchet.models.adapters import lora;"
        "model = transformers.AutoModel.from_pretrained(sys.argv[1], add_pooling_layer=False);"
        "model = lora.attach(model, lora_r=4, lora_alpha=8, lora_dropout=0.0, target_modules='all-linear', seed=0);"
        "lora.save(model, Path(sys.argv[2]))"
    )
    # This process has another order of sets: its seed is random.
    command = [sys.executable, "-c", code, str(tiny["bert"]), str(tmp_path / "other")]
    other = subprocess.Popen(
        command, cwd=Path(__file__).resolve().parents[4], env={**os.environ, "PYTHONHASHSEED": "1"}
    )
    lora.save(attached(tiny["bert"]), tmp_path / "own")
    assert other.wait(timeout=300) == 0
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "own" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
    assert str(tiny["bert"]) not in (tmp_path / "own/adapter_config.json").read_text()


def test_broken_adapters_are_refused(tiny: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="expected a PEFT folder"):
        lora.load(body(tiny["bert"]), tmp_path)
    model = attached(tiny["bert"])
    lora.save(model, tmp_path / "good")
    wider = transformers.BertConfig.from_pretrained(tiny["bert"], hidden_size=64)
    with pytest.raises(ModelError, match="does not fit the model"):
        lora.load(transformers.BertModel(wider, add_pooling_layer=False), tmp_path / "good")
    with torch.no_grad():
        next(iter(adapter(model).values()))[0] = float("nan")
    with pytest.raises(ModelError, match="not finite"):
        lora.save(model, tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_an_adapter_of_another_kind_of_model_is_refused(
    tiny: dict[str, Path], tmp_path: Path
) -> None:
    """The layers of a causal language model have another prefix than those of an embedder."""
    model = lora.attach(
        encoder.load(tiny["qwen2"], device="cpu", training=True).model,
        lora_r=2,
        lora_alpha=4,
        lora_dropout=0.0,
        target_modules="all-linear",
        seed=0,
    )
    lora.save(model, tmp_path)
    with pytest.raises(ModelError, match=r"does not fit the model \(Found missing adapter keys"):
        decoder.load(tiny["qwen2"], tmp_path, device="cpu")
