"""Implementation of `merge`: merges an adapter, and compares the result on probe texts."""

from __future__ import annotations

import pyarrow.parquet as pq
import torch

from ratchet.data.tables import list_shards
from ratchet.errors import ArtifactError
from ratchet.jobs.retrieval.merge import Config, Inputs
from ratchet.models import merging
from ratchet.orchestrator.job_interface import Context, Progress, Result


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    torch.set_num_threads(max(1, int(context.resources.cpus or 1)))
    context.progress(Progress(0, 2, "stages", "merging"))
    target = context.out / "model"
    target.mkdir()
    missing = merging.merge(inputs.base, inputs.adapter, target, inputs.projection)
    context.progress(Progress(1, 2, "stages", "comparing"))
    texts = pq.read_table(list_shards(inputs.corpus)[0], columns=["text"])["text"].to_pylist()[: config.probes]
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
        {"difference": float(f"{compared.drift:.3g}"), "changed": compared.change >= 1e-6, "probes": len(texts)},
        note=f"without the files of sentence-transformers: {missing}" if missing else "",
    )
