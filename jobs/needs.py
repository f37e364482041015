"""Estimates, at plan time, of the memory per worker and the disk space of a step that runs a model.

Lengths are the largest ones that the settings allow, so the memory is an upper bound where texts are shorter.
The memory of a forward or backward pass is counted by `ratchet.models.footprint` from config.json. The constants below,
such as the size of the libraries, were measured (`benchmarks/limits/memory.py`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import InputError, ModelError
from ratchet.models.pass_size import CPU_TOKENS, size_passes
from ratchet.orchestrator.job_interface import Needs, Parents, Resources, Result

if TYPE_CHECKING:  # it imports torch
    from ratchet.models.footprint import Footprint

LIBRARIES = 0.62e9
"""Bytes of a worker without a model: Python, torch, transformers and Ray; in training also PEFT and DeepSpeed."""
TRAINED = 6
"""Bytes per trained weight for the bucket in which gradients are summed over workers, and for temporaries of Adam."""
BUCKET = 5e8  # number of weights whose gradients are summed at a time, as in `ratchet.models.engine.start_engine`
CUDA = 1.0e9
"""Bytes of GPU memory for the CUDA context, its libraries, and fragmentation."""
TEMPLATE = 64
"""Tokens allowed for a template, a task or a prompt."""
SMALL = 5 * 10**8
"""Bytes of weights below which a model on CPUs is not counted: it fits on any machine, and counting takes seconds."""
LESS_INFERENCE = ("batch_tokens=4096", "gpus=2", "quantization=nf4")
LESS_TRAINING = (
    "micro_batch_size=1",
    "gradient_checkpointing=true",
    "quantization=nf4",
    "zero_stage=3",
)
"""Settings that reduce the memory, the cheapest first."""


def add_architecture(result: Result, inputs: Any, parents: Parents) -> Result:
    """Return the predicted result with the metric `architecture`, the folder of the input `base`: a model that the job
    makes of `base` has the same architecture."""
    folder = find_model_folder("base", inputs, parents)
    if folder is None:
        return result
    return replace(result, metrics={**result.metrics, "architecture": str(folder)})


def find_model_folder(field: str, inputs: Any, parents: Parents) -> Path | None:
    """Return the folder of a model input; if a step has yet to make it, a folder of the same architecture."""
    given = getattr(inputs, field)
    if given is None and field in parents and "architecture" in parents[field].metrics:
        given = Path(str(parents[field].metrics["architecture"]))
    if given is not None and (given / "config.json").is_file():
        return given
    return None


def bound_length(limit: int, parents: Parents, field: str, texts: int = 1) -> int:
    """Return the maximum tokens of a row of `texts` texts: `limit`, or less if the longest text of the data is known.
    A text has at most as many tokens as characters."""
    longest = count(parents, field, "longest_text")
    if longest is None:
        return limit
    return min(limit, texts * longest + TEMPLATE)


def graph_tokens(resources: Resources, texts: int, length: int, *, on_cpu: int = CPU_TOKENS) -> int:
    """Return the number of tokens whose activations a worker keeps at a time: the tokens of a micro batch, or without
    that setting, as many as the job keeps. texts: number of texts per training step, over all workers. on_cpu: maximum
    on CPUs; on GPUs it is `batch_tokens`."""
    own = -(-texts // (resources.workers or 1))
    if resources.micro_batch_size is not None:
        return min(own, resources.micro_batch_size) * length
    return max(length, min(own * length, resources.batch_tokens if resources.gpus else on_cpu))


def count(parents: Parents, field: str, *names: str) -> int | None:
    """Return the first of the metrics `names` that the step behind an input has; None if it has none of them."""
    if field not in parents:
        return None
    metrics = parents[field].metrics
    for name in names:
        if name in metrics:
            return int(metrics[name])
    return None


def estimate_inference(
    folder: Path | None,
    kind: str,
    config: Any,
    inputs: Any,
    resources: Resources,
    parents: Parents,
    *,
    length: int,
    kept: int = 0,
) -> Needs | None:
    """Return the needs of a job that runs a model without training it. length: tokens per row. kept: number of tokens
    whose keys and values are cached in generation."""
    gpus = resources.gpus or 0.0
    if gpus > 1 and not gpus.is_integer():
        raise InputError(f"gpus: {gpus:g} per worker given; expected at most 1, or a whole number")
    if folder is not None and getattr(config, "engine", "") == "vllm":
        _check_heads(folder, int(gpus))
        return None  # vLLM takes the memory that it is given
    if folder is None or _is_small(folder, resources):
        return None
    dtype = _dtype(config, resources)
    _, tokens = size_passes("cuda" if gpus else "cpu", resources.batch_tokens)
    batch = max(1, tokens // length)
    options = {"dtype": dtype, "rows": batch, "length": length, "quantization": config.quantization}
    one = _measure(folder, kind, **options)
    if one is None:
        return None
    working = one.peak
    if kept:
        working += kept * one.cache + 3 * 4 * batch * one.head // one.width
    loaded = one.loaded
    has_adapter = inputs.adapter is not None or "adapter" in parents
    if has_adapter and config.quantization == "none":
        loaded *= 4 // _bytes_per_weight(dtype)  # an adapter is merged in float32
    if not gpus:
        host = LIBRARIES + max(loaded, one.loaded + working)
        return Needs(0.0, _gb(host), remedies=LESS_INFERENCE)
    weights: float = one.weights
    if gpus > 1:  # the layers are split over the GPUs
        weights *= 1 / gpus + 1.25 / one.layers
    host = LIBRARIES + CUDA
    if config.quantization == "none":
        host += loaded
    return Needs(_gb(CUDA + weights + working), _gb(host), remedies=LESS_INFERENCE)


def estimate_training(
    folder: Path | None,
    kind: str,
    config: Any,
    resources: Resources,
    *,
    length: int,
    tokens: int,
    vectors: int = 0,
    labels: int = 0,
) -> Needs | None:
    """Return the needs of a finetuning job.

    length: tokens per text. tokens: number of tokens whose activations a worker keeps at a time. vectors: number of
    embeddings that a training step keeps. labels: number of tokens whose logits are kept."""
    if resources.gpus not in (None, 0, 1):
        raise InputError(
            f"gpus: {resources.gpus:g} per worker given; expected 0 or 1, since a training worker uses one GPU; set"
            " gpus=1 and raise workers"
        )
    if folder is None or _is_small(folder, resources):
        return None
    full = config.method == "full"
    dtype = _dtype(config, resources)
    options = {
        "dtype": dtype,
        "rows": max(1, tokens // length),
        "length": length,
        "training": True,
        "gradient_checkpointing": config.gradient_checkpointing,
        "quantization": config.quantization,
        "eager": not resources.gpus,
        # With method=full the gradients of all weights, which are counted below, would hide the activations.
        "lora_r": 1 if full else config.lora_r,
        "target_modules": "all-linear" if full else config.target_modules,
    }
    one = _measure(folder, kind, **options)
    if one is None:
        return None
    trained = one.trained
    model = 4 * trained
    if full:
        trained = one.weights // _bytes_per_weight(dtype)
        model = one.weights
    # Three checkpoints, one of them being written: moments and master weights, the weights, and the best model of each.
    # If the models of all evaluations are kept, they are both in the work folder and in the result.
    disk = 3 * (12 * trained + 2 * model)
    if config.keeps_all:
        disk += 2 * model * (len(config.kept_steps) or config.epochs)

    workers = resources.workers or 1
    states = 12 * trained / _count_shards(config, workers, 1)  # float32: weights and two moments
    # On CPUs the file of a base in 4 bits stays mapped into memory.
    weights = (one.weights if resources.gpus else one.loaded) / _count_shards(config, workers, 3)
    held = weights + (0 if full else model) + _count_gradients(config, workers, trained)
    held += one.peak + 12 * vectors * one.width + 12 * labels * (one.head // one.width)
    saved = 0
    if config.zero_stage == 3:
        held += _count_gathered(one, _bytes_per_weight(dtype), trained, full=full)
        saved = full * model  # the first worker saves the whole model
    if not resources.gpus:
        host = LIBRARIES + states + max(held, weights + saved)
        return Needs(0.0, _gb(host), _gb(disk), remedies=LESS_TRAINING)
    offloaded = 0.0
    if config.offload != "none":
        offloaded += states
    if config.offload == "parameters":
        offloaded += weights
    # A base is loaded into host memory first, unless ZeRO-3 loads it layer by layer.
    loading = 0
    if config.zero_stage < 3 and config.quantization == "none":
        loading = one.weights
    host = LIBRARIES + CUDA + max(offloaded + saved, loading)
    device = CUDA + held + states - offloaded
    return Needs(_gb(device), _gb(host), _gb(disk), remedies=LESS_TRAINING)


def _count_shards(config: Any, workers: int, stage: int) -> int:
    """Return over how many workers ZeRO divides what it shards from `stage` on."""
    if config.zero_stage >= stage:
        return workers
    return 1


def _count_gradients(config: Any, workers: int, trained: int) -> float:
    """Return the bytes of the gradients, which are float32, and of the buckets in which they are summed."""
    kept = 4 / _count_shards(config, workers, 2)
    return trained * (kept + (4 + TRAINED) / _count_shards(config, workers, 3))


def _count_gathered(one: Footprint, size: int, trained: int, *, full: bool) -> float:
    """Return the bytes that ZeRO-3 does not shard: the layer that runs and the next one, which is prefetched, or the
    head and its gradient; and the gradients of a bucket until they are summed, in several copies."""
    layers = max(8 * one.largest, (1 + full) * size * one.head)
    return layers + (5 * size if full else 8) * min(BUCKET, trained)


def _is_small(folder: Path, resources: Resources) -> bool:
    if resources.gpus:
        return False
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) < SMALL


def _measure(folder: Path, kind: str, **options: Any) -> Footprint | None:
    """Return the footprint of a model; None for an architecture that does not run on the meta device, such as Mamba."""
    from ratchet.models import footprint

    with suppress(
        AttributeError, KeyError, NotImplementedError, RuntimeError, ValueError, ModelError
    ):
        return footprint.measure(folder, kind, **options)  # type: ignore[arg-type]
    return None


def _check_heads(folder: Path, gpus: int) -> None:
    """Raise InputError for a number of GPUs over which vLLM cannot divide the attention heads of a model."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder).get_text_config()  # with the defaults of its class
    heads = int(config.num_attention_heads)
    groups = int(getattr(config, "num_key_value_heads", None) or heads)
    if gpus > 1 and (heads % gpus or max(groups, gpus) % min(groups, gpus)):
        raise InputError(
            f"gpus: {gpus} per worker given; expected a divisor of the model's {heads} attention heads, and a divisor"
            f" or multiple of its {groups} key-value heads, which vLLM divides over them; give another number"
        )


def _dtype(config: Any, resources: Resources) -> str:
    if config.dtype != "auto":
        return str(config.dtype)
    if resources.gpus:
        return "bfloat16"
    from ratchet.models.devices import multiplies_bfloat16, resolve_device

    if multiplies_bfloat16(resolve_device("cpu")):
        return "bfloat16"
    return "float32"


def _bytes_per_weight(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else 4


def _gb(size: float) -> float:
    return round(size / 1e9, 3)
