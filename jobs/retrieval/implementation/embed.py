"""Embeds shards of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.data.tables import embeddings_schema, list_shards, write_table
from ratchet.errors import ArtifactError
from ratchet.jobs.distributed.resolve_dtype import resolve_dtype
from ratchet.jobs.distributed.shard_map import ReportProgress, count_rows, map_shards
from ratchet.jobs.retrieval.embed import Config, Inputs
from ratchet.models.devices import name_device
from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import read_encoding_config
from ratchet.models.model_files import find_config_folder
from ratchet.orchestrator.job_interface import Context, Result


class Worker:
    """Embeds shards with one copy of the model."""

    def __init__(self, model: Path, adapter: Path | None, config: Config, batch_tokens: int, device: str) -> None:
        encoding_config = read_encoding_config(find_config_folder(model, adapter)).with_limits(config.max_length)
        self.encoder = encoder.load(
            model,
            adapter,
            dtype=config.dtype,
            device=device,
            quantization=config.quantization,
            encoding_config=encoding_config,
        )
        self.config = config
        self.batch_tokens = batch_tokens

    def __call__(self, source: Path, target: Path, report: ReportProgress) -> dict[str, int]:
        texts = pq.read_table(source, columns=["id", "text"])
        tokens = 0

        def count(rows: int, done: int) -> None:
            nonlocal tokens
            tokens = done
            report(rows, done)

        strings = texts["text"].to_pylist()
        vectors_ND = np.zeros((0, self.encoder.dim), np.float32)
        if strings:
            vectors_ND = self.encoder.encode(strings, self.config.role, batch_tokens=self.batch_tokens, progress=count)
        flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.ravel()), self.encoder.dim)
        schema = embeddings_schema(self.encoder.dim)
        write_table(target, pa.Table.from_arrays([texts["id"].combine_chunks(), flat], schema=schema))
        return {"rows": len(texts), "tokens": tokens}


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    shards = list_shards(inputs.texts)
    rows = count_rows(shards, ["id", "text"])
    config = resolve_dtype(context, config)
    arguments: dict[str, Any] = {
        "model": inputs.model,
        "adapter": inputs.adapter,
        "config": config,
        "batch_tokens": context.resources.batch_tokens,
        "device": name_device(context.resources.gpus),
    }
    counts = map_shards(context, shards, Worker, arguments, context.out, total_rows=rows)
    dims = {pq.read_schema(path).field("embedding").type.list_size for path in list_shards(context.out)}
    if counts["rows"] != rows or len(dims) != 1:
        raise ArtifactError(
            f"step {context.step}: {counts['rows']} vectors of {sorted(dims)} dimensions for {rows} texts;"
            " expected one vector per text, all of the same dimension"
        )
    return Result({"rows": rows, "dim": dims.pop(), "tokens": counts.get("tokens", 0), "dtype": config.dtype})
