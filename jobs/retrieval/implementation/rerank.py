"""Implementation of `rerank`: scores shards of lists."""

from __future__ import annotations

import shutil
from pathlib import Path

from ratchet.data.scored_lists import Lists, check_lists, describe_teacher, write_flag_embedding, write_scores
from ratchet.data.tables import list_shards
from ratchet.jobs.distributed.resolve_dtype import resolve_dtype
from ratchet.jobs.distributed.shard_map import ReportProgress, count_rows, map_model
from ratchet.jobs.inference import check_quantization
from ratchet.jobs.model_settings import list_instructions, resolve_reranker_config
from ratchet.jobs.retrieval.rerank import Config, Inputs
from ratchet.jobs.training import teacher_gate
from ratchet.jobs.training.config import REFUSED
from ratchet.models.reranker import reranker
from ratchet.orchestrator.job_interface import Context, Result


class Worker:
    """Scores shards of lists. Each worker has a copy of the model."""

    def __init__(self, inputs: Inputs, config: Config, batch_tokens: int, device: str) -> None:
        self.reranker = reranker.load(
            inputs.model,
            inputs.adapter,
            dtype=config.dtype,
            device=device,
            quantization=config.quantization,
            reranker_config=resolve_reranker_config(config, inputs.model, inputs.adapter),
        )
        self.config = config
        self.batch_tokens = batch_tokens
        self.lists = Lists(inputs.lists, inputs.corpus, config.depth)

    def __call__(self, source: Path, target: Path, report: ReportProgress) -> dict[str, int]:
        table, texts = self.lists.read(source)
        pairs = max(1, sum(map(len, texts)))
        tokens = 0

        def count(done: int, seen: int) -> None:
            nonlocal tokens
            tokens = seen
            report(done * len(table) // pairs, seen)

        queries = table["text"].to_pylist()
        own = list_instructions(self.config, table)
        scores = self.reranker.score(queries, texts, own, batch_tokens=self.batch_tokens, progress=count)
        return write_scores(target, table, scores, tokens)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    check_lists(inputs.lists)
    shards = list_shards(inputs.lists)
    rows = count_rows(shards, ["id", "text"])
    if inputs.teacher_gate is not None:
        gate = teacher_gate.read(inputs.teacher_gate)
        if not gate.is_open:
            # The same files as the input, so that later steps have the same fingerprint as without a teacher.
            for path in [*shards, *inputs.lists.glob("*.jsonl")]:
                shutil.copyfile(path, context.out / path.name)
            why = f"the teacher is not used: {str(gate).removeprefix('no: ')}"
            return Result({"queries": rows, "pairs": 0, "tokens": 0, REFUSED: str(gate)}, note=why)
    config = resolve_dtype(context, config)
    # At plan time the model may not have existed.
    check_quantization("rerank", config.quantization, inputs.model)
    counts = map_model(context, shards, Worker, config, inputs, rows)
    write_flag_embedding(context.out, inputs.corpus)
    made = {"queries": rows, "pairs": counts.get("pairs", 0), "tokens": counts.get("tokens", 0)}
    accuracy, note = describe_teacher(counts)
    return Result({**made, **accuracy, "dtype": config.dtype}, note=note)
