"""Linear layers with prepacked weights for inference on CPUs, fused with GELU.

`torch.nn.functional.linear` reorders the weights at each call, writes the bias to the output first, and GELU reads and
writes the widest activations once more. oneDNN does all three in one call over weights that are reordered once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

LIMIT_BYTES = 4 << 30
"""Prepacked weights are a second copy, so larger models are left unchanged."""


class PrepackedLinear(nn.Linear):
    """A linear layer, with exact GELU if `gelu`, that shares the parameters of the layer it replaces.

    With gradients enabled it computes as before; else it uses the prepacked weights, which are renewed when the
    parameters change.
    """

    def __init__(self, linear: nn.Linear, *, gelu: bool) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.gelu = gelu
        self._prepacked: Tensor | None = None
        self._prepacked_from: tuple[int, int] | None = None

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled() or input.dtype != self.weight.dtype or torch.is_autocast_enabled("cpu"):
            output = functional.linear(input, self.weight, self.bias)
            return functional.gelu(output) if self.gelu else output
        # In-place updates raise the version; a move or cast changes the address.
        source = (self.weight.data_ptr(), self.weight._version)
        if self._prepacked is None or source != self._prepacked_from:
            self._prepacked, self._prepacked_from = (
                torch.ops.mkldnn._reorder_linear_weight(self.weight.detach()),
                source,
            )
        after, kind = ("gelu", "none") if self.gelu else ("none", "")  # "none": the exact GELU, not tanh's
        return torch.ops.mkldnn._linear_pointwise(input, self._prepacked, self.bias, after, [], kind)


def prepack(model: nn.Module) -> int:
    """Replace the model's linear layers in place. Returns how many: 0 if machine, dtype or size are not supported.
    Names, parameters and `state_dict` stay the same."""
    linears = [module for module in model.modules() if type(module) is nn.Linear]
    if not linears or not _is_supported(linears[0].weight):
        return 0
    if sum(linear.weight.nbytes for linear in linears) > LIMIT_BYTES:
        return 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                # BERT-like models compute `intermediate_act_fn(dense(x))`: one layer, then its activation.
                fused = name == "dense" and _is_exact_gelu(getattr(parent, "intermediate_act_fn", None))
                setattr(parent, name, PrepackedLinear(child, gelu=fused))
                if fused:
                    setattr(parent, "intermediate_act_fn", nn.Identity())  # noqa: B010 - mypy knows no such attribute
    return len(linears)


def _is_exact_gelu(activation: Any) -> bool:
    """Whether a module computes the exact GELU, tested by its values: libraries have several classes for it."""
    if not isinstance(activation, nn.Module) or next(activation.parameters(), None) is not None:
        return False
    probe = torch.linspace(-3, 3, 7)
    return torch.equal(activation(probe), functional.gelu(probe))


def _is_supported(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
