"""Answers to shards of samples, with transformers or vLLM: the workers of `generate`."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.data.tables import write_table
from ratchet.data.tasks import get_task
from ratchet.data.tasks.answers import COMPLETIONS
from ratchet.data.tasks.task import Sample, read_task_name, row_to_sample, sample_to_row
from ratchet.jobs.answers.chat_options import load_decoder, read_chat
from ratchet.jobs.distributed.piece_runner import ReportProgress
from ratchet.jobs.distributed.pieces import Piece
from ratchet.jobs.distributed.vllm_shards import Request
from ratchet.models.decoder import decoder
from ratchet.models.decoder.multi_turn import ConversationState, converse, tokenize_prompts
from ratchet.models.decoder.sampling import Sampling
from ratchet.models.vllm import make_sampling_params

if TYPE_CHECKING:
    from ratchet.jobs.answers.generate import Config, Inputs

TALK_COLUMNS = ("answers", "truncated", "prompt_tokens", "new_prompt_tokens", "generated_tokens")
"""Columns of COMPLETIONS that are attributes of conversations, one value per completion."""


class Worker:
    """Answers pieces of shards of samples with transformers. Writes ratchet.data.tasks.answers.COMPLETIONS."""

    def __init__(self, config: "Config", inputs: "Inputs", batch_tokens: int, device: str) -> None:
        self.config = config
        self.batch_tokens = batch_tokens
        self.decoder = load_decoder(config, inputs, device)
        self.sampling = _make_sampling(config, inputs)

    def __call__(self, piece: Piece, target: Path, report: ReportProgress) -> dict[str, int]:
        samples: list[Sample] = piece.take(read_samples(piece.source))
        total = self.config.num_completions * sum(len(sample.turns) for sample in samples)
        done = tokens = 0

        def progress(answers: int, new_tokens: int) -> None:
            nonlocal done, tokens
            done += answers
            tokens += new_tokens
            report(len(samples) * done // total, tokens)

        groups: dict[str, list[Sample]] = {}
        for sample in samples:
            group = sample.group if self.config.measure_latency else "all"
            groups.setdefault(group, []).append(sample)
        rows = []
        for group_samples in groups.values():
            start = time.perf_counter()
            talks = start_conversations(group_samples, self.config.num_completions)
            converse(
                self.decoder,
                talks,
                self.sampling,
                batch_tokens=self.batch_tokens,
                max_prompt_length=self.config.max_prompt_length,
                progress=progress,
            )
            seconds = None
            if self.config.measure_latency:
                seconds = (time.perf_counter() - start) / len(group_samples)
            rows += _make_rows(group_samples, talks, self.decoder.tokenizer, seconds)
        write_table(target, pa.Table.from_pylist(rows, COMPLETIONS))
        return {"rows": len(rows), "tokens": tokens}


class ShardClient:
    """Makes vLLM requests from shards of samples. Writes the same tables as `Worker`."""

    def __init__(self, config: "Config", inputs: "Inputs") -> None:
        self.config = config
        self.conversations = decoder.load_conversations(inputs.model, read_chat(inputs.samples)[0])
        self.sampling = _make_sampling(config, inputs)

    def requests(self, source: Path) -> list[Request]:
        talks = start_conversations(read_samples(source), self.config.num_completions)
        prompts = tokenize_prompts(talks, self.conversations, self.config.max_prompt_length)
        found = []
        for talk, ids in zip(talks, prompts, strict=True):
            how = make_sampling_params(self.sampling, self.conversations.ends, talk.next_name)
            found.append((np.array(ids, np.int32), how))
        return found

    def write(
        self, source: Path, target: Path, answers: Sequence[np.ndarray], tokens: int
    ) -> dict[str, int]:
        samples = read_samples(source)
        talks = start_conversations(samples, self.config.num_completions)
        for talk, prompt, ids in zip(
            talks, tokenize_prompts(talks, self.conversations), answers, strict=True
        ):
            talk.add(prompt, ids.tolist(), self.conversations, self.sampling)
        rows = _make_rows(samples, talks, self.conversations.tokenizer, None)
        write_table(target, pa.Table.from_pylist(rows, COMPLETIONS))
        return {"rows": len(rows), "tokens": tokens}


def _make_sampling(config: "Config", inputs: "Inputs") -> Sampling:
    return Sampling(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        max_new_tokens=config.max_new_tokens,
        stop=read_chat(inputs.samples)[1] or get_task(read_task_name(inputs.samples)).stop,
        seed=config.seed,
    )


def read_samples(shard: Path) -> list[Sample]:
    return [row_to_sample(row) for row in pq.read_table(shard).to_pylist()]


def start_conversations(samples: Sequence[Sample], num_completions: int) -> list[ConversationState]:
    """Return the conversations of each sample, one per completion, without answers."""
    found = []
    for sample in samples:
        questions = [question for question, _ in sample.turns]
        for number in range(num_completions):
            found.append(ConversationState(f"{sample.id}/{number}", sample.system, questions))
    return found


def _make_rows(
    samples: Sequence[Sample],
    talks: Sequence[ConversationState],
    tokenizer: Any,
    seconds: float | None,
) -> list[dict[str, Any]]:
    """Return rows of COMPLETIONS. talks: the conversations, sample by sample. seconds: time per sample, or None."""
    each = len(talks) // max(1, len(samples))
    found = []
    for number, sample in enumerate(samples):
        row = sample_to_row(sample)
        row |= {"shared_tokens": count_shared_tokens(sample, tokenizer), "seconds": seconds}
        for name in TALK_COLUMNS:
            row[name] = [getattr(talk, name) for talk in talks[number * each : (number + 1) * each]]
        found.append(row)
    return found


def count_shared_tokens(sample: Sample, tokenizer: Any) -> int:
    """Return the number of tokens before the last paragraph of the first question: the passage."""
    head, newline, _ = sample.turns[0][0].rpartition("\n\n")
    return len(tokenizer(head + newline, add_special_tokens=False)["input_ids"])
