"""export_model: write a model, or an adapter and its base, as a folder that other libraries load, with a model card.

The export is checked with each library that is installed, and fails if results differ. Embedders are checked with
sentence-transformers, transformers and FlagEmbedding; cross-encoders with sentence-transformers and transformers;
rerankers that answer Yes or No and other decoders with transformers; adapters with PEFT.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Gt

from ratchet.errors import InputError
from ratchet.jobs import needs
from ratchet.jobs.inference import require_onnx
from ratchet.jobs.model_checks import check_as_used
from ratchet.models.usage import find_usage
from ratchet.orchestrator.job_interface import Job, Needs, Parents, Resources

MOST_BYTES = 2**31
"""Size limit of an ONNX file, set by Protocol Buffers."""


@dataclass(frozen=True)
class Config:
    form: Literal["model", "adapter"] = "model"
    """`model`: write a whole model, with the adapter merged into it. `adapter`: write only the adapter, for PEFT."""
    base_name: str = ""
    """Name of the base to write into the adapter's config, such as a hub id. Empty: none."""
    onnx: bool = False
    """Also write `onnx/model.onnx`. Only for embedders with less than 2 GB of weights in float32."""
    int8: bool = False
    """Also write `onnx/model_int8.onnx`, with weights and activations in 8 bits, for CPUs. Same limits as `onnx`."""
    card: str = ""
    """Text of README.md, the model card. Empty: the README.md of the model's folder, if it has one."""
    tolerance: Annotated[float, Gt(0)] = 1e-3
    """Maximum difference between Ratchet's and another library's results for weights in float32. For embedders: 1 -
    cosine similarity of the vectors. For others: difference of scores or logits, relative to their standard deviation.
    For weights in bfloat16 ten times this value."""


@dataclass(frozen=True)
class Inputs:
    model: Path
    """A model folder; if an adapter is given, its base."""
    adapter: Path | None = None
    """A LoRA adapter of the model."""


def check(config: Config, inputs: Inputs) -> None:
    if config.onnx or config.int8:
        check_onnx(config, inputs)
    if inputs.model is not None:
        check_as_used(inputs.model, inputs.adapter)
        if inputs.adapter is not None:
            from ratchet.models.adapters.shard_merge import match_adapter

            match_adapter(inputs.model, inputs.adapter)


def check_onnx(config: Config, inputs: Inputs) -> None:
    """Raise InputError for a model that cannot be written as ONNX. A model that does not exist yet is not checked."""
    name = "int8" if config.int8 else "onnx"
    require_onnx(f"export_model.{name}")
    if config.form == "adapter":
        raise InputError(f"export_model.{name}: given, for an adapter; expected form=model; leave one of them out")
    if inputs.model is None:
        return
    if (kind := find_usage(inputs.model, inputs.adapter)) != "embedder":
        raise InputError(f"export_model.{name}: given, for a {kind}; expected an embedder; leave it out")
    from ratchet.models.adapters.shard_merge import read_main_dtype

    size = sum(file.stat().st_size for file in inputs.model.glob("*.safetensors"))
    size *= 1 if read_main_dtype(inputs.model) == "float32" else 2
    if size >= MOST_BYTES:
        raise InputError(
            f"export_model.{name}: given, for {size / 1e9:.1f} GB of weights in float32; expected less than 2 GB, the"
            " limit of an ONNX file; leave it out"
        )


def estimate_needs(config: Config, inputs: Inputs, resources: Resources, parents: Parents) -> Needs | None:
    folder, adapter = needs.find_model("model", inputs, parents), inputs.adapter is not None or "adapter" in parents
    # With form=model the adapter is merged layer by layer, and the merged model is loaded.
    return needs.load_whole(folder, adapter and config.form == "adapter", resources)


JOB = Job(
    "export_model",
    config=Config,
    inputs=Inputs,
    resources=("cpus", "memory", "accelerator", "labels", "retries"),
    check=check,
    needs=estimate_needs,
    single_process=True,
    outputs=("model", "model/onnx/*"),
    metrics=lambda config: ("difference", "megabytes", "*/difference", "onnx/megabytes", "int8/megabytes"),
)
