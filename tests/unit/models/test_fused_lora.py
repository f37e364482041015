"""Fused LoRA layers against PEFT's own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from ratchet.models.adapters.fused_lora import fuse


def adapted(dtype: torch.dtype = torch.float32, bias: bool = True, **config: Any) -> Any:
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(12, 20, bias=bias), torch.nn.GELU(), torch.nn.Linear(20, 7, bias=bias))
    plain = plain.to(dtype)
    settings = {"r": 4, "lora_alpha": 6, "target_modules": ["0", "2"]} | config
    model = get_peft_model(plain, LoraConfig(**settings), autocast_adapter_dtype=False)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    return model


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 12), (2, 3, 12)])
def test_values_and_gradients_are_those_of_peft(bias: bool, shape: tuple[int, ...]) -> None:
    model = adapted(torch.float64, bias)
    fused = copy.deepcopy(model)
    assert fuse(fused) == 2
    outcomes = []
    for one in (model, fused):
        x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        y = one(x) + one(x.flip(0))  # twice in one graph, as micro batches do
        (y**2).sum().backward()
        outcomes.append([y, x.grad, *(p.grad for p in one.parameters() if p.requires_grad)])
    assert len(outcomes[0]) == 6
    for expected, found in zip(*outcomes, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_gradients_agree_with_finite_differences() -> None:
    from ratchet.models.adapters.fused_lora import _Fused

    shapes = [(3, 4), (5, 4), (5,), (2, 4), (5, 2)]
    values = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    for i in (0, 3, 4):
        values[i].requires_grad_()
    assert torch.autograd.gradcheck(lambda *given: _Fused.apply(*given, 1.5), values)


def test_names_and_weights_stay_and_an_input_without_gradient_gets_none() -> None:
    model = adapted()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fuse(model)
    x = torch.randn(3, 12)
    model(x).sum().backward()
    assert x.grad is None
    assert {name: value.shape for name, value in model.state_dict().items()} == {n: v.shape for n, v in before.items()}


@pytest.mark.parametrize("config", [{"lora_dropout": 0.1}, {"use_dora": True}, {"lora_bias": True}])
def test_what_is_not_plain_lora_is_left_to_peft(config: dict[str, Any]) -> None:
    model = adapted(**config)
    x = torch.randn(3, 12)
    expected = model.eval()(x)
    assert fuse(model) == 0
    torch.testing.assert_close(model(x), expected)
