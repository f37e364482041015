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

from ratchet.jobs import needs
from ratchet.jobs.model_checks import check_as_used
from ratchet.orchestrator.job_interface import Job, Needs, Parents, Resources


@dataclass(frozen=True)
class Config:
    form: Literal["model", "adapter"] = "model"
    """`model`: write a whole model, with the adapter merged into it. `adapter`: write only the adapter, for PEFT."""
    base_name: str = ""
    """Name of the base to write into the adapter's config, such as a hub id. Empty: none."""
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
    if inputs.model is not None:
        check_as_used(inputs.model, inputs.adapter)
        if inputs.adapter is not None:
            from ratchet.models.adapters.shard_merge import match_adapter

            match_adapter(inputs.model, inputs.adapter)


def estimate_needs(config: Config, inputs: Inputs, resources: Resources, parents: Parents) -> Needs | None:
    folder = needs.find_model("model", inputs, parents)
    adapter = inputs.adapter is not None or "adapter" in parents
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
    outputs=("model",),
    metrics=lambda config: ("difference", "megabytes", "*/difference"),
)
