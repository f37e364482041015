"""The job interface: what the orchestrator and the jobs know of each other.

A job's file declares a `Config` dataclass (settings that change the result), an `Inputs` dataclass (folders that other
steps made), a `check`, and one line:

    JOB = Job("mine", config=Config, inputs=Inputs)

`run` writes files below `context.out` and returns a `Result`; the orchestrator stores the folder by its content. What
only changes the speed (workers, GPUs, batch sizes at inference) is in `context.resources` and is not part of the step's
fingerprint.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface.declaration import check_job, require
from ratchet.orchestrator.job_interface.settings import Unit

_TIMES = re.compile(r"(^|[_ ])(time|duration|seconds|secs?)$|(?<!per)[_ ]s$", re.IGNORECASE)
_LOWER = re.compile(r"loss|error|perplexity|\bppl\b|latency|\brank\b|missing|\bm[as]e\b|\brmse\b|difference")
_HIGHER = re.compile(
    r"^[rp]@\d|\bm?ap\b|\bmap@|\bmrr|\bndcg|recall|precision|accuracy|\bacc\b|\bem\b|\bf1\b|exact|\bhits?\b|pass@|\bauc\b"
    r"|bleu|rouge|lenient|success|solved|correct|per_s\b|/s\b"
)


@dataclass(frozen=True)
class Resources:
    """The resources that a step requests from the cluster. They are not part of its fingerprint."""

    workers: Annotated[int, Interval(ge=1, le=100_000)] | None = None
    """Number of workers. None: as many as the cluster has GPUs at its largest, or one without GPUs."""
    min_workers: Annotated[int, Ge(1)] | None = None
    """Number of workers to start with where there is no room for all. None: wait for all. More workers join a map over
    shards as machines come. A training run keeps its number of workers until a machine is lost; with another number it
    resumes where `zero_stage` is 0 and starts again otherwise."""
    cpus: Annotated[float, Gt(0)] | None = None
    """CPUs per worker. None: the largest number with which all workers fit on the machines."""
    gpus: Annotated[float, Ge(0)] | None = None
    """GPUs per worker. None: one if the cluster has any, else none. Over several, inference spreads one model."""
    memory: Annotated[float, Interval(ge=0, le=100_000), Unit("GB")] = 0.0
    """Memory that is reserved per worker. 0: none."""
    accelerator: str = ""
    """GPU type in Ray's spelling: L40S, H100, ... Empty: any."""
    labels: tuple[str, ...] = ()
    """Node labels such as `market=on-demand`. Workers run on nodes that have all of them."""
    placement: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """Ray's placement strategy for the workers of a training run."""
    batch_tokens: Annotated[int, Ge(1), Unit("tokens")] = 16_384
    """Padded tokens per forward pass of inference."""
    micro_batch_size: Annotated[int, Ge(1), Unit("rows")] | None = None
    """Rows of training whose activations are kept at a time. None: chosen by the job. The result is the same; smaller
    micro batches need less memory, and embedders then embed each text twice."""
    timeout: Annotated[float, Gt(0), Unit("seconds")] = 1800.0
    """Time after which a training run gives up on a worker that does not answer. All workers then restart from the last
    checkpoint."""
    retries: Annotated[int, Ge(0)] = 3
    """Number of retries of a step after transient errors, such as a lost worker. Invalid input is never retried."""

    def selector(self) -> dict[str, str]:
        """Return the labels as a dict. Raises InputError for one that is not `name=value`, and for a repeated name."""
        for label in self.labels:
            if not all(label.partition("=")[::2]):
                raise InputError(f"labels: '{label}' given; expected name=value, such as market=on-demand")
        found = dict(label.split("=", 1) for label in self.labels)
        if len(found) < len(self.labels):
            raise InputError(f"labels: {','.join(self.labels)} given; expected each name once; remove one")
        return found


MAP_RESOURCES = ("workers", "min_workers", "cpus", "gpus", "memory", "accelerator", "labels", "retries")
"""`Job.resources` of a map over shards."""


@dataclass(frozen=True)
class Source:
    """A file or folder that the user gives. It enters the fingerprint by its content, not by its path or name."""

    path: Path
    label: str = ""
    """The name that the user gave (a hub id, a path). It is shown and is not part of the fingerprint."""
    ignored: tuple[str, ...] = ()
    """Globs of the files in the folder that do not count, by relative path. A model's README does not change the
    model."""
    told_by_name: str = ""
    """What the job learns from the name, such as the family of a published model. It is part of the fingerprint."""

    def __post_init__(self) -> None:
        require(isinstance(self.path, Path), "Source", self.path, "a Path; write Source(Path(...))")

    @classmethod
    def find(cls, given: str, name: str = "data") -> Source:
        """Return the file or folder that a user gives as the parameter `name`; `~` is the home folder. Raises
        InputError for nothing and for a URL."""
        if not given.strip() or "://" in given:
            raise InputError(
                f"{name}: {f'the URL {given}' if given.strip() else 'nothing'} given; expected the path of a file or"
                f" folder; {'download it first' if given.strip() else f'add --set {name}=PATH'}"
            )
        return cls(Path(given).expanduser(), label=given)


@dataclass(frozen=True)
class Progress:
    """The progress of a step: `done` of `total` `unit`s, and current numbers (loss, tokens_per_s)."""

    done: float
    total: float | None = None
    unit: str = "rows"
    stage: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    evaluations: tuple[float, ...] = ()
    """The held-out metric that selects the best checkpoint, after each checkpoint so far. Empty for other steps."""


@dataclass(frozen=True)
class RequiredCode:
    """The code that the processes of a step must run."""

    snapshot: str
    """Digest of the snapshot."""
    libraries: Mapping[str, str]
    """Distribution -> version, as in `code.Code.libraries`."""


@dataclass(frozen=True)
class Context:
    """The folders, resources and callbacks of a running step. It can be pickled and is sent to Ray workers."""

    step: str
    """The step's name in the recipe, such as `iter1/mine`, for messages and progress only."""
    step_id: str
    """The digest of the step's fingerprint, hex. It names what is found again after a kill, such as Ray Train's run."""
    attempt: int
    """The number of the attempt, from 1. Use it in the names of files that two attempts could both write."""
    out: Path
    """An empty folder. Its contents when `run` returns are the output of the step."""
    work: Path
    """A folder for finished shards and checkpoints. It outlives a kill, and the next attempt continues from it."""
    resources: Resources
    """Resolved by `ratchet.orchestrator.job_interface.placement`: workers, cpus and gpus are not None."""
    progress: Callable[[Progress], None] = field(default=lambda progress: None)
    """Reports progress. Cheap, never raises, may be called from any worker."""
    logs: Path | None = None
    """A folder for TensorBoard's event files. It is kept as long as the step and is not part of the output."""
    warm_start_to: Path | None = None
    """The folder for the state from which a longer step may start. None: no state is needed."""
    warm_start_from: Path | None = None
    """The folder with the state of the longest shorter step. None: start from the beginning."""
    code: RequiredCode | None = None
    """The code that every process of the step must run; see `snapshot.check_code`. None: any."""
    holds_resources: bool = False
    """Whether the process of the step has the resources of its one worker, and does the work itself."""


@dataclass(frozen=True)
class Result:
    """The metrics, tables and curves of a step, for the manifest and the report. They must be the same in every run of
    the step, so they contain no wall-clock times; the orchestrator measures those."""

    metrics: Mapping[str, float | int | str] = field(default_factory=dict)
    """Scalars by name: `map@25`, `loss`, `rows`. Metrics of held-out rows begin with the split: `valid/map@25`."""
    tables: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Title -> rows (column -> scalar). All rows have the same columns in the same order."""
    curves: Mapping[str, dict[str, list[float]]] = field(default_factory=dict)
    """Title -> {"x": [...], "y": [...]}. The title has the form "quantity against unit", such as `loss against step`;
    `share against step | wrong_value` names one of several curves in a chart."""
    cases: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Title -> cards: {"title": str, "columns": {heading: [{"text": str, "good": bool}, ...]}}."""
    note: str = ""
    """What a reader of the step's numbers must know, such as `kept the base: no epoch was better`. Tables show it."""


def is_time(column: str) -> bool:
    """Return whether a column of this name holds seconds (`time`, `seconds`, `train_s`; not `tokens_per_s`)."""
    return bool(_TIMES.search(column))


def infer_direction(column: str) -> int:
    """Return 1 if higher is better, -1 if lower is better, 0 if the name does not tell or the column is a time."""
    name = column.lower().replace("_", " ").replace(" per s", " per_s")
    if is_time(column):
        return 0
    return -1 if _LOWER.search(name) else int(bool(_HIGHER.search(name)))


@dataclass(frozen=True)
class Needs:
    """What a step needs at most, estimated before it runs."""

    gpu_memory: float
    """GB of each GPU. 0 for a step without GPUs."""
    memory: float
    """GB of the host's memory, per worker."""
    disk: float = 0.0
    """GB that the step writes, its checkpoints included."""
    operations: float | None = None
    """Floating-point operations of all workers together. None: not known."""
    remedies: tuple[str, ...] = ()
    """Settings that lower the memory, such as `quantization=nf4`, the least costly first."""


Run = Callable[[Context, Any, Any], Result]
Parents = Mapping[str, Result]
"""The field of an input -> what is known of the result of the step that makes it."""
Predict = Callable[[Any, Any, Parents], Result]
Effective = Callable[[Any, Parents], Any]
Estimate = Callable[[Any, Any, Resources, Parents], Needs | None]


@dataclass(frozen=True)
class WarmStart:
    """Lets a step start from the state of a finished step that differs from it only by a smaller value of a setting."""

    setting: str
    """The setting, such as `epochs`. A larger value must mean the same work and more after it."""
    blocked_by: Callable[[Any], str]
    """`blocked_by(config)` returns why this config does not allow a warm start, or an empty string."""


@dataclass(frozen=True)
class Job:
    """A kind of work: its settings, inputs and checks, and the function that does it."""

    name: str
    config: type
    """A frozen dataclass of settings (str, int, float, bool, Literal, None, tuples of them), with defaults where
    sensible and a docstring under each field. Its module is the job's declaration."""
    inputs: type
    """A frozen dataclass whose fields are annotated `Path`, `Path | None` or `tuple[Path, ...]`: folders or files."""
    run: Run | str = ""
    """The function `run(context, config, inputs)`, or its location as `module:function`. Such a module is imported only
    by the worker, so that planning imports nothing heavy. Empty: `run` of the module that has the declaration's name in
    the folder `implementation` beside it."""
    version: int = 1
    """Increase it when results must be computed again although the code is the same."""
    check: Callable[[Any, Any], None] | None = None
    """`check(config, inputs)` runs at plan time, before Ray starts, and raises InputError. Inputs that do not exist yet
    are None."""
    predict: Predict | None = None
    """`predict(config, inputs, parents)` runs at plan time after `check`. It returns the part of the result that is
    known before the step runs, such as numbers of rows, and raises InputError for settings that do not fit to them.
    parents: the field of an input -> the result of its step, or what that step's job predicts."""
    effective: Effective | None = None
    """`effective(config, parents)` returns the settings as they take effect once the inputs exist. They are what the
    fingerprint has and what `run` gets: steps that differ only in settings without an effect are one step. parents: the
    field of an input -> the result of its step."""
    needs: Estimate | None = None
    """`needs(config, inputs, resources, parents)` runs at plan time, with resolved resources, and returns what the step
    needs; None if that cannot be told. inputs and parents: as for `predict`."""
    warm_start: WarmStart | None = None
    """Set it if a step can start from the state of a shorter one. The result must be the same as without."""
    max_workers: Callable[[Any], int] | None = None
    """`max_workers(config)` returns the largest number of workers that the step can feed. It limits the number where
    none is given. None: any."""
    single_process: bool = False
    """Whether `run` does all work itself, on CPUs. Its process then has the resources of the step's one worker, on any
    machine. Otherwise it has none, and starts workers that have them."""
    is_worker: Callable[[Any], bool] | None = None
    """`is_worker(config)` tells whether the process of the step can be its one worker, which then has its resources and
    does all work of `run`. Its libraries are imported already if an earlier step of the run used it. None: never."""
    resources: tuple[str, ...] | None = None
    """The fields of `Resources` that the job uses; others are refused. None: all."""
    outputs: tuple[str, ...] | Callable[[Any], tuple[str, ...]] = ()
    """The folders and files of the output that other steps may take as `step["name"]`, or globs of them; or a function
    of the config that returns them. Empty: any."""
    metrics: Callable[[Any], Collection[str]] | None = None
    """`metrics(config)` returns the names of the metrics that a table may show, or globs of them. None: any."""

    def __post_init__(self) -> None:
        folder, dot, module = getattr(self.config, "__module__", "").rpartition(".")
        if self.run == "" and dot:
            object.__setattr__(self, "run", f"{folder}.implementation.{module}:run")
        check_job(self)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that make up the job: that of the declaration and that of the implementation."""
        run = self.run.partition(":")[0] if isinstance(self.run, str) else self.run.__module__
        return tuple(dict.fromkeys((self.config.__module__, run)))

    def load(self) -> Run:
        """Import and return the function that does the work."""
        return pkgutil.resolve_name(self.run) if isinstance(self.run, str) else self.run
