"""Implementation of `export_model`: writes a model for other libraries, and compares their results with Ratchet's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from ratchet.errors import ArtifactError, InputError
from ratchet.jobs.export.export_model import Config, Inputs
from ratchet.jobs.export.libraries import compare_decoder, compare_embedder, compare_reranker
from ratchet.models import merging
from ratchet.models.adapters import lora
from ratchet.models.adapters.shard_merge import read_main_dtype
from ratchet.models.decoder import decoder
from ratchet.models.embedder.encoding_config import read_encoding_config
from ratchet.models.embedder.sentence_transformers_layout import write_layout
from ratchet.models.model_files import OTHER_FORMATS, TRAINING_STATE
from ratchet.models.roles import find_usage
from ratchet.orchestrator.job_interface import Context, Progress, Result


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    torch.set_num_threads(max(1, int(context.resources.cpus or 1)))
    target = context.out / "model"
    kind = find_usage(inputs.model, inputs.adapter)
    context.progress(Progress(0, 2, "stages", "writing"))
    if config.form == "adapter":
        if inputs.adapter is None:  # not checked at plan time, since a later step may make it
            raise InputError("export_model.form: adapter given, for a model without one; expected model; leave it out")
        write_adapter(inputs.adapter, config.base_name, target)
    else:
        write_model(kind, inputs, target)
    if config.card:
        (target / "README.md").write_text(config.card, encoding="utf-8")
    context.progress(Progress(1, 2, "stages", "comparing with other libraries"))
    if read_main_dtype(inputs.model) == "bfloat16":
        dtype = "bfloat16"
    else:
        dtype = "float32"
    differences = compare(kind, config.form, inputs, target, dtype)
    tolerance = config.tolerance * (10 if dtype == "bfloat16" else 1)
    for library, difference in differences.items():
        if not difference <= tolerance:
            raise ArtifactError(
                f"step {context.step}: {library} differs by {difference:.2g} on probe texts; expected at most"
                f" {tolerance:g}; raise export_model.tolerance if that is accurate enough"
            )
    size = sum(file.stat().st_size for file in target.rglob("*.safetensors"))
    found = {f"{library}/difference": float(f"{difference:.3g}") for library, difference in differences.items()}
    metrics: dict[str, float | int | str] = {"kind": kind, "megabytes": round(size / 1e6, 1), **found}
    rows = []
    for name, value in differences.items():
        rows.append({"library": name, "difference": float(f"{value:.3g}")})
    if not rows:
        return Result(metrics, note="compared with no other library")
    metrics["difference"] = max(found.values())
    note = f"the same in {', '.join(differences)}: differences up to {metrics['difference']:.1g}"
    return Result(metrics, {"largest difference from other libraries": rows}, note=note)


def write_model(kind: str, inputs: Inputs, target: Path) -> None:
    """Write a whole model: a copy, or the merge with an adapter. Embedders get the files of sentence-transformers, and
    decoders the tokens that end answers."""
    if inputs.adapter is None:
        copy_folder(inputs.model, target)
        if kind == "embedder" and not (target / "modules.json").is_file():
            encoding_config = read_encoding_config(inputs.model)
            encoding_config.write(target)
            write_layout(encoding_config, merging.read_width(target), target)
    elif kind == "decoder":
        decoder.merge(inputs.model, inputs.adapter, target)
    else:
        target.mkdir()
        merging.merge(inputs.model, inputs.adapter, target)
    if kind == "decoder":
        decoder.write_generation_ends(target)


def write_adapter(adapter: Path, base_name: str, target: Path) -> None:
    """Copy an adapter, and write the name of its base into its config, where PEFT and the hub look for it."""
    copy_folder(adapter, target)
    file = target / lora.CONFIG
    about = json.loads(file.read_text()) | {"base_model_name_or_path": base_name or None}
    file.write_text(json.dumps(about, indent=2, sort_keys=True) + "\n")


def copy_folder(source: Path, target: Path) -> None:
    """Copy the files that other libraries read. Unlike folders of the store, the copy is writable."""
    ignored = shutil.ignore_patterns(*OTHER_FORMATS, *TRAINING_STATE, ".*")
    shutil.copytree(source, target, copy_function=shutil.copyfile, ignore=ignored)
    target.chmod(0o755)


def compare(kind: str, form: str, inputs: Inputs, target: Path, dtype: str) -> dict[str, float]:
    """Return library -> its largest difference from Ratchet's results."""
    if kind == "decoder":
        if form == "adapter":
            return compare_decoder(inputs.model, dtype, inputs.model, target)
        return compare_decoder(target, dtype, inputs.model, inputs.adapter)
    if kind == "embedder":
        compare_one = compare_embedder
    else:
        compare_one = compare_reranker
    if form == "adapter":
        return compare_one(inputs.model, dtype, target)
    return compare_one(target, dtype)
