"""embed: compute the embeddings of texts, shard by shard."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ratchet.data.formats.examples import read_examples
from ratchet.jobs import needs, planned_rows
from ratchet.jobs.distributed.piece_size import MODEL_PIECES, divide_input
from ratchet.jobs.inference import (
    LOADED_MODEL,
    InferenceConfig,
    check_inference,
    check_quantization,
)
from ratchet.jobs.model_checks import check_embedder_model, read_size
from ratchet.jobs.prompt_settings import (
    EncodingSettings,
    describe_prompts,
    list_instructions,
    list_own_examples,
    resolve_encoding_config,
)
from ratchet.models.embedder.encoding_config import EncodingConfig, read_encoding_config
from ratchet.orchestrator.job_interface import MAP_RESOURCES, Context, Job, Needs, Parents, Result

if TYPE_CHECKING:
    import numpy as np

    from ratchet.jobs.distributed.piece_runner import ReportProgress
    from ratchet.jobs.distributed.pieces import Piece
    from ratchet.jobs.distributed.shard_map import ModelMap


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
    """Few-shot examples to put before every query without examples of its own: JSON Lines with `query` and `answer`."""


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    check_inference("embed", config, inputs, "embedder")
    if inputs.model is not None:
        # Adapters and examples that a step has yet to make bring templates along.
        is_known = not any(
            name in parents and getattr(inputs, name) is None for name in ("adapter", "examples")
        )
        encoding_config = find_encoding_config(config, inputs, is_known=is_known)
        check_embedder_model(inputs.model, encoding_config, inputs.adapter)
    return describe_prompts(config, inputs, parents)


def find_encoding_config(
    config: Config, inputs: Inputs, *, is_known: bool = True
) -> EncodingConfig:
    """Return the encoding config with which the texts are embedded. is_known: whether all templates are known yet."""
    examples = read_examples(inputs.examples) or None
    # `--set zero_shot/embed_*.task=...` also sets it for the corpus, whose template usually has no {task}.
    uses_task = is_known and config.role == "query"
    return resolve_encoding_config(
        "embed", config, inputs.model, inputs.adapter, examples, uses_task=uses_task
    )


@needs.of_model
def estimate_needs(step: needs.ModelStep) -> Needs | None:
    config = step.config
    length = config.max_length or read_encoding_config(step.folder).max_length
    if not step.inputs.examples and "examples" not in step.parents:
        length = step.bound_length(length, "texts")
    own = step.estimate_inference("backbone", length=length)
    rows = planned_rows.count_rows(step.parents, "texts")
    bytes_per_number = 4 * config.npy + (4 if config.storage_dtype == "float32" else 2)
    disk = rows * read_size(step.folder, "hidden_size") * bytes_per_number / 1e9
    return replace(own or Needs(0.0, 0.0), disk=disk)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.data.vectors import read_dim
    from ratchet.jobs.distributed.shard_map import map_model

    # At plan time the model may not have existed.
    check_quantization("embed", config.quantization, inputs.model)
    own = describe_map(context, config, inputs)
    counts = map_model(context, own, describe_map)
    dim = read_dim(context.out)
    if config.npy:
        _write_npy(context.out, own.rows, dim)
    dtype = own.config.dtype
    return Result({"rows": own.rows, "dim": dim, "tokens": counts["tokens"], "dtype": dtype})


def describe_map(context: Context, config: Config, inputs: Inputs) -> "ModelMap":
    from ratchet.jobs.distributed.shard_map import make_model_map

    columns = ["id", "text"]
    return make_model_map(context, Worker, config, inputs, inputs.texts, columns, suffix="arrow")


class Worker:
    """Embeds pieces of shards of texts. Each worker has a copy of the model."""

    def __init__(self, inputs: Inputs, config: Config, batch_tokens: int, device: str) -> None:
        from ratchet.models.embedder import encoder

        self.encoder = encoder.load(
            inputs.model,
            inputs.adapter,
            dtype=config.dtype,
            device=device,
            quantization=config.quantization,
            encoding_config=find_encoding_config(config, inputs),
        )
        self.config = config
        self.batch_tokens = batch_tokens

    def __call__(self, piece: "Piece", target: Path, report: "ReportProgress") -> dict[str, int]:
        from ratchet.data.tables import read_queries
        from ratchet.data.vectors import write_vectors

        texts = piece.take(read_queries(piece.source, ("id", "text")))
        counts = {"rows": 0, "tokens": 0}

        def count(length_B: "np.ndarray") -> None:
            counts["rows"] += len(length_B)
            counts["tokens"] += int(length_B.sum())
            report(counts["rows"], counts["tokens"])

        vectors_ND = self.encoder.encode(
            texts["text"].to_pylist(),
            self.config.role,
            list_instructions(self.config, texts),
            list_own_examples(texts),
            batch_tokens=self.batch_tokens,
            progress=count,
        )
        write_vectors(target, texts["id"], vectors_ND.astype(self.config.storage_dtype))
        return counts


def _write_npy(folder: Path, rows: int, dim: int) -> None:
    """Write the vectors of all shards as one array (one shard is in memory at a time), and the ids."""
    import numpy as np

    from ratchet.data.tables import open_mapped
    from ratchet.data.vectors import read_blocks

    array = np.lib.format.open_memmap(folder / "embeddings.npy", "w+", np.float32, (rows, dim))
    ids = open_mapped(folder)["id"].combine_chunks()
    for first, block_ND in read_blocks(folder, ids, mapped=True):
        array[first : first + len(block_ND)] = block_ND
    array.flush()
    (folder / "ids.txt").write_text("".join(f"{name}\n" for name in ids.to_pylist()), "utf-8")


JOB = Job(
    "embed",
    Config,
    Inputs,
    run,
    divide=divide_input("texts", MODEL_PIECES),
    loads=LOADED_MODEL,
    resources=(*MAP_RESOURCES, "batch_tokens"),
    check=check,
    needs=estimate_needs,
    outputs=("embeddings.npy", "ids.txt"),
    metrics=("rows", "dim", "tokens", "dtype"),
)
