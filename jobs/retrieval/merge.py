"""merge: merge a LoRA adapter into its base, and verify the merged model on probe texts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from ratchet.errors import ArtifactError
from ratchet.jobs import needs
from ratchet.jobs.model_checks import check_as_used
from ratchet.models.model_files import check_folder
from ratchet.models.model_kind import read_object
from ratchet.orchestrator.job_interface import (
    Context,
    Job,
    Needs,
    Parents,
    PositiveFloat,
    Progress,
    Result,
    Unit,
)


@dataclass(frozen=True)
class Config:
    probes: Annotated[int, Ge(2), Unit("texts")] = 32
    """Number of texts of the corpus on which the base with its adapter and the merged model are compared. Only the
    first 256 characters of a text are used."""
    tolerance: PositiveFloat = 1e-2
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


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Return a note with the base named in the adapter, since an adapter fits any model of the same shape."""
    if inputs.base is not None:
        check_folder(inputs.base)
    if inputs.base is not None and inputs.adapter is not None:
        from ratchet.models.merging import check_inputs

        check_inputs(inputs.base, inputs.adapter, inputs.projection)
        check_as_used(inputs.base, inputs.adapter)
    note = ""
    if inputs.adapter is not None:
        about = read_object(inputs.adapter / "adapter_config.json")
        if about.get("base_model_name_or_path"):
            note = f"the adapter was trained on {about['base_model_name_or_path']}"
    return needs.add_architecture(Result(note=note), inputs, parents)


@needs.of_model
def estimate_needs(step: needs.ModelStep) -> Needs | None:
    size = sum(file.stat().st_size for file in step.folder.glob("*.safetensors"))
    memory = 0.0
    if size >= needs.SMALL:
        memory = 2 * size / 1e9  # the merged layers, and the whole model that they are put into
    return Needs(0.0, memory, disk=size / 1e9)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import pyarrow.parquet as pq
    import torch

    from ratchet.data.tables import list_shards
    from ratchet.models import merging

    torch.set_num_threads(context.resources.threads)
    context.progress(Progress(0, 2, "stages", "merging"))
    target = context.out / "model"
    target.mkdir()
    missing = merging.merge(inputs.base, inputs.adapter, target, inputs.projection)
    context.progress(Progress(1, 2, "stages", "comparing"))
    texts = pq.read_table(list_shards(inputs.corpus)[0], columns=["text"])["text"].to_pylist()[
        : config.probes
    ]
    compared = merging.check(inputs.base, inputs.adapter, target, texts)
    if not compared.drift <= config.tolerance:
        raise ArtifactError(
            f"step {context.step}: the merged model differs by {compared.drift:.2g} from the base with its adapter;"
            f" expected at most {config.tolerance:g}; use the base that the adapter was trained on"
        )
    if compared.change < 1e-6 and not config.allow_unchanged:
        raise ArtifactError(
            f"step {context.step}: the adapter changes nothing; expected a trained one; train longer, or set"
            " allow_unchanged=true"
        )
    return Result(
        {
            "difference": float(f"{compared.drift:.3g}"),
            "changed": compared.change >= 1e-6,
            "probes": len(texts),
        },
        note=f"without the files of sentence-transformers: {missing}" if missing else "",
    )


JOB = Job(
    "merge",
    Config,
    Inputs,
    run,
    resources=("cpus", "memory", "accelerator", "labels", "retries"),
    check=check,
    needs=estimate_needs,
    outputs=("model",),
    metrics=("difference", "changed", "probes"),
)
