"""Linear layers for inference on CPUs: weights in the layout that the matrix kernels read, GELU in the same pass.

`torch.nn.functional.linear` lays the weights out anew at each call, writes the bias into the output first, and GELU
reads and writes the widest activations once more. oneDNN does the three in one call over weights laid out once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

LIMIT_BYTES = 4 << 30
"""The packed weights are a second copy; models with larger linear layers are left alone."""


class PackedLinear(nn.Linear):
    """A linear layer (and, where `gelu`, the exact GELU after it) that shares the parameters of the one it replaces.

    Where gradients are recorded it computes as ever; elsewhere it uses the packed weights, which follow the parameters.
    """

    def __init__(self, linear: nn.Linear, *, gelu: bool) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.gelu = gelu
        self._packed: Tensor | None = None
        self._packed_from: tuple[int, int] | None = None

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled() or input.dtype != self.weight.dtype or torch.is_autocast_enabled("cpu"):
            output = functional.linear(input, self.weight, self.bias)
            return functional.gelu(output) if self.gelu else output
        # An optimizer's step or load_state_dict raises the version; a move or cast changes the address.
        source = (self.weight.data_ptr(), self.weight._version)
        if self._packed is None or source != self._packed_from:
            self._packed, self._packed_from = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach()), source
        after, kind = ("gelu", "none") if self.gelu else ("none", "")  # "none": the exact GELU, not tanh's
        return torch.ops.mkldnn._linear_pointwise(input, self._packed, self.bias, after, [], kind)


def pack(model: nn.Module) -> int:
    """Replaces the model's linear layers in place; returns how many. 0 where the machine, the dtype or the size do not
    suit. Names, parameters and `state_dict` stay as they are."""
    linears = [module for module in model.modules() if type(module) is nn.Linear]
    if not linears or not _supported(linears[0].weight):
        return 0
    if sum(linear.weight.nbytes for linear in linears) > LIMIT_BYTES:
        return 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                # BERT and its kin compute `intermediate_act_fn(dense(x))`: one layer, then its activation.
                fused = name == "dense" and _is_exact_gelu(getattr(parent, "intermediate_act_fn", None))
                setattr(parent, name, PackedLinear(child, gelu=fused))
                if fused:
                    setattr(parent, "intermediate_act_fn", nn.Identity())  # noqa: B010 - mypy knows no such attribute
    return len(linears)


def _is_exact_gelu(activation: Any) -> bool:
    """By what it computes: libraries have many names for it."""
    if not isinstance(activation, nn.Module) or next(activation.parameters(), None) is not None:
        return False
    probe = torch.linspace(-3, 3, 7)
    return torch.equal(activation(probe), functional.gelu(probe))


def _supported(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
