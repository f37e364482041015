"""export_model: write a model, or an adapter and its base, as a folder that other libraries load, with a model card.

Embedders are for sentence-transformers, transformers and FlagEmbedding; cross-encoders for sentence-transformers and
transformers; rerankers that answer Yes or No and other decoders for transformers; adapters for PEFT.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ratchet.errors import InputError
from ratchet.jobs.model_checks import check_as_used
from ratchet.models.model_kind import read_object
from ratchet.orchestrator.job_interface import Context, Job, Parents, Result


@dataclass(frozen=True)
class Config:
    form: Literal["model", "adapter"] = "model"
    """`model`: write a whole model, with the adapter merged into it. `adapter`: write only the adapter, for PEFT."""
    base_name: str = ""
    """Name of the base to write into the adapter's config, such as a hub id. Empty: none."""
    card: str = ""
    """Text of README.md, the model card. Empty: the README.md of the model's folder, if it has one."""


@dataclass(frozen=True)
class Inputs:
    model: Path
    """A model folder; if an adapter is given, its base."""
    adapter: Path | None = None
    """A LoRA adapter of the model."""


def check(config: Config, inputs: Inputs, parents: Parents) -> None:
    if inputs.model is not None:
        check_as_used(inputs.model, inputs.adapter)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.models.adapters.lora import CONFIG
    from ratchet.models.roles import find_usage

    target = context.out / "model"
    kind = find_usage(inputs.model, inputs.adapter)
    if config.form == "adapter":
        if inputs.adapter is None:  # not checked at plan time, since a later step may make it
            raise InputError(
                "export_model.form: adapter given, for a model without one; expected model; leave it out"
            )
        copy_folder(inputs.adapter, target)
        # Where PEFT and the hub look for the base.
        about = read_object(target / CONFIG) | {"base_model_name_or_path": config.base_name or None}
        (target / CONFIG).write_text(json.dumps(about, indent=2, sort_keys=True) + "\n")
    else:
        write_model(kind, inputs, target)
    if config.card:
        (target / "README.md").write_text(config.card, encoding="utf-8")
    size = sum(file.stat().st_size for file in target.rglob("*.safetensors"))
    return Result({"kind": kind, "megabytes": round(size / 1e6, 1)})


def write_model(kind: str, inputs: Inputs, target: Path) -> None:
    """Write a whole model: a copy, or the merge with an adapter. Embedders get the files of sentence-transformers, and
    decoders the tokens that end answers."""
    from ratchet.models import merging
    from ratchet.models.decoder import decoder
    from ratchet.models.embedder.encoding_config import read_encoding_config
    from ratchet.models.embedder.sentence_transformers_layout import write_layout

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


def copy_folder(source: Path, target: Path) -> None:
    """Copy the files that other libraries read. Unlike folders of the store, the copy is writable."""
    from ratchet.models.model_files import OTHER_FORMATS, TRAINING_STATE

    ignored = shutil.ignore_patterns(*OTHER_FORMATS, *TRAINING_STATE, ".*")
    shutil.copytree(source, target, copy_function=shutil.copyfile, ignore=ignored)
    target.chmod(0o755)


JOB = Job(
    "export_model",
    Config,
    Inputs,
    run,
    resources=("cpus", "memory", "accelerator", "labels", "retries"),
    check=check,
    outputs=("model",),
    metrics=("kind", "megabytes"),
)
