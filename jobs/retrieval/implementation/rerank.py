"""Scores lists of passages with a reranker."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import transformers

from ratchet.data.formats.flag_embedding import make_row, write_rows
from ratchet.data.tables import TEACHER_SCORES, list_shards, read_texts, write_table
from ratchet.errors import InputError
from ratchet.jobs.distributed.resolve_dtype import resolve_dtype
from ratchet.jobs.distributed.shard_map import ReportProgress, count_rows
from ratchet.jobs.distributed.vllm_shards import Request, Task, run_engine
from ratchet.jobs.model_settings import list_instructions, resolve_reranker_config
from ratchet.jobs.retrieval.rerank import Config, Inputs, check_vllm
from ratchet.jobs.training import teacher_gate
from ratchet.models.reranker import reranker
from ratchet.models.reranker.reranker_config import PairTokenizer
from ratchet.models.vllm import make_scorer_args
from ratchet.orchestrator.job_interface import Context, Result


class Worker:
    """Scores shards with one copy of the model."""

    def __init__(self, inputs: Inputs, config: Config, batch_tokens: int, device: str) -> None:
        self.reranker = reranker.load(
            inputs.model,
            inputs.adapter,
            dtype=config.dtype,
            device=device,
            quantization=config.quantization,
            reranker_config=resolve_reranker_config(config, inputs.model, inputs.adapter),
        )
        self.config, self.lists, self.batch_tokens = config, Lists(inputs.corpus, config.depth), batch_tokens

    def __call__(self, source: Path, target: Path, report: ReportProgress) -> dict[str, int]:
        table, texts = self.lists.read(source)
        pairs = max(1, sum(map(len, texts)))
        tokens = 0

        def count(done: int, seen: int) -> None:
            nonlocal tokens
            tokens = seen
            report(done * len(table) // pairs, seen)

        queries, own = table["text"].to_pylist(), list_instructions(self.config, table)
        scores = self.reranker.score(queries, texts, own, batch_tokens=self.batch_tokens, progress=count)
        return write_scores(target, table, scores, tokens)


class ShardClient:
    """Makes vLLM requests from the pairs of shards. Writes the same tables as `Worker`."""

    task: Task = "classify"

    def __init__(self, config: Config, inputs: Inputs) -> None:
        self.config, self.lists = config, Lists(inputs.corpus, config.depth)
        tokenizer = transformers.AutoTokenizer.from_pretrained(inputs.model)
        self.tokens = PairTokenizer(tokenizer, resolve_reranker_config(config, inputs.model, inputs.adapter))
        self.engine_args = make_scorer_args(tokenizer.convert_ids_to_tokens(self.tokens.answers))

    def requests(self, source: Path) -> list[Request]:
        table, texts = self.lists.read(source)
        own = list_instructions(self.config, table)
        pairs = self.tokens.tokenize_pairs(table["text"].to_pylist(), texts, own)
        return [
            (np.array([*first, *second], np.int32), {"use_activation": False}) for own in pairs for first, second in own
        ]

    def write(self, source: Path, target: Path, answers: Sequence[np.ndarray], tokens: int) -> dict[str, int]:
        table, texts = self.lists.read(source)
        scores = np.concatenate([np.zeros(0), *answers]).astype(np.float32)
        reranker.check_finite(scores)
        return write_scores(target, table, np.split(scores, np.cumsum([len(own) for own in texts])[:-1]), tokens)


class Lists:
    """Reads shards of lists, and the texts of their documents. depth: documents of each ranking; None: all."""

    def __init__(self, corpus: Path, depth: int | None) -> None:
        self.text_of, self.corpus, self.depth = read_texts(corpus), corpus, depth

    def read(self, source: Path) -> tuple[pa.Table, list[list[str]]]:
        """Return the table of a shard without scores, and the texts of each row, column by column."""
        table = pq.read_table(source)
        table = table.drop_columns([name for name in TEACHER_SCORES.values() if name in table.column_names])
        if "documents" in table.column_names and self.depth is not None:
            for name in ("documents", "scores"):
                cut = [own[: self.depth] for own in table[name].to_pylist()]
                table = table.set_column(
                    table.column_names.index(name), table.field(name), pa.array(cut, table.field(name).type)
                )
        lists = zip(*(table[name].to_pylist() for name in _list_columns(table)), strict=True)
        return table, [
            [self._text(source, row, name) for own in parts for name in own] for row, parts in enumerate(lists)
        ]

    def _text(self, source: Path, row: int, name: str) -> str:
        if name not in self.text_of:
            raise InputError(f"{source}: row {row}: '{name}' is not in {self.corpus}; expected a document's id")
        return self.text_of[name]


def _list_columns(table: pa.Table) -> list[str]:
    return [name for name in TEACHER_SCORES if name in table.column_names]


def write_scores(target: Path, table: pa.Table, scores: Sequence[np.ndarray], tokens: int) -> dict[str, int]:
    """Write a shard with the scores of each row, in the order of the texts of `Lists.read`. Return the counts."""
    start = [0] * len(table)
    for name in _list_columns(table):
        parts = []
        for row, length in enumerate(map(len, table[name].to_pylist())):
            parts.append(scores[row][start[row] : start[row] + length])
            start[row] += length
        ends = pa.array(np.cumsum([0, *map(len, parts)]), pa.int32())
        flat = pa.array(np.concatenate(parts) if parts else np.zeros(0, np.float32), pa.float32())
        table = table.append_column(TEACHER_SCORES[name], pa.ListArray.from_arrays(ends, flat))
    write_table(target, table)
    return {"rows": len(table), "pairs": sum(start), "tokens": tokens}


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    shards = list_shards(inputs.lists)
    rows = count_rows(shards, ["id", "text"])
    columns = set(TEACHER_SCORES) & set(pq.read_schema(shards[0]).names)
    if not columns:
        raise InputError(f"{inputs.lists}: has none of the columns {', '.join(TEACHER_SCORES)}; expected at least one")
    if inputs.teacher_gate is not None:
        gate = teacher_gate.read(inputs.teacher_gate)
        gate.write(context.out)
        if not gate.is_open:
            for path in shards:
                shutil.copyfile(path, context.out / path.name)
            _write_flag_embedding(context.out, inputs.corpus)
            return Result({"queries": rows, "pairs": 0, "tokens": 0, "teacher_gate": str(gate)})
    config = resolve_dtype(context, config)
    check_vllm(config, inputs)  # at plan time the model may not have existed
    counts = run_engine(context, shards, config, inputs, Worker, ShardClient, rows)
    if {"positives", "negatives"} <= columns:
        _write_flag_embedding(context.out, inputs.corpus)
    counts = {"queries": rows, "pairs": counts.get("pairs", 0), "tokens": counts.get("tokens", 0)}
    return Result({**counts, "dtype": config.dtype})


def _write_flag_embedding(folder: Path, corpus: Path) -> None:
    text_of = read_texts(corpus)
    rows = (row for path in list_shards(folder) for row in pq.read_table(path).to_pylist())
    write_rows(folder / "flag_embedding.jsonl", (make_row(row, text_of) for row in rows))
