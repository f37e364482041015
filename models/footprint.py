"""The memory and the arithmetic of a model, counted before it is loaded.

The model is built from its config.json on PyTorch's meta device, where tensors have a shape and a dtype but no data.
The same forward and backward passes run there as in the job, and `_LiveBytes` follows which tensors are alive. The
count therefore follows the model's code (grouped queries, tied heads, windows). A 7B model takes a few seconds.
"""

from __future__ import annotations

import warnings
import weakref
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers.initialization import no_init_weights
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ratchet.models.adapters import lora
from ratchet.models.loading import silence_transformers, train_in_float32, turn_off_dropout

Kind = Literal["backbone", "causal", "classifier"]
"""A model without a head, a causal language model, or a sequence classifier with one output."""
CLASSES = {
    "backbone": transformers.AutoModel,
    "causal": transformers.AutoModelForCausalLM,
    "classifier": transformers.AutoModelForSequenceClassification,
}
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight in 4 bits: the code, a byte for each block of 64, and a float32 for 256 of those (QLoRA)."""


@dataclass(frozen=True)
class Footprint:
    """Sizes in bytes, and numbers of weights."""

    weights: int
    """Bytes of the model."""
    loaded: int
    """Largest number of bytes of weights on the CPU while it is loaded there."""
    peak: int
    """Largest number of bytes beside the weights in a forward pass, or in a forward and a backward pass."""
    trained: int
    """Number of weights that are trained."""
    multiplied: int
    """Number of weights of linear layers, without the head: the multiplications per token."""
    head: int
    """Number of weights of the head of a causal language model; 0 for others."""
    largest: int
    """Number of weights of the largest linear layer."""
    cache: int
    """Bytes of a token's keys and values in generation."""
    width: int
    """Dimensions of the hidden states."""
    layers: int


@lru_cache(maxsize=128)
def measure(
    folder: Path,
    kind: Kind,
    *,
    dtype: str,
    rows: int,
    length: int,
    training: bool = False,
    lora_r: int = 0,
    target_modules: str = "all-linear",
    gradient_checkpointing: bool = False,
    quantization: str = "none",
    eager: bool = False,
) -> Footprint:
    """Count a model folder's weights, and a pass over `rows` texts of `length` tokens. Only config.json is read.

    training: the pass has a backward pass too. lora_r: rank of the adapter; 0 trains all weights. eager: attention
    with its matrix, as in training on CPUs.
    """
    config = transformers.AutoConfig.from_pretrained(folder)
    if kind == "classifier":
        config.num_labels = 1
    turn_off_dropout(config)
    config._attn_implementation = "eager" if eager else "footprint"
    compute = getattr(torch, dtype)
    with silence_transformers(), torch.device("meta"), no_init_weights():
        model = CLASSES[kind].from_config(config, dtype=compute)
        model.tie_weights()
    blocks = {}
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            blocks[id(layer.weight)] = layer.weight.numel()
    head = 0
    if kind == "causal":
        head = blocks.pop(id(model.get_output_embeddings().weight), 0)
    multiplied = sum(blocks.values())
    largest = max(blocks.values(), default=0)
    weights = loaded = sum(weight.nbytes for weight in model.parameters())
    temporary = 0
    if quantization == "nf4":
        weights -= int(multiplied * (compute.itemsize - NF4_BYTES))
        loaded += weights
        temporary = 2 * largest  # a layer in bfloat16
    if training and lora_r:
        names = lora.split_names(target_modules)
        model = lora.attach(
            model, lora_r=lora_r, lora_alpha=1, lora_dropout=0.0, target_modules=names, seed=0
        )
        train_in_float32(model)
    if training and gradient_checkpointing:
        options = {"use_reentrant": False, "preserve_rng_state": False}
        with warnings.catch_warnings(action="ignore"):
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
        model.enable_input_require_grads()
    model.train(training)
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    trained = 0
    if training:
        trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    return Footprint(
        weights=weights,
        loaded=loaded,
        peak=_run(model, rows, length, training=training) + temporary,
        trained=trained,
        multiplied=multiplied,
        head=head,
        largest=largest,
        cache=2 * text.num_hidden_layers * heads * size * compute.itemsize,
        width=text.hidden_size,
        layers=text.num_hidden_layers,
    )


def _run(model: Any, rows: int, length: int, *, training: bool) -> int:
    """Return the largest number of bytes of live tensors beside the model's own in a pass of the layers."""
    plain = model
    if hasattr(model, "get_base_model"):
        plain = model.get_base_model()
    backbone = getattr(plain, "base_model", plain)
    model.config.use_cache = False
    ids_BL = torch.zeros((rows, length), dtype=torch.int64, device="meta")
    live = _LiveBytes(model)
    with live, torch.set_grad_enabled(training):
        hidden_BLD = backbone(input_ids=ids_BL).last_hidden_state
        if training:
            hidden_BLD.float().sum().backward()
    # Gradients are counted with the optimizer, where they are kept in float32.
    return live.peak - sum(
        weight.grad.nbytes for weight in model.parameters() if weight.grad is not None
    )


class _LiveBytes(TorchDispatchMode):
    """Counter of the bytes of live tensors that operations make. `peak`: the largest count."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.known = [
            tensor.untyped_storage() for tensor in (*model.parameters(), *model.buffers())
        ]
        self.storages = weakref.WeakSet[Any](self.known)
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return True  # what masks ask for: whether no text is padded, and none is packed
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, Tensor):
                self._add(value.untyped_storage())
        return result

    def _add(self, storage: Any) -> None:
        if storage in self.storages:
            return
        size = storage.nbytes()
        self.storages.add(storage)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._remove, size)

    def _remove(self, size: int) -> None:
        self.now -= size


class _Attention(torch.autograd.Function):
    """The memory of a fused attention kernel: it keeps its operands, its output and one number per row."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = torch.empty_like(query)
        ctx.save_for_backward(
            query, key, value, output, query.new_empty(query.shape[:-1], dtype=torch.float32)
        )
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        query, key, value, *_ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> tuple[Tensor, None]:
    """As the attention functions of transformers: [B, H, L, D] to [B, L, H, D]."""
    return _Attention.apply(query, key, value).transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register("footprint", _attend)
