"""The contract between the orchestrator and the jobs; all that either knows of the other.

A job file is a `Config` dataclass (literals: they change the bytes), an `Inputs` dataclass (folders that other steps
made), a `run` function and one line:

    JOB = Job("mine", version=1, config=Config, inputs=Inputs, run=run)

`run` writes files below `context.out` and returns a `Result`; the orchestrator keeps the folder by its content. What
only changes speed (workers, GPUs, batch sizes at inference) comes from `context.resources` and is never identity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


class JobError(Exception):
    """What was given cannot work; trying again gives the same. Message: *where: given; expected; what to do*."""

    permanent = True


class BadInput(JobError):
    """A file, row or field that the user gave is wrong. The message names the file and line, or the field."""


class BadArtifact(JobError):
    """A job's output breaks its own contract (row counts, finite numbers): it is never committed."""


@dataclass(frozen=True)
class Resources:
    """What a step asks of the machines. Never identity: the same step on other machines is the same step."""

    workers: int | None = None
    """Number of workers; None: as many as have GPUs on the cluster at its largest, or one where there are none."""
    min_workers: int | None = None
    """With how many workers to begin where there is no room for all; None: with all. Over shards, further ones join as
    machines come; a training keeps its number until a machine is lost, and is taken up by another number where
    zero_stage is 0, else begun anew."""
    cpus: float | None = None
    """CPUs per worker; None: the most of which all workers fit on the machines."""
    gpus: float | None = None
    """GPUs per worker; None: one if the cluster has any, else none."""
    memory: float = 0.0
    """GB of memory per worker that are kept free for it; 0: none in particular."""
    accelerator: str = ""
    """Type of the GPUs, as Ray names it: L40S, H100, ...; empty: any."""
    labels: tuple[str, ...] = ()
    """Of the machines, as `market=on-demand`: workers run where all of them hold."""
    placement: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """Of a training's workers: on few machines, or on many."""
    batch_tokens: int = 16_384
    """Padded tokens per forward pass of inference."""
    micro_batch: int | None = None
    """Rows per forward and backward pass of training; None: the job's choice. The effective batch is unchanged."""
    timeout: float = 1800.0
    """Seconds that a training's workers wait for one of them that does not answer; then all are started again, from the
    last checkpoint."""
    retries: int = 3
    """How often a step is tried again after what may pass (a lost worker); a bad value is never retried."""

    def selector(self) -> dict[str, str]:
        """The labels by name. Raises BadInput for one that is not `name=value`."""
        for label in self.labels:
            if not all(label.partition("=")[::2]):
                raise BadInput(f"labels: '{label}' given; expected name=value, such as market=on-demand")
        return dict(label.split("=", 1) for label in self.labels)


@dataclass(frozen=True)
class Source:
    """A file or folder that the user gives. It enters identity by its content, never by its path or name."""

    path: Path
    label: str = ""
    """How the person named it (a hub id, a path); shown, never identity."""
    only: tuple[str, ...] = ("**",)
    """Globs of the files in the folder that count; a model's README does not change the model."""


@dataclass(frozen=True)
class Progress:
    """Where a step stands: `done` of `total` `unit`s, and numbers worth seeing now (loss, tokens_per_s)."""

    done: float
    total: float | None = None
    unit: str = "rows"
    stage: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    evaluations: tuple[float, ...] = ()
    """Of a step that trains: the held-out metric that it keeps its best by, after each checkpoint so far."""


@dataclass(frozen=True)
class Context:
    """Where a step runs. Plain data: it travels to Ray workers as it is."""

    step: str
    """The step's name in the recipe, such as `iter1/mine`; for messages and progress only."""
    step_id: str
    """The step's identity, hex; names what must be found again after a kill (Ray Train's run)."""
    attempt: int
    """The lease's epoch: 1, 2, ... Goes into names of files that two attempts could both write."""
    out: Path
    """An empty folder. What is below it when `run` returns is the artifact."""
    work: Path
    """A folder that outlives kills: finished shards, checkpoints. Shared by a step's attempts, one at a time."""
    resources: Resources
    """Resolved (see `jobs.machines`): no None in workers, cpus, gpus."""
    progress: Callable[[Progress], None] = field(default=lambda progress: None)
    """Tells the person at the screen; cheap, never fails, may be called from any worker."""
    logs: Path | None = None
    """A folder for what others' viewers show (TensorBoard); kept while the step is, no part of the artifact."""
    state: Path | None = None
    """Where to leave what a longer step of the same kind goes on from (`Job.longer`); None: not asked for."""
    earlier: Path | None = None
    """The `state` of the longest of the shorter steps; None: there is none."""


@dataclass(frozen=True)
class Result:
    """What `run` returns beside the files; kept in the manifest, shown in the report. No wall-clock numbers here:
    a deterministic step must give the same bytes twice (the orchestrator times steps itself)."""

    metrics: Mapping[str, float | int | str] = field(default_factory=dict)
    """Scalars by their field's name: `map@25`, `loss`, `rows`."""
    tables: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Title -> rows (column -> scalar), all rows with the same columns in order."""
    curves: Mapping[str, dict[str, list[float]]] = field(default_factory=dict)
    """Title -> {"x": [...], "y": [...]}; the title may say "name against unit" (`loss against step`), and which of
    several curves of one chart this is (`share against step | wrong_value`)."""
    examples: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Title -> cards: {"title": str, "columns": {heading: [{"text": str, "good": bool}, ...]}}."""


@dataclass(frozen=True)
class Job:
    """One verb. `name` is the step's verb, `version` is raised when the same code must give other bytes."""

    name: str
    version: int
    config: type
    """A frozen dataclass of literals (str, int, float, bool, None, tuples of them) with defaults where sensible and a
    docstring under each field with its unit."""
    inputs: type
    """A frozen dataclass whose fields are annotated `Path`, `Path | None` or `tuple[Path, ...]`: folders or files."""
    run: Callable[[Context, Any, Any], Result]
    check: Callable[[Any, Any], None] | None = None
    """`check(config, inputs)` at plan time, before Ray starts: raises BadInput. Inputs not made yet are None."""
    longer: tuple[str, Callable[[Any], str]] | None = None
    """(setting, why not): a setting of which more is more of the same work, such as `epochs`, and why, with a given
    config, it is not after all ('' where it is). Where it is, a step goes on from one that differs from it only in
    having had less, by what that one left in `Context.state`; its result must be what it is without."""
