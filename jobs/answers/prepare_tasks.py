"""prepare_tasks: read and verify a task's official file, and split it into train/, valid/ and test/.

Groups, such as the questions on a passage, are never split. Groups of one document, such as the passages of an article,
are in the same split, and so are equal questions. Each target is verified by the task's verifier.
"""

from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Interval

from ratchet.errors import InputError
from ratchet.extras import MATH_LIBRARIES
from ratchet.jobs.answers.chat_options import CHAT_FILE, describe_chat, describe_samples
from ratchet.orchestrator.job_interface import (
    Context,
    Job,
    Parents,
    PositiveInt,
    Result,
    Seed,
    Unit,
    Uses,
)

if TYPE_CHECKING:  # they import numpy and pyarrow
    from ratchet.data.tasks.splits import Splits
    from ratchet.data.tasks.task import Sample, Task


@dataclass(frozen=True)
class Config:
    task: str
    """Name of the task, which defines prompts, targets and verifier: chat, countdown, gsm8k, gsm8k-annotated,
    gsm8k-boxed, query-generation, squad-batch or squad-sequential."""
    system: str | None = None
    """System prompt. Empty: no system prompt. None: the system prompt of the task."""
    stop: tuple[str, ...] = ()
    """Additional stop strings: an answer also ends after any of them. `\\n` is a line break."""
    chat_template_kwargs: tuple[str, ...] = ()
    """Arguments of the chat template of all models that use the samples, such as `enable_thinking=false`."""
    verifier: Annotated[str, Uses("math", MATH_LIBRARIES)] = "none"
    """Verifier of the task `chat`: none, exact, math, or the name of a function in the input `verifier_file`."""
    test_fraction: Annotated[float, Interval(gt=0, lt=1)] = 0.1
    """Fraction of the groups in the test split, in whole documents. Not used if a test file is given."""
    validation_fraction: Annotated[float, Interval(gt=0, lt=1)] = 0.02
    """Fraction of the remaining groups in the valid split, which selects checkpoints."""
    max_train: Annotated[PositiveInt, Unit("questions")] | None = None
    """Maximum size of the train split, which is then a random subset of whole groups. None: all groups."""
    max_test: Annotated[PositiveInt, Unit("groups")] | None = None
    """Maximum number of test groups (a passage with its questions, or one problem), drawn at random. None: all."""
    questions_per_group: tuple[PositiveInt, PositiveInt] | None = None
    """Least and most questions of a passage of SQuAD. Passages with fewer are left out; of the others a random number
    of questions within these limits is drawn. None: all questions."""
    seed: Seed = 42
    """Seed of the split, the subsets and the questions drawn."""
    shard_rows: Annotated[PositiveInt, Unit("samples")] = 128
    """Samples per shard. A shard is the unit of generation, and is repeated if it was not finished by a killed run."""


@dataclass(frozen=True)
class Inputs:
    data: Path
    """The file of the task: SQuAD's JSON, GSM8K's JSONL, JSONL or Parquet with `nums` and `target` (countdown), JSONL
    with `messages` (chat), or JSONL with `document` and `query` (query-generation)."""
    test: Path | None = None
    """The official test file, in the same format. None: a part of `data` is held out."""
    verifier_file: Path | None = None
    """A Python file with a function `verify(gold, answers)`; see `ratchet.data.tasks.chat`."""
    trained: Path | None = None
    """Samples of the same data for another task, on which a model is trained. The split has to be theirs."""


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Read, verify and split all samples, so that a bad row is an error before the run starts."""
    split = describe_split(config, inputs)
    theirs = parents.get("trained", Result()).metrics.get("split", split)
    if theirs != split:
        raise InputError(
            f"prepare_tasks.trained: samples with {theirs} given, for {split}; expected the same split, else test"
            " samples are trained on; set prepare_tasks.SETTING, which holds for both"
        )
    known: dict[str, Any] = {"task": config.task, "split": split}
    known |= describe_chat(config, make_task(config, inputs).stop)
    if inputs.data is None:  # another step makes it
        made = parents.get("data", Result()).metrics
        if "tasks" in made:
            known["train"] = made["tasks"]
        return Result(known)
    if inputs.test is not None and inputs.test.resolve() == inputs.data.resolve():
        raise InputError(
            f"{inputs.data}: given as data and as test; expected test rows that are not trained on; give the test file,"
            " or leave test out to hold out a part of data"
        )
    splits = split_samples(config, inputs)
    samples: list[Sample] = []
    for groups in splits.groups.values():
        samples += chain.from_iterable(groups)
    known |= {"train": sum(map(len, splits.groups["train"])), **describe_samples(samples)}
    return Result(known, note=describe(config, inputs, splits))


def describe(config: Config, inputs: Inputs, splits: "Splits") -> str:
    """Return a note on rows that another library wrote, and on repeated questions."""
    from ratchet.data.tasks import chat, find_file
    from ratchet.data.tasks.splits import describe_repeated

    notes = [describe_repeated(splits)]
    if config.task == "chat":
        notes.insert(0, chat.describe_format(find_file(inputs.data)))
    return "; ".join(filter(None, notes))


def describe_split(config: Config, inputs: Inputs) -> str:
    """Return what decides which samples are test samples."""
    if inputs.test is not None:
        return "a test file"
    return f"seed {config.seed} and test_fraction {config.test_fraction}"


def make_task(config: Config, inputs: Inputs) -> "Task":
    """Return the task with the verifier, system prompt and stop strings of the settings."""
    from ratchet.data.tasks import chat, get_task, squad

    file = inputs.verifier_file
    if config.verifier != "none" and config.task != "chat":
        raise InputError(
            f"prepare_tasks.verifier: '{config.verifier}' given; expected none with task {config.task}"
        )
    task = get_task(config.task)
    if config.task == "chat":
        task = chat.make_task(config.verifier, file)
    limits = config.questions_per_group
    if limits is not None:
        least, most = limits
        if task.name not in squad.READERS or least > most:
            raise InputError(
                f"prepare_tasks.questions_per_group: {least},{most} given, with task {task.name}; expected the least"
                f" and the most, with one of {', '.join(squad.READERS)}; correct them, or leave them out"
            )
        task = squad.make_task(task.name, limits, config.seed)
    stop = (*task.stop, *(text.replace("\\n", "\n") for text in config.stop))
    if config.system is None:
        return replace(task, stop=stop)
    system = config.system.replace("\\n", "\n")
    read = task.read
    return replace(
        task, stop=stop, read=lambda path: (replace(sample, system=system) for sample in read(path))
    )


def split_samples(config: Config, inputs: Inputs) -> "Splits":
    """Read, verify and split all samples. Raises InputError for a file without samples."""
    from ratchet.data.tasks import read_samples
    from ratchet.data.tasks.splits import group_samples, split_groups

    task = make_task(config, inputs)
    groups = []
    for path in (inputs.data, inputs.test):
        if path is not None:
            groups.append(group_samples(task, read_samples(task, path)))
            if not groups[-1]:
                raise InputError(f"{path}: no samples; expected at least one; give another file")
    return split_groups(
        task,
        *groups,
        test_fraction=config.test_fraction,
        validation_fraction=config.validation_fraction,
        seed=config.seed,
        max_train=config.max_train,
        max_test=config.max_test,
        source=inputs.data,
    )


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.data.tables import write_shards
    from ratchet.data.tasks.task import SAMPLES, sample_to_row, write_task_name

    splits = split_samples(config, inputs)
    task = make_task(config, inputs)
    chat = describe_chat(config, task.stop)
    metrics: dict[str, Any] = {"task": config.task, "split": describe_split(config, inputs)}
    table = []
    everything = []
    for name, groups in splits.groups.items():
        samples = list(chain.from_iterable(groups))
        write_shards(context.out / name, map(sample_to_row, samples), SAMPLES, config.shard_rows)
        write_task_name(context.out / name, config.task, **task.source)
        if chat:
            (context.out / name / CHAT_FILE).write_text(chat["chat"] + "\n")
        metrics[name] = len(samples)
        table.append(_summarize(name, len(groups), samples))
        everything += samples
    metrics |= {"also_in_test": splits.also_in_test, **chat, **describe_samples(everything)}
    return Result(metrics, {"splits": table}, note=describe(config, inputs, splits))


def _summarize(name: str, groups: int, samples: "list[Sample]") -> dict[str, Any]:
    lengths = [len(target) for sample in samples for _, target in sample.turns]
    return {
        "split": name,
        "groups": groups,
        "samples": len(samples),
        "turns": len(lengths),
        "mean_target_characters": round(sum(lengths) / max(1, len(lengths)), 1),
        "max_target_characters": max(lengths, default=0),
    }


JOB = Job(
    "prepare_tasks",
    Config,
    Inputs,
    run,
    resources=("retries",),
    check=check,
    outputs=("train", "valid", "test"),
    metrics=(
        "task",
        "split",
        "train",
        "valid",
        "test",
        "also_in_test",
        "chat",
        "turns",
        "system",
        "special_tokens",
    ),
)
