"""embed: texts -> vectors, shard by shard."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jobs.job import BadArtifact, BadInput, Context, Job, Result
from jobs.shards import Tell, map_shards, rows_of


@dataclass(frozen=True)
class Config:
    role: Literal["query", "passage"] = "passage"
    """Which of the contract's templates the texts are put into."""
    max_length: int | None = None
    """Tokens; None: the contract's."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the model's arithmetic; the vectors themselves are float32. `auto` is bfloat16 on GPUs, and on CPUs that
    multiply it natively, so the last digits depend on the kind of machine; the others give the same on all CPUs."""


@dataclass(frozen=True)
class Inputs:
    model: Path
    """A Hugging Face model folder."""
    texts: Path
    """Shards with the columns id and text."""
    adapter: Path | None = None
    """A LoRA adapter for the model."""


def check(config: Config, inputs: Inputs) -> None:
    from models.weights import check_folder

    if inputs.model is not None:
        check_folder(inputs.model)
    if config.max_length is not None and config.max_length < 4:
        raise BadInput(f"embed.max_length: {config.max_length} given; expected 4 or more tokens, or none")
    if inputs.adapter is not None and not (inputs.adapter / "adapter_config.json").is_file():
        raise BadInput(f"embed.adapter: {inputs.adapter} has no adapter_config.json; expected a LoRA adapter's folder")


class Worker:
    """Embeds shards with one copy of the model."""

    def __init__(self, model: Path, adapter: Path | None, config: Config, batch_tokens: int) -> None:
        from models import contract, encoder

        agreed = contract.read(contract.home(model, adapter)).shortened(config.max_length)
        self.encoder = encoder.load(model, adapter, dtype=config.dtype, contract=agreed)
        self.config = config
        self.batch_tokens = batch_tokens

    def __call__(self, source: Path, target: Path, tell: Tell) -> dict[str, int]:
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        from data.tables import embeddings_schema, write_table

        texts = pq.read_table(source, columns=["id", "text"])
        tokens = 0

        def count(rows: int, done: int) -> None:
            nonlocal tokens
            tokens = done
            tell(rows, done)

        strings = texts["text"].to_pylist()
        vectors_ND = np.zeros((0, self.encoder.dim), np.float32)
        if strings:
            vectors_ND = self.encoder.encode(strings, self.config.role, batch_tokens=self.batch_tokens, progress=count)
        flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.ravel()), self.encoder.dim)
        schema = embeddings_schema(self.encoder.dim)
        write_table(target, pa.Table.from_arrays([texts["id"].combine_chunks(), flat], schema=schema))
        return {"rows": len(texts), "tokens": tokens}


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import pyarrow.parquet as pq

    from data.tables import shard_paths

    shards = shard_paths(inputs.texts)
    rows = rows_of(shards, ["id", "text"])
    arguments: dict[str, Any] = {
        "model": inputs.model,
        "adapter": inputs.adapter,
        "config": config,
        "batch_tokens": context.resources.batch_tokens,
    }
    counts = map_shards(context, shards, Worker, arguments, context.out, total_rows=rows)
    dims = {pq.read_schema(path).field("embedding").type.list_size for path in shard_paths(context.out)}
    if counts["rows"] != rows or len(dims) != 1:
        raise BadArtifact(
            f"step {context.step}: {counts['rows']} vectors of {sorted(dims)} dimensions for {rows} texts;"
            " expected one each, all of one length"
        )
    return Result({"rows": rows, "dim": dims.pop(), "tokens": counts.get("tokens", 0)})


JOB = Job("embed", version=1, config=Config, inputs=Inputs, run=run, check=check)
