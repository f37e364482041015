"""merge: a LoRA adapter into its base, checked on probe texts -> a model folder that loads anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jobs.job import BadArtifact, BadInput, Context, Job, Progress, Result


@dataclass(frozen=True)
class Config:
    probes: int = 32
    """Texts of the corpus that the base with its adapter and the merged model are compared on."""
    tolerance: float = 1e-2
    """Largest difference between the two: of cosines for embedders, of scores over their spread for rerankers. Weights
    that are stored in bfloat16 cannot agree to less than about 1e-3."""
    allow_unchanged: bool = False
    """Accept an adapter that changes nothing, which is what a finetune keeps that did not get better than its base."""


@dataclass(frozen=True)
class Inputs:
    base: Path
    """A Hugging Face model folder."""
    adapter: Path
    """A LoRA adapter of this base."""
    corpus: Path
    """Where probe texts are taken from."""


def check(config: Config, inputs: Inputs) -> None:
    if config.probes < 2:
        raise BadInput(f"merge.probes: {config.probes} given; expected 2 or more")
    if config.tolerance <= 0:
        raise BadInput(f"merge.tolerance: {config.tolerance} given; expected more than 0")
    if inputs.base is not None:
        from models.weights import check_folder

        check_folder(inputs.base)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import pyarrow.parquet as pq
    import torch

    from data.tables import shard_paths
    from models import merging

    torch.set_num_threads(max(1, int(context.resources.cpus or 1)))
    context.progress(Progress(0, 2, "stages", "merging"))
    target = context.out / "model"
    target.mkdir()
    merging.merge(inputs.base, inputs.adapter, target)
    context.progress(Progress(1, 2, "stages", "comparing"))
    texts = pq.read_table(shard_paths(inputs.corpus)[0], columns=["text"])["text"].to_pylist()[: config.probes]
    found = merging.check(inputs.base, inputs.adapter, target, texts)
    if not found.drift <= config.tolerance:
        raise BadArtifact(
            f"step {context.step}: merged, the model differs by {found.drift:.2g} from the base with its adapter;"
            f" expected at most {config.tolerance:g}; the adapter may be of another base"
        )
    if found.change < 1e-6 and not config.allow_unchanged:
        raise BadArtifact(
            f"step {context.step}: the adapter changes nothing; expected a trained one; train longer, or set"
            " allow_unchanged=true"
        )
    return Result({"drift": float(f"{found.drift:.3g}"), "changed": found.change >= 1e-6, "probes": len(texts)})


JOB = Job("merge", version=1, config=Config, inputs=Inputs, run=run, check=check)
