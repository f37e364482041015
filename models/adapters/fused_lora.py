"""LoRA layers whose base is frozen, computed with fewer passes over memory than PEFT's own: same numbers, same weights.

Legend: T tokens (all leading axes together), I inputs, O outputs, R rank.

    y = x W' + b + s (x A') B'        dx = dy W + s (dy B) A        dA = s (dy B)' x        dB = s dy' (x A')

The low-rank products are added to the large ones in place by the multiplication itself, and scaling touches
only [T, R]. On two CPU cores a MiniLM step takes about 5% less time than with PEFT's modules (benchmarks/finetune.py).
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from peft.tuners.lora import Linear
from torch import Tensor


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None, a_RI: Tensor, b_OR: Tensor, scaling: float
    ) -> Tensor:
        x_TI = x.reshape(-1, x.shape[-1])
        y_TO = x_TI @ weight_OI.T if bias_O is None else torch.addmm(bias_O, x_TI, weight_OI.T)
        low_TR = (x_TI @ a_RI.T).mul_(scaling)
        y_TO.addmm_(low_TR, b_OR.T)
        ctx.save_for_backward(x_TI, low_TR, weight_OI, a_RI, b_OR)
        ctx.scaling = scaling
        return y_TO.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, Tensor, Tensor, None]:
        x_TI, low_TR, weight_OI, a_RI, b_OR = ctx.saved_tensors
        dy = gradients[0]
        dy_TO = dy.reshape(-1, dy.shape[-1])
        dlow_TR = (dy_TO @ b_OR).mul_(ctx.scaling)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = (dy_TO @ weight_OI).addmm_(dlow_TR, a_RI).view(*dy.shape[:-1], -1)
        return dx, None, None, dlow_TR.T @ x_TI, dy_TO.T @ low_TR, None


def fuse(model: Any, name: str = "default") -> int:
    """Makes the LoRA layers of a PEFT model compute fused, where that is possible; returns how many.

    Left alone: layers with dropout, DoRA or another variant, a trainable, quantised or merged base, or another dtype
    than the adapter's. Weights, names and what is saved stay as they are.
    """
    done = 0
    for layer in model.modules():
        if isinstance(layer, Linear) and _plain(layer, name):
            layer.forward = MethodType(_forward, layer)  # type: ignore[method-assign]
            layer._fused = name  # type: ignore[assignment]
            done += 1
    return done


def _plain(layer: Any, name: str) -> bool:
    base = layer.base_layer
    return (
        type(base) is torch.nn.Linear
        and layer.active_adapters == [name]
        and name in layer.lora_A
        and not layer.merged
        and not layer.use_dora.get(name, False)
        and not layer.lora_variant
        and not layer.fan_in_fan_out
        and isinstance(layer.lora_dropout[name], torch.nn.Identity)
        and layer.lora_A[name].bias is None
        and layer.lora_B[name].bias is None
        and not base.weight.requires_grad
        and (base.bias is None or not base.bias.requires_grad)
        and base.weight.dtype == layer.lora_A[name].weight.dtype == layer.lora_B[name].weight.dtype
    )


def _forward(layer: Any, x: Tensor, *_: Any, **__: Any) -> Tensor:
    base, name = layer.base_layer, layer._fused
    a_RI, b_OR = layer.lora_A[name].weight, layer.lora_B[name].weight
    return _Fused.apply(x, base.weight, base.bias, a_RI, b_OR, layer.scaling[name])
