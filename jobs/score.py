"""score: a reranker's relevance for lists of passages: mined negatives (for a teacher's losses) or rankings.

The input's columns stay; for each column of passages' ids one of scores comes beside it:

    positives, negatives  ->  teacher_positive_scores, teacher_negative_scores
    documents             ->  teacher_scores

Positives and negatives are written as FlagEmbedding's JSONL too, with `pos_scores` and `neg_scores`.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jobs import standing
from jobs.job import BadArtifact, BadInput, Context, Job, Result
from jobs.shards import Tell, map_shards, rows_of


@dataclass(frozen=True)
class Config:
    max_length: int | None = None
    """Tokens of a pair; None: the contract's."""
    query_max_length: int | None = None
    """Tokens of the query in a pair; None: the contract's."""
    depth: int | None = None
    """Of rankings: only the first so many are scored; None: all."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the model's arithmetic; the scores themselves are float32."""


@dataclass(frozen=True)
class Inputs:
    model: Path
    """A reranker: a Hugging Face model folder."""
    lists: Path
    """Shards of queries with lists of ids, as `mine` and `evaluate_retrieval` write them."""
    corpus: Path
    """The texts behind their ids."""
    adapter: Path | None = None
    """A LoRA adapter for the model."""
    standing: Path | None = None
    """What `finetune_reranker` found of the model, for mined lists that are to teach. If it is no teacher, nothing is
    scored: the lists are handed on as they are, and finetunes learn from the labels alone."""


def check(config: Config, inputs: Inputs) -> None:
    from models import pairs
    from models.weights import check_folder

    for name in ("max_length", "query_max_length", "depth"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise BadInput(f"score.{name}: {value} given; expected 1 or more, or none")
    if inputs.adapter is not None and not (inputs.adapter / "adapter_config.json").is_file():
        raise BadInput(f"score.adapter: {inputs.adapter} has no adapter_config.json; expected a LoRA adapter's folder")
    if inputs.model is not None:
        check_folder(inputs.model)
        pairs.read(inputs.model).shortened(config.max_length, config.query_max_length)


class Worker:
    """Scores shards with one copy of the model."""

    def __init__(self, model: Path, adapter: Path | None, corpus: Path, config: Config, batch_tokens: int) -> None:
        from data.tables import read_shards
        from models import pairs, reranker
        from models.contract import home

        contract = pairs.read(home(model, adapter)).shortened(config.max_length, config.query_max_length)
        self.reranker = reranker.load(model, adapter, dtype=config.dtype, contract=contract)
        table = read_shards(corpus, ["id", "text"])
        self.text_of = dict(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))
        self.config, self.batch_tokens, self.corpus = config, batch_tokens, corpus

    def __call__(self, source: Path, target: Path, tell: Tell) -> dict[str, int]:
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        from data.tables import SCORED, write_table

        table = pq.read_table(source)
        table = table.drop_columns([name for name in SCORED.values() if name in table.column_names])
        columns = [name for name in SCORED if name in table.column_names]
        if "documents" in columns and self.config.depth is not None:
            for name in ("documents", "scores"):
                cut = [own[: self.config.depth] for own in table[name].to_pylist()]
                table = table.set_column(
                    table.column_names.index(name), table.field(name), pa.array(cut, table.field(name).type)
                )
        lists = {name: table[name].to_pylist() for name in columns}
        texts = [
            [self._text(source, row, name) for own in parts for name in own]
            for row, parts in enumerate(zip(*lists.values(), strict=True))
        ]
        pairs = max(1, sum(map(len, texts)))
        tokens = 0

        def count(done: int, seen: int) -> None:
            nonlocal tokens
            tokens = seen
            tell(done * len(table) // pairs, seen)

        scores = self.reranker.score(table["text"].to_pylist(), texts, batch_tokens=self.batch_tokens, progress=count)
        start = [0] * len(table)
        for name in columns:
            parts = []
            for row, own in enumerate(lists[name]):
                parts.append(scores[row][start[row] : start[row] + len(own)])
                start[row] += len(own)
            ends = pa.array(np.cumsum([0, *map(len, parts)]), pa.int32())
            flat = pa.array(np.concatenate(parts) if parts else np.zeros(0, np.float32), pa.float32())
            table = table.append_column(SCORED[name], pa.ListArray.from_arrays(ends, flat))
        write_table(target, table)
        return {"rows": len(table), "pairs": sum(map(len, texts)), "tokens": tokens}

    def _text(self, source: Path, row: int, name: str) -> str:
        if name not in self.text_of:
            raise BadInput(f"{source}: row {row}: '{name}' is not in {self.corpus}; expected a document's id")
        return self.text_of[name]


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import pyarrow.parquet as pq

    from data.tables import SCORED, shard_paths

    shards = shard_paths(inputs.lists)
    rows = rows_of(shards, ["id", "text"])
    columns = set(SCORED) & set(pq.read_schema(shards[0]).names)
    if not columns:
        raise BadInput(f"{inputs.lists}: has none of the columns {', '.join(SCORED)}; expected lists of ids to score")
    if inputs.standing is not None:
        judged = standing.read(inputs.standing)
        judged.write(context.out)
        if not judged.teaches:
            for path in shards:
                shutil.copyfile(path, context.out / path.name)
            _write_flag_embedding(context.out, inputs.corpus)
            return Result({"queries": rows, "pairs": 0, "tokens": 0, "teaches": str(judged)})
    arguments: dict[str, Any] = {
        "model": inputs.model,
        "adapter": inputs.adapter,
        "corpus": inputs.corpus,
        "config": config,
        "batch_tokens": context.resources.batch_tokens,
    }
    counts = map_shards(context, shards, Worker, arguments, context.out, total_rows=rows)
    if counts["rows"] != rows:
        raise BadArtifact(f"step {context.step}: {counts['rows']} rows for {rows} queries; expected one each")
    if {"positives", "negatives"} <= columns:
        _write_flag_embedding(context.out, inputs.corpus)
    return Result({"queries": rows, "pairs": counts.get("pairs", 0), "tokens": counts.get("tokens", 0)})


def _write_flag_embedding(folder: Path, corpus: Path) -> None:
    import pyarrow.parquet as pq

    from data.flag_embedding import row_of, write
    from data.tables import read_shards, shard_paths

    table = read_shards(corpus, ["id", "text"])
    text_of = dict(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))
    rows = (row for path in shard_paths(folder) for row in pq.read_table(path).to_pylist())
    write(folder / "flag_embedding.jsonl", (row_of(row, text_of) for row in rows))


JOB = Job("score", version=1, config=Config, inputs=Inputs, run=run, check=check)
