"""embed: compute the embeddings of texts, shard by shard."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ratchet.data.formats.examples import read_examples
from ratchet.jobs import needs
from ratchet.jobs.inference import InferenceConfig, check_adapter, check_quantization
from ratchet.jobs.model_checks import check_embedder_model, read_size
from ratchet.jobs.model_settings import EncodingSettings, predict_prompts, resolve_encoding_config
from ratchet.models.embedder.encoding_config import EncodingConfig, read_encoding_config
from ratchet.models.model_files import check_folder
from ratchet.orchestrator.job_interface import MAP_RESOURCES, Job, Needs, Parents, Resources


@dataclass(frozen=True)
class Config(InferenceConfig, EncodingSettings):
    role: Literal["query", "passage"] = "passage"
    """Prompt template of the encoding config to apply to the texts."""
    storage_dtype: Literal["float32", "float16"] = "float32"
    """Dtype of the vectors on disk. `float16` takes half the space and half the time to read. Searches are exact with
    both, but with `float16` on the rounded vectors."""
    npy: bool = False
    """Also write all vectors as `embeddings.npy` (float32 [N, D]) and `ids.txt` (one id per line), for other tools."""


@dataclass(frozen=True)
class Inputs:
    model: Path
    """A Hugging Face model folder."""
    texts: Path
    """Shards with the columns id and text."""
    adapter: Path | None = None
    """A LoRA adapter for the model."""
    examples: Path | None = None
    """Few-shot examples to put before every query: JSON Lines with `query` and `answer`."""


def check(config: Config, inputs: Inputs) -> None:
    if inputs.model is not None:
        check_folder(inputs.model)
    check_quantization("embed", config.quantization, inputs.model)
    if inputs.model is not None:
        check_embedder_model(inputs.model, find_encoding_config(config, inputs), inputs.adapter)
    check_adapter("embed", inputs.adapter, inputs.model, "embedder")


def find_encoding_config(config: Config, inputs: Inputs) -> EncodingConfig:
    """Return the encoding config with which the texts are embedded."""
    examples = read_examples(inputs.examples) or None
    # `--set zero_shot/embed_*.task=...` also sets it for the corpus, whose template usually has no {task}.
    uses_task = config.role == "query"
    return resolve_encoding_config("embed", config, inputs.model, inputs.adapter, examples, uses_task=uses_task)


def estimate_needs(config: Config, inputs: Inputs, resources: Resources, parents: Parents) -> Needs | None:
    folder = needs.find_model("model", inputs, parents)
    if folder is None:
        return None
    limit = config.max_length or read_encoding_config(folder).max_length
    if inputs.examples:
        length = limit
    else:
        length = needs.bound_length(limit, parents, "texts")
    if config.role == "passage":
        names = ("documents",)
    else:
        names = ("test/queries",)
    rows = needs.count(parents, "texts", *names, "test/statements")
    own = needs.infer(folder, "backbone", config, inputs, resources, parents, length=length, rows=rows)
    size = 4 * config.npy + (4 if config.storage_dtype == "float32" else 2)
    disk = (rows or 0) * read_size(folder, "hidden_size") * size / 1e9
    if disk > 0.05:
        return replace(own or Needs(0.0, 0.0), disk=disk)
    return own


JOB = Job(
    "embed",
    config=Config,
    inputs=Inputs,
    resources=(*MAP_RESOURCES, "batch_tokens"),
    is_worker=lambda config: True,
    check=check,
    predict=predict_prompts,
    needs=estimate_needs,
    outputs=("embeddings.npy", "ids.txt"),
    metrics=lambda config: ("rows", "dim", "tokens", "dtype"),
)
