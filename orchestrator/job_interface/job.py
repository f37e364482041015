"""The job interface: the classes through which jobs and the orchestrator work together.

A job's file declares a `Config` dataclass (settings that change the result), an `Inputs` dataclass (folders that other
steps made), a `check`, and one line:

    JOB = Job("mine", config=Config, inputs=Inputs, run=run)

`run` writes files below `context.out` and returns a `Result`; the orchestrator stores the folder by its content.
Resources, which only change the speed (workers, GPUs, batch sizes at inference), are in `context.resources` and are not
part of the step's fingerprint.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Interval, Unit

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface.directions import find_direction
from ratchet.orchestrator.job_interface.settings import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Tokens,
    check_job,
    require,
)
from ratchet.orchestrator.job_interface.shared_files import SharedFiles


@dataclass(frozen=True)
class Resources:
    """The resources that a step requests from the cluster. They are not part of its fingerprint."""

    workers: Annotated[int, Interval(ge=1, le=100_000)] | None = None
    """Number of workers. None: as many as fit on the GPUs of the cluster at its largest, or one without GPUs."""
    min_workers: PositiveInt | None = None
    """Minimum number of workers to start with if not all fit. None: wait for all. In a map over shards, more workers
    join as machines come. A training run restarts from its last checkpoint as more workers when machines come, and as
    fewer when some are lost (with zero_stage=3 from the beginning)."""
    cpus: PositiveFloat | None = None
    """CPUs per worker. None: the largest number at which all workers fit on the machines. On machines with GPUs, at
    most the share of the worker's GPUs, or of one GPU, less one CPU for other steps."""
    gpus: NonNegativeFloat | None = None
    """GPUs per worker. None: 1 if the cluster has GPUs, else 0. With several, inference spreads a model over them."""
    memory: Annotated[float, Interval(ge=0, le=100_000), Unit("GB")] = 0.0
    """Host memory to reserve per worker. 0: no reservation."""
    accelerator: str = ""
    """GPU type in Ray's spelling: L40S, H100, ... Empty: any."""
    labels: tuple[str, ...] = ()
    """Node labels such as `market=on-demand`. Workers run on nodes that have all of them."""
    placement: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """Ray's placement strategy for the workers of a training run."""
    batch_tokens: Tokens = 16_384
    """Tokens per forward pass at inference, padding included."""
    micro_batch_size: Annotated[PositiveInt, Unit("rows")] | None = None
    """Rows per forward and backward pass of training. None: chosen by the job. It does not change the result. Smaller
    micro batches need less memory; embedders then embed each text twice (gradient caching)."""
    timeout: Annotated[PositiveFloat, Unit("seconds")] = 1800.0
    """Time after which a training worker that does not answer counts as lost. All workers then restart from the last
    checkpoint."""
    retries: NonNegativeInt = 3
    """Number of retries of a step after transient errors, such as a lost worker. Invalid input is never retried."""

    @property
    def threads(self) -> int:
        """Number of threads that a worker computes with."""
        return max(1, int(self.cpus or 1))

    def selector(self) -> dict[str, str]:
        """Return label name -> value. Raises InputError for a label other than `name=value`, and for repeated names."""
        found = {}
        for label in self.labels:
            name, _, value = label.partition("=")
            if not name or not value or name in found:
                raise InputError(
                    f"labels: '{label}' given; expected name=value, such as market=on-demand, and each name once"
                )
            found[name] = value
        return found


MAP_RESOURCES = (
    "workers",
    "min_workers",
    "cpus",
    "gpus",
    "memory",
    "accelerator",
    "labels",
    "retries",
)
"""Value of `Job.resources` for a map over shards."""


@dataclass(frozen=True)
class Source:
    """A file or folder that the user gives. Its content is part of the fingerprint; its path and name are not."""

    path: Path
    label: str = ""
    """The name that the user gave (a hub id, a path), for display. It is not part of the fingerprint."""
    ignored: tuple[str, ...] = ()
    """Glob patterns of relative paths that are left out of the fingerprint, such as a model's README, which does not
    change the model."""
    told_by_name: str = ""
    """Information that the job derives from the name, such as a published model's family. Part of the fingerprint."""

    def __post_init__(self) -> None:
        require(isinstance(self.path, Path), "Source", self.path, "a Path; write Source(Path(...))")

    @classmethod
    def find(cls, given: str, name: str = "data") -> "Source":
        """Return the file or folder that a user gives as the parameter `name`; `~` is the home folder. Raises
        InputError for nothing and for a URL."""
        expected = "expected the path of a file or folder"
        if not given.strip():
            raise InputError(f"{name}: nothing given; {expected}; add --set {name}=PATH")
        if "://" in given:
            raise InputError(f"{name}: the URL {given} given; {expected}; download it first")
        return cls(Path(os.path.expanduser(given)), label=given)


@dataclass(frozen=True)
class Progress:
    """The progress of a step: `done` of `total` (None: unknown) in `unit`s, and numbers such as loss, tokens_per_s."""

    done: float
    total: float | None = None
    unit: str = "rows"
    stage: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    evaluations: tuple[float, ...] = ()
    """Value, after each checkpoint so far, of the held-out metric that selects the best one. Empty without training."""


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
    """The digest of the step's fingerprint, hex. It names what later attempts find again, such as Ray Train's run."""
    attempt: int
    """The number of the attempt, from 1. Use it in the names of files that several attempts could write."""
    out: Path
    """An empty folder. Its contents when `run` returns are the output of the step."""
    work: Path
    """A folder for finished shards and checkpoints. It survives a kill, and the next attempt continues from it."""
    resources: Resources
    """Resolved by `ratchet.orchestrator.job_interface.placement`: workers, cpus and gpus are not None."""
    progress: Callable[[Progress], None] = field(default=lambda progress: None)
    """Function that reports progress. It is cheap, never raises, and may be called from any worker."""
    logs: Path | None = None
    """A folder for TensorBoard's event files. It is kept as long as the step and is not part of the output."""
    code: RequiredCode | None = None
    """The code that every process of the step must run; see `worker.check_worker`. None: any code."""
    holds_resources: bool = False
    """Whether the process of the step holds the resources of the step's only worker, and does the work itself."""
    files: SharedFiles = field(default_factory=SharedFiles)
    """How the machines of the step share what is in `work`. A file that another machine may read is sent; before files
    of another machine are read, they are fetched."""
    together: "tuple[tuple[Context, Any, Any], ...]" = ()
    """Context, config and inputs of other steps that load the same (`Job.loads`), and wait. `map_model` processes their
    pieces too; their contexts have no output folder."""


@dataclass(frozen=True)
class Result:
    """The metrics, tables and curves of a step, for the manifest and the report. They must be equal in every run of the
    step, so they must not contain wall-clock times, which the orchestrator measures."""

    metrics: Mapping[str, float | int | str] = field(default_factory=dict)
    """Scalars by name: `map@25`, `loss`, `rows`. Metrics of held-out rows begin with the split: `valid/map@25`."""
    tables: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Title -> rows (column -> scalar). All rows have the same columns in the same order."""
    curves: Mapping[str, dict[str, list[float]]] = field(default_factory=dict)
    """Title -> {"x": [...], "y": [...]}. The title has the form "quantity against unit", such as `loss against step`;
    `share against step | wrong_value` names one of several curves in a chart. A curve of ranks against ranks,
    such as `rank by iter0 against rank before`, has a point for each query."""
    cases: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Title -> cards: {"title": str, "columns": {heading: [{"text": str, "good": bool}, ...]}}."""
    note: str = ""
    """A remark on the step's numbers that tables show, such as `kept the base: no epoch was better`."""
    part: str | None = None
    """For a parent: the part of its output that is the input, such as `train`. None: all of it. Jobs do not set it."""


@dataclass(frozen=True)
class Needs:
    """Upper bounds of what a step needs, estimated before it runs."""

    gpu_memory: float
    """GB of each GPU. 0 for a step without GPUs."""
    memory: float
    """GB of the host's memory, per worker."""
    disk: float = 0.0
    """GB that the step writes, its checkpoints included."""
    remedies: tuple[str, ...] = ()
    """Settings that lower the memory, such as `quantization=nf4`, the least costly first."""


@dataclass(frozen=True)
class Division:
    """How the work of a step can be divided among workers."""

    most: int | None = None
    """The largest number of workers that have work at the same time; more are not started. None: unknown."""
    default: int | None = None
    """The largest default number of workers. None: no limit."""
    inside: bool = True
    """Whether a single worker is the process of the step, which an earlier step may have used. False: `run` starts
    other processes, which hold the resources, even for one worker."""
    gpus: bool = True
    """Whether GPUs make the work faster. False: the step gets none by default."""


Run = Callable[[Context, Any, Any], Result]
Parents = Mapping[str, Result]
"""Input field -> what is known of the result of the step that makes the input, with `Result.part`."""
Check = Callable[[Any, Any, Parents], Result | None]
Estimate = Callable[[Any, Any, Resources, Parents], Needs | None]
Names = tuple[str, ...] | Callable[[Any], Sequence[str]]
"""Names, or a function of the config that returns them."""


@dataclass(frozen=True)
class Job:
    """A kind of work: its settings, inputs and checks, and the function that does it."""

    name: str
    config: type
    """A frozen dataclass of settings (str, int, float, bool, Literal, None, tuples of them), with defaults where
    sensible and a docstring under each field."""
    inputs: type
    """A frozen dataclass whose fields are annotated `Path`, `Path | None` or `tuple[Path, ...]`: folders or files."""
    run: Run
    """The function `run(context, config, inputs)`. It imports what is heavy itself, so that planning stays quick."""
    version: int = 1
    """Increase it when results must be computed again although the code has not changed."""
    check: Check | None = None
    """`check(config, inputs, parents)` runs at plan time, before Ray starts, and raises InputError. Inputs that do not
    exist yet are None. It may return the part of the result that is known before the step runs, such as numbers of
    rows, with a note for the plan. parents: input field -> the result of the step that makes the input, or what its
    `check` has returned."""
    needs: Estimate | None = None
    """`needs(config, inputs, resources, parents)` runs at plan time after `check`, with resolved resources. It returns
    what the step needs, or None if this is unknown."""
    resources: tuple[str, ...] | None = None
    """The fields of `Resources` that the job uses; other fields are refused. None: all. Without `workers`, the process
    of the step does all the work; without `gpus`, on CPUs; without `cpus`, it holds no resources."""
    divide: Callable[[Any, Any], Division] = lambda config, inputs: Division()
    """`divide(config, inputs)` returns how the work can be divided. It is called at plan time, and when the step is
    about to start. Inputs that do not exist yet are None."""
    loads: Names = ()
    """The inputs and settings that say what every worker loads, such as a model. Of the ready steps with equal values,
    one gets the others in `Context.together`. Empty: steps share nothing."""
    outputs: Names = ()
    """The files and folders of the output, or glob patterns of them, that other steps may use as `step["name"]`.
    Empty: any."""
    metrics: Names = ()
    """The metrics that a table may show, or glob patterns of them. Empty: any."""
    direction: Callable[[str], int] = find_direction
    """`direction(metric)` returns 1 if a higher value of the metric is better, -1 if a lower one is, and else 0. Tables
    mark the best value, and sweeps select by it. The default tells it by the name of the metric."""

    def __post_init__(self) -> None:
        check_job(self)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules of the job: that of its settings and that of `run`, usually the same."""
        return tuple(dict.fromkeys((self.config.__module__, self.run.__module__)))

    def uses(self, field: str) -> bool:
        """Return whether the job uses a field of `Resources`."""
        return self.resources is None or field in self.resources
