"""Implementation of `teacher_logprobs`: computes a teacher's top log-probabilities for shards of samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from transformers import AutoConfig

from ratchet.data.tables import list_shards, write_table
from ratchet.data.tasks.answers import TEACHER_LOGPROBS
from ratchet.data.tasks.task import SAMPLES, read_task_file, write_task_name
from ratchet.errors import InputError
from ratchet.jobs.answers.chat_options import read_chat
from ratchet.jobs.answers.teacher_logprobs import Config, Inputs, find_max_length
from ratchet.jobs.answers.token_table import TALK
from ratchet.jobs.distributed.resolve_dtype import resolve_dtype
from ratchet.jobs.distributed.shard_map import ReportProgress, count_rows, map_shards
from ratchet.models.batching import batch_by_tokens
from ratchet.models.decoder import decoder
from ratchet.models.devices import name_device
from ratchet.models.losses.causal_lm_loss import top_logprobs
from ratchet.orchestrator.job_interface import Context, Result


class Worker:
    """Writes ratchet.data.tasks.answers.TEACHER_LOGPROBS for shards of samples."""

    def __init__(self, config: Config, inputs: Inputs, batch_tokens: int, device: str) -> None:
        self.config = config
        self.batch_tokens = batch_tokens
        options: dict[str, Any] = {"dtype": config.dtype, "device": device, "quantization": config.quantization}
        arguments, _ = read_chat(inputs.samples)
        self.decoder = decoder.load(inputs.model, inputs.adapter, template_arguments=arguments, **options)
        self.rows = AutoConfig.from_pretrained(inputs.student).get_text_config().vocab_size

    def __call__(self, source: Path, target: Path, report: ReportProgress) -> dict[str, int]:
        samples = pq.read_table(source).to_pylist()
        tokens = self.decoder.conversations.tokenize_samples(map(TALK, samples))
        rows: list[dict[str, Any]] = [{} for _ in samples]
        done = 0
        if tokens:
            for batch in batch_by_tokens([len(one.ids) for one in tokens], self.batch_tokens):
                found = top_logprobs(self.decoder, [tokens[i] for i in batch], self.config.top_k, rows=self.rows)
                for i, one in zip(batch, found, strict=True):
                    rows[i] = {
                        "id": samples[i]["id"],
                        "top_k": one.ids_TK.shape[1],
                        "token_ids": one.ids_TK.ravel(),
                        "logprobs": one.logprob_TK.ravel(),
                    }
                done += sum(len(tokens[i].ids) for i in batch)
                report(sum(bool(row) for row in rows), done)
        write_table(target, pa.Table.from_pylist(rows, TEACHER_LOGPROBS))
        return {"rows": len(rows), "tokens": done}


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    shards = list_shards(inputs.samples)
    total = count_rows(shards, SAMPLES.names)
    conversations = decoder.load_conversations(inputs.model, read_chat(inputs.samples)[0])
    limit = find_max_length(config, inputs.model)
    # Check lengths before the model runs: a higher limit is another step, and computed shards would be lost.
    for rows in (pq.read_table(path).to_pylist() for path in shards):
        for row, tokens in zip(rows, conversations.tokenize_samples(map(TALK, rows)), strict=True):
            if len(tokens.ids) > limit:
                raise InputError(
                    f"teacher_logprobs.max_length: sample {row['id']} has {len(tokens.ids)} tokens; expected at most"
                    f" {limit}; raise it, or remove the sample"
                )
    device = name_device(context.resources.gpus)
    config = resolve_dtype(context, config)
    arguments = {"config": config, "inputs": inputs, "batch_tokens": context.resources.batch_tokens, "device": device}
    counts = map_shards(context, shards, Worker, arguments, context.out, total_rows=total)
    write_task_name(context.out, **read_task_file(inputs.samples))
    numbers = {"samples": counts["rows"], "tokens": counts.get("tokens", 0)}
    return Result({**numbers, "top_k": config.top_k, "dtype": config.dtype})
