"""The memory model: what a model needs on GPUs, on the host and on disk, counted before it is loaded.

Plans call `estimate_inference` and `estimate_training`. They add up weights, gradients, optimizer states, activations,
the KV cache, logits, and constants that were measured (`benchmarks/limits/memory.py`). Both return None for an
architecture that does not run on the meta device, such as Mamba.

`measure` builds the model on PyTorch's meta device. The same forward and backward passes run there as in the job, and
`_LiveBytes` follows which tensors are alive. The count therefore follows the model's code (grouped queries, tied heads,
windows). If all layers are equal, passes of four and of two layers tell what a layer adds.
"""

import warnings
import weakref
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ratchet.errors import ModelError
from ratchet.models.adapters import lora
from ratchet.models.devices import resolve_dtype
from ratchet.models.loading import train_in_float32, turn_off_dropout
from ratchet.models.meta.meta_device import Kind, build_on_meta, find_equal_layers, load_config
from ratchet.models.model_files import read_main_dtype
from ratchet.models.pass_size import LIBRARIES

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight in 4 bits: the code, a byte for each block of 64, and a float32 for 256 of those (QLoRA)."""
CUDA = 1.0e9
"""Bytes of GPU memory for the CUDA context, its libraries, and fragmentation."""
BUCKET = 5e8  # number of weights whose gradients are summed at a time, as in `ratchet.models.engine.start_engine`


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
    head: int
    """Number of weights of the head of a causal language model; 0 for others."""
    largest: int
    """Number of weights of the largest linear layer."""
    cache: int
    """Bytes of a token's keys and values in generation."""
    width: int
    """Dimensions of the hidden states."""
    layers: int
    itemsize: int
    """Bytes of a weight that is not quantized."""


def estimate_inference(
    folder: Path,
    kind: Kind,
    config: Any,
    gpus: float,
    *,
    rows: int,
    length: int,
    has_adapter: bool,
    kept: int = 0,
) -> dict[str, float] | None:
    """Return the GB that a worker needs to run a model: `gpu_memory`, and `memory` of the host. Nothing is trained.

    config: see `InferenceConfig`. gpus: of a worker. rows, length: size of a forward pass, in tokens. has_adapter: an
    adapter is loaded too. kept: number of tokens whose keys and values are cached in generation.
    """
    plain = config.quantization == "none"
    one = _measure(folder, kind, config, gpus, rows=rows, length=length)
    if one is None:
        return None
    working = one.peak
    if kept:
        working += kept * one.cache + 3 * 4 * rows * one.head // one.width
    loaded = one.loaded
    weights: float = one.weights
    if has_adapter and plain:
        working = max(
            working, 8 * one.largest
        )  # a layer and its change in float32, when it is merged
        if read_main_dtype(folder) == "float32":  # rounded after merging
            loaded *= 4 // one.itemsize
            weights *= 4 // one.itemsize
    if not gpus:
        return _to_gigabytes(0.0, LIBRARIES + max(loaded, one.loaded + working))
    loading = 0
    if (
        gpus > 1
    ):  # the layers are split over the GPUs, after they were loaded into the memory of the host
        weights *= 1 / gpus + 1.25 / one.layers
        loading = loaded if plain else 0
    elif kind == "classifier" and plain:
        loading = loaded
    return _to_gigabytes(CUDA + weights + working, LIBRARIES + CUDA + loading)


def estimate_training(
    folder: Path,
    kind: Kind,
    config: Any,
    gpus: float,
    workers: int,
    *,
    rows: int,
    length: int,
    vectors: int = 0,
    labels: int = 0,
    teacher: Path | None = None,
) -> dict[str, float] | None:
    """Return the GB that a finetuning worker needs: `gpu_memory`, `memory` (of the host), and `disk` of the whole step.

    config: see `FinetuneConfig`. gpus: of a worker. rows, length: texts whose activations a worker keeps at a time.
    vectors: number of embeddings that a training step keeps. labels: number of tokens whose logits are kept. teacher: a
    model that runs beside the trained one, without gradients and not quantized.
    """
    full = config.method == "full"
    one = _measure(
        folder,
        kind,
        config,
        gpus,
        rows=rows,
        length=length,
        # With method=full the gradients of all weights, which are counted below, would hide the activations.
        lora_r=1 if full else config.lora_r,
        target_modules="all-linear" if full else config.target_modules,
        gradient_checkpointing=config.gradient_checkpointing,
        eager=not gpus,
    )
    if one is None:
        return None
    trained = one.trained
    model = 4 * trained
    if full:
        trained = one.weights // one.itemsize
        model = one.weights
    # Three checkpoints, one of them being written: moments and master weights, the weights, and the best model of each.
    disk = 3 * (12 * trained + 2 * model)
    if config.keeps_all:  # the models of all evaluations, in the work folder and in the result
        disk += 2 * model * (len(config.kept_steps) or config.epochs)

    # Number of workers over which ZeRO divides states (from stage 1 on), gradients (2) and weights (3).
    shards = dict.fromkeys((1, 2, 3), 1)
    for stage in range(1, config.shard_stage + 1):
        shards[stage] = workers
    states = 12 * trained / shards[1]  # float32: weights and two moments
    # Gradients in float32, the copy that Adam reads, and 6 bytes for a bucket that is summed and for temporaries.
    gradients = trained * (4 / shards[2] + (4 + 6) / shards[3])
    # On CPUs the file of a base in 4 bits stays mapped into memory.
    weights = (one.weights if gpus else one.loaded) / shards[3]
    held = weights + gradients + (0 if full else model)
    peak = one.peak
    if teacher is not None:
        plain = replace(config, quantization="none")
        other = _measure(teacher, kind, plain, gpus, rows=rows, length=length)
        if other is None:
            return None
        held += other.weights
        peak = max(peak, other.peak)  # the teacher runs before the trained model
    held += peak + 12 * vectors * one.width + 12 * labels * (one.head // one.width)
    saved = 0
    if config.shard_stage == 3:
        # Not sharded: the layer that runs and the next one, which is prefetched, or the head and its gradient; and the
        # gradients of a bucket until they are summed, in several copies.
        held += max(8 * one.largest, (1 + full) * one.itemsize * one.head)
        held += (5 * one.itemsize if full else 8) * min(BUCKET, trained)
        saved = full * model  # the first worker saves the whole model
    if not gpus:
        return _to_gigabytes(0.0, LIBRARIES + states + max(held, weights + saved), disk)
    offloaded = {"none": 0.0, "optimizer": states, "parameters": states + weights}[config.offload]
    loading = 0
    if config.quantization == "none" and kind == "classifier":
        loading = one.weights  # others go from the file to the GPU
    host = LIBRARIES + CUDA + max(offloaded + saved, loading)
    return _to_gigabytes(CUDA + held + states - offloaded, host, disk)


def _measure(
    folder: Path, kind: Kind, config: Any, gpus: float, **options: Any
) -> Footprint | None:
    """Return the footprint of a model, by default in bfloat16 on GPUs; None for an architecture that does not run on
    the meta device."""
    dtype = "bfloat16" if gpus and config.dtype == "auto" else config.dtype
    with suppress(
        AttributeError, KeyError, NotImplementedError, RuntimeError, ValueError, ModelError
    ):
        return measure(folder, kind, dtype=dtype, quantization=config.quantization, **options)
    return None


def _to_gigabytes(gpu: float, host: float, disk: float = 0.0) -> dict[str, float]:
    sizes = {"gpu_memory": gpu, "memory": host, "disk": disk}
    return {name: round(size / 1e9, 3) for name, size in sizes.items()}


@lru_cache(maxsize=128)
def measure(
    folder: Path,
    kind: Kind,
    *,
    dtype: str,
    rows: int,
    length: int,
    lora_r: int = 0,
    target_modules: str = "all-linear",
    gradient_checkpointing: bool = False,
    quantization: str = "none",
    eager: bool = False,
) -> Footprint:
    """Count a model folder's weights, and a pass over `rows` texts of `length` tokens. Only config.json is read.

    lora_r: rank of an adapter that is trained: the pass has a backward pass too. eager: attention with its matrix, as
    in training on CPUs.
    """
    training = lora_r > 0
    config = load_config(folder, kind)
    turn_off_dropout(config)
    config._attn_implementation = "eager" if eager else "footprint"
    compute = resolve_dtype(dtype, torch.device("cpu"))
    model = build_on_meta(config, kind, compute)
    model.tie_weights()
    blocks = {}
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            blocks[id(layer.weight)] = layer.weight.numel()
    head = 0
    if kind == "causal":
        head = blocks.pop(id(model.get_output_embeddings().weight), 0)
    largest = max(blocks.values(), default=0)
    weights = loaded = sum(weight.nbytes for weight in model.parameters())
    temporary = 0
    if quantization == "nf4":
        weights -= int(sum(blocks.values()) * (compute.itemsize - NF4_BYTES))
        loaded += weights
        temporary = 2 * largest  # a layer in bfloat16
    layers = find_equal_layers(model, target_modules)
    depth = len(layers)
    del layers[4:]
    if training:
        model = lora.attach(model, lora_r=lora_r, lora_alpha=1, target_modules=target_modules)
        train_in_float32(model)
        if gradient_checkpointing:
            options = {"use_reentrant": False, "preserve_rng_state": False}
            with warnings.catch_warnings(action="ignore"):
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
            model.enable_input_require_grads()
    model.train(training)
    trained, peak = _run(model, rows, length, training=training)
    if depth > 4:  # each layer adds as much as the one before
        del layers[2:]
        fewer_trained, lower_peak = _run(model, rows, length, training=training)
        trained += (depth - 4) * (trained - fewer_trained) // 2
        peak += (depth - 4) * (peak - lower_peak) // 2
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return Footprint(
        weights=weights,
        loaded=loaded,
        peak=peak + temporary,
        trained=trained,
        head=head,
        largest=largest,
        cache=2 * text.num_hidden_layers * heads * size * compute.itemsize,
        width=text.hidden_size,
        layers=text.num_hidden_layers,
        itemsize=compute.itemsize,
    )


def _run(model: Any, rows: int, length: int, *, training: bool) -> tuple[int, int]:
    """Return the number of trained weights, and the largest number of bytes of live tensors beside the model's own in a
    pass of the layers."""
    model.zero_grad()
    plain = model.get_base_model() if training else model
    backbone = getattr(plain, "base_model", plain)
    model.config.use_cache = False
    ids_BL = torch.zeros((rows, length), dtype=torch.int64, device="meta")
    live = _LiveBytes(model)
    with live, torch.set_grad_enabled(training):
        hidden_BLD = backbone(input_ids=ids_BL).last_hidden_state
        if training:
            hidden_BLD.float().sum().backward()
    trained = gradients = 0
    for weight in model.parameters():
        if training and weight.requires_grad:
            trained += weight.numel()
        if weight.grad is not None:
            gradients += weight.grad.nbytes
    # Gradients are counted with the optimizer, where they are kept in float32.
    return trained, live.peak - gradients


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
