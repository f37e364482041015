"""rejection_sample: make training samples of a teacher's correct answers. The teacher may have any vocabulary."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import ArtifactError, InputError
from ratchet.jobs.answers.chat_options import CHAT_FILE, check_verifier
from ratchet.orchestrator.job_interface import Context, Job, Parents, PositiveInt, Result


@dataclass(frozen=True)
class Config:
    max_per_sample: PositiveInt = 1
    """Maximum number of distinct correct answers to keep per sample: the first ones in the order of generation."""


@dataclass(frozen=True)
class Inputs:
    completions: Path
    """A teacher's answers to `samples`, written by `generate`."""
    samples: Path
    """Samples written by `prepare_tasks`, whose targets are replaced by the answers."""
    verifier_file: Path | None = None
    """The Python file with the verifier, if `prepare_tasks` got one."""


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    check_verifier(inputs.samples, inputs.verifier_file)
    return Result(parents.get("samples", Result()).metrics)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ratchet.data.tables import list_shards, write_table
    from ratchet.data.tasks import read_task
    from ratchet.data.tasks.task import CORRECT, SAMPLES, read_task_name, write_task_name

    task = read_task(inputs.samples, inputs.verifier_file)
    name = read_task_name(inputs.completions)
    if name != task.name:
        raise InputError(
            f"rejection_sample.samples: samples of task {task.name} given, for completions of task"
            f" {name}; expected the same task; give the samples that the completions answer"
        )
    total = unsolved = kept = 0
    for path in list_shards(inputs.samples):
        rows = []
        file = inputs.completions / path.name
        completed = {}
        if file.is_file():
            for row in pq.read_table(file).to_pylist():
                completed[row["id"]] = row
        for sample in pq.read_table(path).to_pylist():
            completion = completed.get(sample["id"], {})
            if completion.get("questions") != sample["questions"]:
                raise InputError(
                    f"rejection_sample.completions: no answer to sample {sample['id']} of {path} in"
                    f" {inputs.completions}; expected answers to these samples; run generate on them"
                )
            gold = json.loads(completion["gold"])
            correct = []  # each once
            for answers, cut in zip(completion["answers"], completion["truncated"], strict=True):
                if answers in correct or not all(answers) or any(cut):
                    continue
                if all(one.label == CORRECT for one in task.verify(gold, answers)):
                    correct.append(answers)
            for number, answers in enumerate(correct[: config.max_per_sample]):
                rows.append(sample | {"id": f"{sample['id']}~{number}", "targets": list(answers)})
            total = total + 1
            unsolved = unsolved + (not correct)
        kept += len(rows)
        write_table(context.out / path.name, pa.Table.from_pylist(rows, SAMPLES))
    if not kept:
        raise ArtifactError(
            f"step {context.step}: the verifier accepts none of the teacher's answers; expected at least one to train"
            " on; use a stronger teacher, or more completions per sample"
        )
    write_task_name(context.out, task.name, **task.source)
    chat = inputs.samples / CHAT_FILE
    if chat.is_file():
        shutil.copy(chat, context.out)
    return Result({"samples": total, "unsolved": unsolved, "kept": kept})


JOB = Job(
    "rejection_sample",
    Config,
    Inputs,
    run,
    resources=("retries",),
    check=check,
    metrics=("samples", "unsolved", "kept"),
)
