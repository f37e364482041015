"""The work of prepare_tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ratchet.data.tables import write_shards
from ratchet.data.tasks import get_task, read_samples
from ratchet.data.tasks.task import SAMPLES, Sample, Task, sample_to_row, write_task_name
from ratchet.errors import InputError
from ratchet.jobs.answers.prepare_tasks import Config, Inputs
from ratchet.orchestrator.job_interface import Context, Progress, Result


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    task = get_task(config.task)
    groups = _read_groups(context, task, inputs.data)
    random = np.random.default_rng(config.seed)
    order = [groups[i] for i in random.permutation(len(groups))]
    if inputs.test is not None:
        held_out = _read_groups(context, task, inputs.test)
        test = [held_out[i] for i in random.permutation(len(held_out))]
    else:
        cut = max(1, round(config.test_fraction * len(order)))
        test, order = order[:cut], order[cut:]
    test = test[: config.max_test]
    test_keys = {task.key(sample) for group in test for sample in group}
    remaining = [group for group in order if not any(task.key(sample) in test_keys for sample in group)]
    cut = max(1, round(config.validation_fraction * len(remaining)))
    splits = {"train": remaining[cut:][: config.max_train], "valid": remaining[:cut], "test": test}
    if not splits["train"]:
        raise InputError(f"{inputs.data}: {len(groups)} groups; expected at least three, for a split; give more")
    for name, chosen in splits.items():
        rows = [sample_to_row(sample) for group in chosen for sample in group]
        write_shards(context.out / name, rows, SAMPLES, config.shard_rows)
        write_task_name(context.out / name, config.task)
    counts = {name: sum(map(len, chosen)) for name, chosen in splits.items()}
    return Result(
        {"task": config.task, **counts, "also_in_test": len(order) - len(remaining)},
        {"splits": [_describe(name, chosen) for name, chosen in splits.items()]},
        cases={"samples": [_make_case(sample) for sample in splits["train"][0][:1]]},
    )


def _read_groups(context: Context, task: Task, path: Path) -> list[list[Sample]]:
    """Return the samples by group, each question once."""
    groups: dict[str, list[Sample]] = {}
    seen: set[str] = set()
    for number, sample in enumerate(read_samples(task, path), 1):
        if (key := task.key(sample)) not in seen:
            seen.add(key)
            groups.setdefault(sample.group, []).append(sample)
        if number % 1000 == 0:
            context.progress(Progress(number, None, "samples"))
    return list(groups.values())


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
