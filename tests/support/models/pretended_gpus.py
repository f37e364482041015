"""Two simulated GPUs with real results: their tensors are computed on the CPU, and operations on tensors of different
devices fail, as on GPUs. Use it in a process of its own, since PyTorch allows only one such backend.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretended"
COPIES = {"aten::_to_copy", "aten::to", "aten::copy_"}
INDEXING = {"aten::index", "aten::index_put_"}
"""Operations that also take places on the CPU."""


class Placed(torch.Tensor):
    """A tensor on a pretended GPU."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, real: torch.Tensor, device: torch.device) -> Placed:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            real.shape,
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            device=device,
        )
        made.held = real
        return made

    def tolist(self) -> list[Any]:
        return list(self.cpu().tolist())  # which PyTorch refuses for subclasses

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Factories(TorchDispatchMode):
    """Also sees what makes tensors, and what copies them from the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func._schema.name
    if name == "aten::_fused_sdp_choice":
        return 0  # by hand: the fused kernels are those of a device
    if name == "prim::device":
        return args[0].device
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    placed = {one.device for one in given if isinstance(one, Placed)}
    met = placed | {one.device for one in given if not isinstance(one, Placed) and one.ndim}
    if len(placed if name in INDEXING else met) > 1 and name not in COPIES:
        raise RuntimeError(
            f"{name}: expected all tensors to be on the same device, found {sorted(map(str, met))}"
        )
    named = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.device)]
    device = (
        args[0].device
        if name == "aten::copy_"
        else next(iter([*named, *placed]), torch.device("cpu"))
    )
    wrappers = {
        id(one.held): one for one in given if isinstance(one, Placed) and one.device == device
    }

    def unwrap(one: Any) -> Any:
        return torch.device("cpu") if isinstance(one, torch.device) else getattr(one, "held", one)

    def wrap(one: Any) -> Any:
        if not isinstance(one, torch.Tensor) or device.type != NAME:
            return one
        return wrappers[id(one)] if id(one) in wrappers else Placed(one, device)  # in place, or new

    args, kwargs = tree_map(unwrap, (args, kwargs))
    return tree_map(wrap, func(*args, **kwargs))


_setup_privateuseone_for_python_backend(NAME)
torch._C._set_only_lift_cpu_tensors(True)


def pretended_gpus() -> TorchDispatchMode:
    """Context manager within which the devices `pretended:0` and `pretended:1` exist."""
    return _Factories()
