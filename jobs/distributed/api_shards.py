"""A map over shards whose rows are answered by a server."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ratchet.jobs.distributed.pieces import ShardOutput, commit_piece
from ratchet.jobs.distributed.requests import ask_all
from ratchet.orchestrator.job_interface import Context, Progress


def answer_shards(
    context: Context,
    shards: Sequence[Path],
    read: Callable[[Path], tuple[Any, Sequence[Any]]],
    ask: Callable[[Any], Any],
    write: Callable[..., dict[str, int]],
    concurrency: int,
    suffix: str = "parquet",
) -> dict[str, int]:
    """Write an output shard for each shard, from the answers of a server. Return the summed counts.

    read: returns the content of a shard, and its requests. ask: see `ask_all`. write: writes the file of (target,
    content, answers), and returns counts, among them `rows`."""
    output = ShardOutput(context, shards, suffix=suffix)
    done = output.finished_rows
    for shard in output.unfinished:
        content, requests = read(shard.source)
        stored = shard.target.with_suffix(".answers.jsonl")
        answers: list[Any] = []
        for answer in ask_all(stored, requests, ask, concurrency):
            answers.append(answer)
            answered = shard.rows * len(answers) // len(requests)
            context.progress(Progress(done + answered, output.rows))
        commit_piece(context, shard, partial(write, content=content, answers=answers))
        done += shard.rows
    return output.collect(context.out, output.rows)
