"""prepare_tasks: a task's official file -> train/, valid/ and test/, each target verified by the task's own verifier.

Groups, such as the questions on a passage, are never split. Groups of one document, such as the passages of an article,
are on the same side of a split, and so are equal questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Interval

from ratchet.errors import InputError
from ratchet.files import read_text
from ratchet.jobs.answers.chat_options import describe_chat
from ratchet.orchestrator.job_interface import Job, Parents, Result, Seed, Unit

if TYPE_CHECKING:  # they import numpy and pyarrow
    from ratchet.data.tasks.splits import Splits
    from ratchet.data.tasks.task import Sample, Task


@dataclass(frozen=True)
class Config:
    task: str
    """Task: chat, countdown, gsm8k, gsm8k-boxed, query-generation, squad-batch or squad-sequential. It defines prompt,
    target and verifier."""
    system: str | None = None
    """The system prompt; empty: none. None: the task's."""
    stop: tuple[str, ...] = ()
    """Answers also end after any of these texts; `\\n` is a line break."""
    chat_template_kwargs: tuple[str, ...] = ()
    """Arguments of the models' chat templates, such as `enable_thinking=false`."""
    verifier: str = "none"
    """Verifier of the task `chat`: none, exact, math, or the name of a function in the input `verifier_file`."""
    test_fraction: Annotated[float, Interval(gt=0, lt=1)] = 0.1
    """Fraction of the groups to hold out, in whole documents, as the test split where no test file is given."""
    validation_fraction: Annotated[float, Interval(gt=0, lt=1)] = 0.02
    """Fraction of the remaining groups to hold out for the selection of checkpoints."""
    max_train: Annotated[int, Ge(1), Unit("questions")] | None = None
    """Train on a random subset of at most this size, in whole groups. None: all."""
    max_test: Annotated[int, Ge(1), Unit("groups")] | None = None
    """Test on a random subset of this size. A group is a passage with its questions, or one problem. None: all."""
    seed: Seed = 42
    """Seed of the split and the subsets."""
    shard_rows: Annotated[int, Ge(1), Unit("samples")] = 128
    """Samples per shard, the unit of generation and of recovery after a kill."""


@dataclass(frozen=True)
class Inputs:
    data: Path
    """The official file: SQuAD's JSON, GSM8K's JSONL, JSONL or Parquet with `nums` and `target`, or JSONL with
    `messages`, or with `document` and `query`."""
    test: Path | None = None
    """The official test file."""
    verifier_file: Path | None = None
    """A Python file with a function `verify(gold, answers)`; see `ratchet.data.tasks.chat`."""


def predict(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Read, verify and split all samples, so that a bad row is an error before anything starts."""
    from ratchet.data.tasks.splits import describe_repeated

    known = {"task": config.task, **describe_chat(config, make_task(config, inputs).stop)}
    if inputs.data is None:  # another step makes it
        made = parents["data"].metrics.get("tasks") if "data" in parents else None
        return Result(known if made is None else {"train": int(made), **known})
    if inputs.test is not None and inputs.test.exists() and inputs.data.exists() and inputs.test.samefile(inputs.data):
        raise InputError(
            f"{inputs.data}: given as data and as test; expected test rows that are not trained on; give the test file,"
            " or leave test out to hold out a part of data"
        )
    splits = split_samples(config, inputs)
    train = sum(map(len, splits.groups["train"]))
    return Result({"train": train, **known}, note=describe_repeated(splits))


def make_task(config: Config, inputs: Inputs) -> Task:
    """Return the task with its verifier, and the system prompt and the stop strings of the settings."""
    from ratchet.data.tasks import chat, get_task

    file = inputs.verifier_file
    if config.verifier != "none" and config.task != "chat":
        raise InputError(f"prepare_tasks.verifier: '{config.verifier}' given; expected none with task {config.task}")
    task = get_task(config.task)
    if config.task == "chat":
        task = chat.make_task(config.verifier, read_text(file) if file else "", str(file))
    stop = (*task.stop, *(text.replace("\\n", "\n") for text in config.stop))
    if config.system is None:
        return replace(task, stop=stop)
    system, read = config.system.replace("\\n", "\n"), task.read
    return replace(task, stop=stop, read=lambda path: (replace(sample, system=system) for sample in read(path)))


def split_samples(
    config: Config, inputs: Inputs, watch: Callable[[Iterator[Sample]], Iterator[Sample]] = iter
) -> Splits:
    """Read, verify and split all samples. `watch` sees those of `data` pass. Raises InputError for a file without
    any."""
    from ratchet.data.tasks import read_samples
    from ratchet.data.tasks.splits import group_samples, split_groups

    task = make_task(config, inputs)
    groups = [group_samples(task, watch(read_samples(task, inputs.data)))]
    if inputs.test is not None:
        groups.append(group_samples(task, read_samples(task, inputs.test)))
    for path, found in zip((inputs.data, inputs.test), groups, strict=False):
        if not found:
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


JOB = Job(
    "prepare_tasks",
    config=Config,
    inputs=Inputs,
    resources=("retries",),
    predict=predict,
    outputs=("train", "valid", "test"),
    metrics=lambda config: ("task", "train", "valid", "test", "also_in_test", "chat"),
)
