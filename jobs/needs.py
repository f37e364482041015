"""Estimates, at plan time, of the memory per worker, the disk space and the operations of a step that runs a model.

Lengths are the largest ones that the settings allow, so memory and operations are upper bounds where texts are shorter.
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
LESS = {
    "inference": ("batch_tokens=4096", "gpus=2", "quantization=nf4"),
    "training": (
        "micro_batch_size=1",
        "gradient_checkpointing=true",
        "quantization=nf4",
        "zero_stage=3",
    ),
}
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


def estimate_inference(
    folder: Path | None,
    kind: str,
    config: Any,
    inputs: Any,
    resources: Resources,
    parents: Parents,
    *,
    length: int,
    rows: int | None = None,
    kept: int = 0,
) -> Needs | None:
    """Return the needs of a job that runs a model without training it. length: tokens per row. rows: number of rows;
    None: not known. kept: number of tokens whose keys and values are cached in generation."""
    gpus = resources.gpus or 0.0
    if gpus > 1 and not gpus.is_integer():
        raise InputError(f"gpus: {gpus:g} per worker given; expected at most 1, or a whole number")
    if folder is not None and getattr(config, "engine", "") == "vllm":
        _check_heads(folder, int(gpus))
        return None  # vLLM takes the memory that it is given
    if folder is None or _is_small(folder, resources):
        return None
    dtype = _dtype(config, resources)
    _, tokens = size_passes("cuda" if resources.gpus else "cpu", resources.batch_tokens)
    batch = max(1, tokens // length)
    one = _measure(
        folder, kind, dtype=dtype, rows=batch, length=length, quantization=config.quantization
    )
    if one is None:
        return None
    if dtype == "bfloat16":
        size = 2
    else:
        size = 4
    # An adapter is merged in float32.
    adapter = inputs.adapter is not None or "adapter" in parents
    loaded = one.loaded * (4 // size if adapter and config.quantization == "none" else 1)
    working = (
        one.peak + kept * one.cache + (kept > 0) * 3 * 4 * batch * one.head // max(1, one.width)
    )
    if rows is None:
        operations = None
    else:
        operations = 2.0 * (one.multiplied + (kept > 0) * one.head) * rows * length
    if gpus:
        host = _gb(LIBRARIES + CUDA + (config.quantization == "none") * loaded)
        # A model on several GPUs is split by layers, which run one after the other: no faster than on one GPU.
        weights: float = one.weights
        if gpus > 1:
            weights = one.weights * (1 / gpus + 1.25 / one.layers)
        operations = operations and operations * max(1.0, gpus)
        return Needs(_gb(CUDA + weights + working), host, 0.0, operations, LESS["inference"])
    host = _gb(LIBRARIES + max(loaded, one.loaded + working))
    return Needs(0.0, host, 0.0, operations, LESS["inference"])


def estimate_training(
    folder: Path | None,
    kind: str,
    config: Any,
    resources: Resources,
    *,
    length: int,
    tokens: int,
    rows: int | None = None,
    row_tokens: int = 0,
    passes: int = 1,
    vectors: int = 0,
    labels: int = 0,
) -> Needs | None:
    """Return the needs of a finetuning job.

    length: tokens per text. tokens: number of tokens whose activations a worker keeps at a time. rows: rows per epoch;
    None: not known. row_tokens: tokens per row. passes: forward passes per text. vectors: number of embeddings that a
    training step keeps. labels: number of tokens whose logits are kept."""
    if resources.gpus not in (None, 0, 1):
        raise InputError(
            f"gpus: {resources.gpus:g} per worker given; expected 0 or 1, since a training worker uses one GPU; set"
            " gpus=1 and raise workers"
        )
    if folder is None or _is_small(folder, resources):
        return None
    dtype = _dtype(config, resources)
    full = getattr(config, "method", "lora") == "full"
    if config.gradient_checkpointing and not resources.gpus:
        counted = min(tokens, max(length, CPU_TOKENS))
    else:
        counted = tokens
    options = {
        "dtype": dtype,
        "rows": max(1, counted // length),
        "length": length,
        "training": True,
    }
    options |= {
        "gradient_checkpointing": config.gradient_checkpointing,
        "quantization": config.quantization,
    }
    options |= {"eager": not resources.gpus}
    if full:
        names = "all-linear"
    else:
        names = config.target_modules
    one = _measure(
        folder, kind, lora_r=0 if full else config.lora_r, target_modules=names, **options
    )
    # Activations are counted with one LoRA rank: the gradients of all weights, counted below, would hide them.
    if full:
        active = _measure(folder, kind, lora_r=1, target_modules=names, **options)
    else:
        active = one
    if one is None or active is None:
        return None
    workers = resources.workers or 1
    sharded = {}
    for stage in (1, 2, 3):
        if config.zero_stage >= stage:
            sharded[stage] = workers
        else:
            sharded[stage] = 1
    # Moments and master weights are float32; so are gradients, which are also in the bucket that sums them.
    states = 12 * one.trained / sharded[1]
    gradients = one.trained * ((4 + TRAINED) / sharded[3] + 4 / sharded[2])
    if full:
        trained = 0
    else:
        trained = 4 * one.trained
    # On CPUs the file of a base in 4 bits stays mapped into memory.
    weights = (one.weights if resources.gpus else one.loaded) / sharded[3]
    if dtype == "bfloat16":
        size = 2
    else:
        size = 4
    gathered = saved = 0.0
    if config.zero_stage == 3:
        # Not sharded: the layer that runs and the next one, which is prefetched; or the head and its gradient. Also the
        # gradients of a bucket until they are summed, in several copies. The first worker saves the whole model.
        gathered = max(8 * one.largest, (1 + full) * size * one.head)
        gathered += (5 * size if full else 8) * min(BUCKET, one.trained)
        saved = one.weights * full
    # The forward passes of a step run one after the other. With checkpointing only the inputs of layers are kept.
    if config.gradient_checkpointing:
        kept = (tokens - counted) * one.layers * one.width * size
    else:
        kept = 0
    logits = labels * (one.head // max(1, one.width))
    working = active.peak + kept + gathered + 12 * vectors * one.width + 3 * 4 * logits
    held = weights + trained + gradients + working
    host = LIBRARIES
    operations = None
    if rows is not None:
        backward = 2 * one.multiplied + 2 * (one.multiplied if full else one.trained)
        forward = 2 * one.multiplied * (passes + config.gradient_checkpointing)
        operations = float((forward + backward) * config.epochs * rows * row_tokens)
    evaluations = len(config.kept_steps) or config.epochs
    if config.eval_steps and rows is not None:
        if isinstance(config.batch_size, tuple):
            smallest = min(config.batch_size)
        else:
            smallest = config.batch_size
        evaluations = -(-config.epochs * -(-rows // smallest) // config.eval_steps)
    # Three checkpoints, one of them being written: moments and master weights, the weights, and the best model of each.
    # If the models of all evaluations are kept, they are both in the work folder and in the result.
    if full:
        model = one.weights
    else:
        model = 4 * one.trained
    disk = 3 * (12 * one.trained + 2 * model) + 2 * model * evaluations * config.keeps_all
    if not resources.gpus:
        return Needs(
            0.0,
            _gb(host + states + max(held, weights + saved)),
            _gb(disk),
            operations,
            LESS["training"],
        )
    offloaded = states * (config.offload != "none") + weights * (config.offload == "parameters")
    device = CUDA + held + states - offloaded
    # A base is loaded into host memory first, unless ZeRO-3 loads it layer by layer.
    if config.zero_stage == 3 or config.quantization != "none":
        loading = 0
    else:
        loading = one.weights
    host += CUDA + max(offloaded + saved, loading)
    return Needs(_gb(device), _gb(host), _gb(disk), operations, LESS["training"])


def bound_length(limit: int, parents: Parents, field: str, texts: int = 1) -> int:
    """Return the maximum tokens of a row of `texts` texts: `limit`, or less if the longest text of the data is known.
    A text has at most as many tokens as characters."""
    longest = count(parents, field, "longest_text")
    if longest is None:
        return limit
    return min(limit, texts * longest + TEMPLATE)


def graph_tokens(
    config: Any, resources: Resources, texts: int, length: int, *, on_cpu: int = CPU_TOKENS
) -> int:
    """Return the number of tokens whose activations a worker keeps at a time: the tokens of a micro batch, or without
    that setting, as many as the job keeps. texts: number of texts per training step, over all workers. on_cpu: maximum
    on CPUs; on GPUs it is `batch_tokens`."""
    own = -(-texts // (resources.workers or 1))
    if resources.micro_batch_size is not None:
        return min(own, resources.micro_batch_size) * length
    return max(length, min(own * length, resources.batch_tokens if resources.gpus else on_cpu))


def count(parents: Parents, field: str, *names: str) -> int | None:
    """Return the first of the metrics `names` that the step behind an input has; None if it has none of them."""
    if field in parents:
        metrics = parents[field].metrics
    else:
        metrics = {}
    return next((int(metrics[name]) for name in names if name in metrics), None)


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


def _is_small(folder: Path, resources: Resources) -> bool:
    return (
        not resources.gpus
        and sum(file.stat().st_size for file in folder.glob("*.safetensors")) < SMALL
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


def _gb(size: float) -> float:
    return round(size / 1e9, 3)
