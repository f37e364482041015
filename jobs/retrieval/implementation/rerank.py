"""Implementation of `rerank`: scores shards of lists with transformers or vLLM."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import transformers

from ratchet.data.scored_lists import Lists, check_lists, describe_teacher, write_flag_embedding, write_scores
from ratchet.data.tables import list_shards
from ratchet.jobs.distributed.resolve_dtype import resolve_dtype
from ratchet.jobs.distributed.shard_map import ReportProgress, count_rows
from ratchet.jobs.distributed.vllm_shards import Request, Task, run_engine
from ratchet.jobs.model_settings import list_instructions, resolve_reranker_config
from ratchet.jobs.retrieval.rerank import Config, Inputs, check_vllm
from ratchet.jobs.training import teacher_gate
from ratchet.jobs.training.config import REFUSED
from ratchet.models.batching import check_finite
from ratchet.models.reranker import reranker
from ratchet.models.reranker.reranker_config import PairTokenizer
from ratchet.models.vllm import make_scorer_args
from ratchet.orchestrator.job_interface import Context, Result


class Worker:
    """Scores shards of lists with transformers. Each worker has a copy of the model."""

    def __init__(self, inputs: Inputs, config: Config, batch_tokens: int, device: str) -> None:
        self.reranker = reranker.load(
            inputs.model,
            inputs.adapter,
            dtype=config.dtype,
            device=device,
            quantization=config.quantization,
            packed=True,
            reranker_config=resolve_reranker_config(config, inputs.model, inputs.adapter),
        )
        self.config, self.batch_tokens = config, batch_tokens
        self.lists = Lists(inputs.lists, inputs.corpus, config.depth, config.half)

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
        self.config, self.lists = config, Lists(inputs.lists, inputs.corpus, config.depth, config.half)
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
        check_finite("score of pair", scores)
        return write_scores(target, table, np.split(scores, np.cumsum([len(own) for own in texts])[:-1]), tokens)


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
    check_vllm(config, inputs)  # at plan time the model may not have existed
    counts = run_engine(context, shards, config, inputs, Worker, ShardClient, rows)
    write_flag_embedding(context.out, inputs.corpus)
    made = {"queries": rows, "pairs": counts.get("pairs", 0), "tokens": counts.get("tokens", 0)}
    accuracy, note = describe_teacher(counts)
    return Result({**made, **accuracy, "dtype": config.dtype}, note=note)
