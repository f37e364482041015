"""export_model: a model, or an adapter and its base, as one folder that other libraries load, with a model card.

The folder is used through each library that is installed, and the export fails where one differs: embedders through
sentence-transformers, transformers and FlagEmbedding, cross-encoders through sentence-transformers and transformers,
rerankers that answer Yes or No through transformers, adapters through PEFT.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Gt

from ratchet.errors import InputError
from ratchet.jobs import needs
from ratchet.jobs.inference import require_onnx
from ratchet.models.model_files import check_folder
from ratchet.models.usage import find_usage
from ratchet.orchestrator.job_interface import Job, Needs, Parents, Resources

MOST_BYTES = 2**31
"""Size of the weights from which an ONNX model does not fit in one file, by Protocol Buffers."""


@dataclass(frozen=True)
class Config:
    form: Literal["model", "adapter"] = "model"
    """`model`: a whole model, with the adapter merged into it. `adapter`: the adapter alone, for PEFT."""
    base_name: str = ""
    """The name of the base that is written into the adapter, such as its hub id. Empty: none."""
    onnx: bool = False
    """Also write `onnx/model.onnx`, of an embedder whose weights in float32 are less than 2 GB."""
    int8: bool = False
    """Also write `onnx/model_int8.onnx`: weights and activations in 8 bits, for CPUs."""
    card: str = ""
    """The text of README.md, the model card. Empty: that of the model's folder, if it has one."""
    tolerance: Annotated[float, Gt(0)] = 1e-3
    """Largest difference between Ratchet's results and those of another library in float32: of cosine similarities for
    embedders, of scores or logits relative to their spread for others. Ten times as much with weights in bfloat16."""


@dataclass(frozen=True)
class Inputs:
    model: Path
    """A model folder; with an adapter its base."""
    adapter: Path | None = None
    """A LoRA adapter of the model."""


def check(config: Config, inputs: Inputs) -> None:
    if config.onnx or config.int8:
        check_onnx(config, inputs)
    if inputs.model is not None:
        check_folder(inputs.model)
        if inputs.adapter is not None:
            from ratchet.models.adapters.shard_merge import match_adapter

            match_adapter(inputs.model, inputs.adapter)


def check_onnx(config: Config, inputs: Inputs) -> None:
    """Raise InputError for a model that is not written as ONNX. A model that does not exist yet is not checked."""
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
