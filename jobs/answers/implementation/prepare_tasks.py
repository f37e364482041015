"""Implementation of `prepare_tasks`: writes the splits as shards of samples."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ratchet.data.tables import write_shards
from ratchet.data.tasks.splits import describe_repeated
from ratchet.data.tasks.task import SAMPLES, Sample, sample_to_row, write_task_name
from ratchet.jobs.answers.chat_options import CHAT_FILE, describe_chat, describe_samples
from ratchet.jobs.answers.prepare_tasks import Config, Inputs, list_samples, make_task, split_samples
from ratchet.orchestrator.job_interface import Context, Progress, Result


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    found = split_samples(config, inputs, partial(_report_progress, context))
    splits, chat = found.groups, describe_chat(config, (task := make_task(config, inputs)).stop)
    for name, chosen in splits.items():
        rows = [sample_to_row(sample) for group in chosen for sample in group]
        write_shards(context.out / name, rows, SAMPLES, config.shard_rows)
        write_task_name(context.out / name, config.task, **task.source)
        if chat:
            (context.out / name / CHAT_FILE).write_text(chat["chat"] + "\n")
    counts = {name: sum(map(len, chosen)) for name, chosen in splits.items()}
    return Result(
        {
            "task": config.task,
            **counts,
            "also_in_test": found.also_in_test,
            **chat,
            **describe_samples(list_samples(found)),
        },
        {"splits": [_describe(name, chosen) for name, chosen in splits.items()]},
        note=describe_repeated(found),
        cases={"samples": [_make_case(sample) for sample in splits["train"][0][:1]]},
    )


def _report_progress(context: Context, samples: Iterator[Sample]) -> Iterator[Sample]:
    for number, sample in enumerate(samples, 1):
        yield sample
        if number % 1000 == 0:
            context.progress(Progress(number, None, "samples"))


def _describe(name: str, groups: list[list[Sample]]) -> dict[str, Any]:
    samples = [sample for group in groups for sample in group]
    lengths = [len(target) for sample in samples for _, target in sample.turns]
    return {
        "split": name,
        "groups": len(groups),
        "samples": len(samples),
        "turns": len(lengths),
        "mean_target_characters": round(sum(lengths) / max(1, len(lengths)), 1),
        "max_target_characters": max(lengths, default=0),
    }


def _make_case(sample: Sample) -> dict[str, Any]:
    question, target = sample.turns[0]
    columns = {"prompt": [{"text": question, "good": False}], "target": [{"text": target, "good": True}]}
    return {"title": f"sample {sample.id}", "columns": columns}
