"""Implementation of `rerank_api`: sends the requests of a shard, and stores the answers."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from ratchet.data.scored_lists import Lists, check_lists, describe_teacher, write_flag_embedding, write_scores
from ratchet.data.tables import list_shards
from ratchet.jobs.distributed.shard_map import commit_shard, complete_shards, count_rows
from ratchet.jobs.retrieval.rerank_api import Config, Inputs
from ratchet.models.reranker.remote import RemoteReranker
from ratchet.orchestrator.job_interface import Context, Progress, Result

SMALLEST = 1e-6
"""Probabilities are clipped to [SMALLEST, 1 - SMALLEST], so that their logits are finite in float32."""


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    check_lists(inputs.lists)
    shards = list_shards(inputs.lists)
    rows = count_rows(shards, ["id", "text"])
    lists = Lists(inputs.lists, inputs.corpus, config.depth)
    process = partial(_ask, context, config, lists, rows)
    counts = complete_shards(context, shards, context.out, process, rows)
    write_flag_embedding(context.out, inputs.corpus)
    accuracy, note = describe_teacher(counts)
    made = {"queries": rows, "pairs": counts["pairs"]}
    return Result({**made, **accuracy, "model": config.model or config.url}, note=note)


def _ask(context: Context, config: Config, lists: Lists, rows: int, targets: Mapping[Path, Path], done: int) -> None:
    key = os.environ.get(config.key_variable, "")
    server = RemoteReranker(config.url, config.model, config.api, key, config.timeout)
    for source, target in targets.items():
        table, texts = lists.read(source)
        answers = Answers(target.with_suffix(".answers.jsonl"))

        def ask(
            row: int, query: str, passages: list[str], answers: Answers = answers, before: int = done
        ) -> np.ndarray:
            if row not in answers.known:
                answers.keep(row, server.score(query, passages))
            context.progress(Progress(before + len(answers.known), rows))
            return answers.known[row]

        with ThreadPoolExecutor(config.concurrency) as pool:
            asked = zip(range(len(table)), table["text"].to_pylist(), texts, strict=True)
            waiting = []
            for one in asked:
                waiting.append(pool.submit(ask, *one))
            try:
                scores = [future.result() for future in waiting]
            finally:
                pool.shutdown(cancel_futures=True)
        if config.probabilities and config.api != "tei":
            scores = [_logit(own) for own in scores]
        commit_shard(context, source, target, lambda file: write_scores(file, table, scores, 0))  # noqa: B023
        done += len(table)


def _logit(probability_P: np.ndarray) -> np.ndarray:
    inside_P = np.clip(probability_P.astype(np.float64), SMALLEST, 1 - SMALLEST)
    return np.log(inside_P / (1 - inside_P)).astype(np.float32)


class Answers:
    """The API's answers for a shard, stored as JSON Lines. A line that a killed process left unfinished is ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known = dict[int, np.ndarray]()
        self.lock = threading.Lock()
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    row, scores = json.loads(line)
                except ValueError:
                    continue
                self.known[row] = np.array(scores, np.float32)

    def keep(self, row: int, scores: list[float]) -> None:
        with self.lock, self.path.open("a") as file:
            # The first line break ends a line that a killed process may have left unfinished.
            file.write(f"\n{json.dumps([row, scores])}\n")
            self.known[row] = np.array(scores, np.float32)
