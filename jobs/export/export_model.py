"""export_model: a model, or an adapter and its base, as one folder that other libraries load, with a model card.

The folder is used through each library that is installed, and the export fails where one differs: embedders through
sentence-transformers, transformers and FlagEmbedding, cross-encoders through sentence-transformers and transformers,
rerankers that answer Yes or No through transformers, adapters through PEFT.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Gt

from ratchet.errors import InputError
from ratchet.jobs import needs
from ratchet.models.model_files import check_folder
from ratchet.orchestrator.job_interface import Job, Needs, Parents, Resources


@dataclass(frozen=True)
class Config:
    form: str = "model"
    """`model`: a whole model, with the adapter merged into it. `adapter`: the adapter alone, for PEFT."""
    base_name: str = ""
    """The name of the base that is written into the adapter, such as its hub id. Empty: none."""
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
    if config.form not in ("model", "adapter"):
        raise InputError(f"export_model.form: '{config.form}' given; expected one of model, adapter")
    if config.form == "adapter" and inputs.adapter is None:
        raise InputError("export_model.form: adapter given, for a model without one; expected a model; leave it out")
    if inputs.model is not None:
        check_folder(inputs.model)
        if inputs.adapter is not None:
            from ratchet.models.adapters.shard_merge import match_adapter

            match_adapter(inputs.model, inputs.adapter)


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
    outputs=("model",),
    metrics=lambda config: ("difference", "megabytes", "*/difference"),
)
