"""Linear layers for inference in bfloat16 on CPUs, with weights in the layout of oneDNN's kernels.

torch rearranges the weight in every call of a linear layer. Here that is done once, and the activation that follows
works on the float32 sums of the product. `torch.compile` makes the same calls, after half a minute of compilation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import GELUActivation, SiLUActivation

from ratchet.models.devices import multiplies_bfloat16
from ratchet.models.pass_size import CPU_TOKENS

FUSED = (("dense", "intermediate_act_fn"), ("gate_proj", "act_fn"))
"""The attributes of transformers' modules for a linear layer, and for the activation of its output."""

ACTIVATIONS: dict[type, str] = {GELUActivation: "gelu", SiLUActivation: "swish", nn.SiLU: "swish"}
"""Activation module -> its name in oneDNN."""


class PackedLinear(nn.Module):
    """A linear layer in bfloat16, [..., D] -> [..., E], and an activation."""

    def __init__(self, linear: nn.Linear, activation: str = "none") -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), CPU_TOKENS)
        self.bias = linear.bias
        self.activation = activation

    def forward(self, x: Tensor) -> Any:
        # The last argument: the exact GELU, not the one by tanh.
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, self.activation, [], "none")


def pack_linear_layers(model: Any) -> None:
    """Replace the linear layers in bfloat16 on a CPU that multiplies it natively, except the head. Such a model cannot
    be saved or trained."""
    place = next(model.parameters()).device
    head = model.get_output_embeddings()
    if place.type != "cpu" or not multiplies_bfloat16(place):
        return
    for module in list(model.modules()):
        fused = {}
        for linear, name in FUSED:
            activation = ACTIVATIONS.get(type(getattr(module, name, None)))
            if activation and _is_packable(getattr(module, linear, None)):
                fused[linear] = activation
                setattr(module, name, nn.Identity())
        for name, layer in module.named_children():
            if layer is not head and _is_packable(layer):
                setattr(module, name, PackedLinear(layer, fused.get(name, "none")))


def _is_packable(layer: Any) -> bool:
    return type(layer) is nn.Linear and layer.weight.dtype == torch.bfloat16
