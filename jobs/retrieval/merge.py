"""merge: merge a LoRA adapter into its base, and verify the merged model on probe texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt

from ratchet.jobs import needs
from ratchet.jobs.model_checks import check_as_used
from ratchet.models.model_files import check_folder
from ratchet.models.model_kind import read_object
from ratchet.orchestrator.job_interface import Job, Needs, Parents, Resources, Result, Unit


@dataclass(frozen=True)
class Config:
    probes: Annotated[int, Ge(2), Unit("texts")] = 32
    """Number of texts of the corpus on which the base with its adapter and the merged model are compared. Only the
    first 256 characters of a text are used."""
    tolerance: Annotated[float, Gt(0)] = 1e-2
    """Maximum difference between the two. For embedders: 1 - cosine similarity of their vectors. For rerankers:
    difference of scores, relative to the standard deviation. Weights in bfloat16 differ by about 1e-3 anyway."""
    allow_unchanged: bool = False
    """Accept an adapter that changes nothing. Finetuning writes such an adapter if it did not improve on the base."""


@dataclass(frozen=True)
class Inputs:
    base: Path
    """A Hugging Face model folder."""
    adapter: Path
    """A LoRA adapter of this base."""
    corpus: Path
    """Shards of texts. The probes are the first texts of the first shard."""
    projection: Path | None = None
    """A state dict of a linear layer after the pooling, saved by `torch.save`, as the theorem scripts of CITER write it
    beside an adapter. The merged model then embeds as these scripts do."""


def check(config: Config, inputs: Inputs) -> None:
    if inputs.base is not None:
        check_folder(inputs.base)
    if inputs.base is not None and inputs.adapter is not None:
        from ratchet.models.merging import check_inputs

        check_inputs(inputs.base, inputs.adapter, inputs.projection)
        check_as_used(inputs.base, inputs.adapter)


def predict(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Return a note with the base named in the adapter, since an adapter fits any model of the same shape."""
    if inputs.adapter is None:
        about = {}
    else:
        about = read_object(inputs.adapter / "adapter_config.json")
    base = about.get("base_model_name_or_path")
    if base:
        note = f"the adapter was trained on {base}"
    else:
        note = ""
    return needs.add_architecture(Result(note=note), inputs, parents)


def estimate_needs(config: Config, inputs: Inputs, resources: Resources, parents: Parents) -> Needs | None:
    return needs.load_whole(needs.find_model("base", inputs, parents), False, resources)


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
