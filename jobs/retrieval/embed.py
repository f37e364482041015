"""embed: texts -> vectors, shard by shard."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from ratchet.errors import InputError
from ratchet.jobs import needs
from ratchet.jobs.inference import EngineConfig, check_engine
from ratchet.models.embedder.encoding_config import read_encoding_config
from ratchet.models.model_files import check_folder, find_config_folder
from ratchet.models.model_kind import check_embedder
from ratchet.orchestrator.job_interface import MAP_RESOURCES, Job, Needs, Parents, Resources, Unit


@dataclass(frozen=True)
class Config(EngineConfig):
    role: Literal["query", "passage"] = "passage"
    """The template of the encoding config that is applied to the texts."""
    max_length: Annotated[int, Ge(4), Unit("tokens")] | None = None
    """Longer texts are truncated. None: the limit of the encoding config."""


@dataclass(frozen=True)
class Inputs:
    model: Path
    """A Hugging Face model folder."""
    texts: Path
    """Shards with the columns id and text. `python -m jobs` takes a `.jsonl` or `.txt` file too."""
    adapter: Path | None = None
    """A LoRA adapter for the model."""


def check(config: Config, inputs: Inputs) -> None:
    if inputs.model is not None:
        check_folder(inputs.model)
        check_embedder(inputs.model)
    if inputs.adapter is not None and not (inputs.adapter / "adapter_config.json").is_file():
        raise InputError(
            f"embed.adapter: {inputs.adapter} has no adapter_config.json; expected the folder of a LoRA adapter"
        )
    check_vllm(config, inputs)


def check_vllm(config: Config, inputs: Inputs) -> None:
    """Raise InputError for what engine `vllm` cannot do. A model that does not exist yet is not checked."""
    check_engine("embed", config)
    if config.engine == "vllm" and inputs.model is not None:
        folder = find_config_folder(inputs.model, inputs.adapter)
        if read_encoding_config(folder).projection:
            raise InputError(
                f"embed.engine: 'vllm' given, for an embedder with a projection ({folder}); expected one without; set"
                " engine=transformers"
            )


def estimate_needs(config: Config, inputs: Inputs, resources: Resources, parents: Parents) -> Needs | None:
    folder = needs.find_model("model", inputs, parents)
    if folder is None:
        return None
    limit = read_encoding_config(folder).with_limits(config.max_length).max_length
    length = needs.bound_length(limit, parents, "texts")
    names = ("documents",) if config.role == "passage" else ("test/queries",)
    rows = needs.count(parents, "texts", *names, "test/statements")
    adapter = inputs.adapter is not None or "adapter" in parents
    return needs.infer(folder, "backbone", config, resources, length=length, rows=rows, adapter=adapter)


JOB = Job(
    "embed",
    version=1,
    config=Config,
    inputs=Inputs,
    run="ratchet.jobs.retrieval.implementation.embed:run",
    resources=(*MAP_RESOURCES, "batch_tokens"),
    check=check,
    needs=estimate_needs,
    metrics=lambda config: ("rows", "dim", "tokens", "dtype"),
)
