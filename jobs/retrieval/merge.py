"""merge: merge a LoRA adapter into its base, and verify the merged model on probe texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt

from ratchet.jobs import needs
from ratchet.models.model_files import check_folder
from ratchet.models.model_kind import read_object
from ratchet.orchestrator.job_interface import Job, Needs, Parents, Resources, Result, Unit


@dataclass(frozen=True)
class Config:
    probes: Annotated[int, Ge(2), Unit("texts")] = 32
    """Texts of the corpus on which the base with its adapter and the merged model are compared: of each the first 256
    characters."""
    tolerance: Annotated[float, Gt(0)] = 1e-2
    """Largest difference between the two: of cosine similarities for embedders, of scores relative to their spread for
    rerankers. Weights in bfloat16 cannot agree better than about 1e-3."""
    allow_unchanged: bool = False
    """Accept an adapter that changes nothing, as finetuning keeps it if training did not improve on the base."""


@dataclass(frozen=True)
class Inputs:
    base: Path
    """A Hugging Face model folder."""
    adapter: Path
    """A LoRA adapter of this base."""
    corpus: Path
    """Shards of texts from which the probes are taken."""
    projection: Path | None = None
    """A file of `torch.save` with the state dict of a linear layer after the pooling, as the theorem scripts of CITER
    write it beside an adapter. The merged model embeds as they do."""


def check(config: Config, inputs: Inputs) -> None:
    if inputs.base is not None:
        check_folder(inputs.base)
    if inputs.base is not None and inputs.adapter is not None:
        from ratchet.models.adapters.merging import check_inputs

        check_inputs(inputs.base, inputs.adapter, inputs.projection)


def predict(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Name the base that the adapter says it was trained on: an adapter fits all models of one shape."""
    about = {} if inputs.adapter is None else read_object(inputs.adapter / "adapter_config.json")
    base = about.get("base_model_name_or_path")
    note = f"the adapter was trained on {base}" if base else ""
    return needs.add_architecture(Result(note=note), inputs, parents)


def estimate_needs(config: Config, inputs: Inputs, resources: Resources, parents: Parents) -> Needs | None:
    return needs.merge(needs.find_model("base", inputs, parents), inputs.adapter, resources)


JOB = Job(
    "merge",
    config=Config,
    inputs=Inputs,
    resources=("cpus", "memory", "accelerator", "labels", "retries"),
    check=check,
    needs=estimate_needs,
    predict=predict,
    single_process=True,
    outputs=("model",),
    metrics=lambda config: ("difference", "changed", "probes"),
)
