"""Steps and their connections, for recipes. Nothing is run here.

    mined = step("iter0/mine", mine.JOB, queries=data["train"], corpus=data["corpus"], window=(2, 200))
    tuned = step("iter0/finetune_embedder", finetune_embedder.JOB, base=base, mined=mined, epochs=3)

Keywords are fields of the job's `Config` (literals) or of its `Inputs` (outputs of other steps, or a `Source`). A
recipe returns a `Summary` with the rows of its final table. Only the steps on which the summary depends are run.
"""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from ratchet.errors import InputError, RecipeError
from ratchet.orchestrator.job_interface.job import Job, Names, Resources, Source
from ratchet.orchestrator.job_interface.placement import Machine, resolve_resources
from ratchet.orchestrator.job_interface.settings import (
    STEP_NAME,
    Fraction,
    FractionBelowOne,
    NonNegativeInt,
    PositiveInt,
    Seed,
    describe_value,
    expect_one_of,
    locate_caller,
    require,
    require_items,
    validate,
)

__all__ = [
    "Fraction",
    "FractionBelowOne",
    "Job",
    "Metric",
    "NonNegativeInt",
    "Output",
    "PositiveInt",
    "Resources",
    "Row",
    "Seed",
    "Source",
    "Step",
    "Summary",
    "reachable",
    "step",
]


@dataclass(frozen=True, eq=False)
class Step:
    """A job with its settings and inputs. The plan computes its fingerprint once the inputs exist."""

    name: str
    job: Job
    config: Any
    inputs: "Mapping[str, Reference]"
    resources: Resources
    finished: str = ""
    """The id of a finished step whose result this step uses. Empty: the job computes the result."""
    default_gpus: float | None = None
    """GPUs per worker that the run has found as the default. None: not looked for yet. It stays when the cluster loses
    its GPUs, since a retry needs them too."""

    def __getitem__(self, part: str) -> "Output":
        """Return a folder of this step's artifact: `prepared["corpus"]`. Changes in other folders do not affect it.

        Raises RecipeError for a name that the job does not write."""
        where = f"step {self.name}"
        known = self.outputs
        # Python asks for step[0], step[1], ... if a step is given instead of a list of steps.
        require(isinstance(part, str), where, f"step[{part!r}]", "a name, or a list of steps")
        if known and not _matches(part, known):
            raise RecipeError(
                f"{locate_caller()}{where}: output '{part}' given; {expect_one_of(known, part)}"
            )
        return Output(self, part)

    @property
    def outputs(self) -> Sequence[str]:
        """See `Job.outputs`."""
        return _list_names(self.job.outputs, self.config)

    @property
    def loads(self) -> Sequence[str]:
        """See `Job.loads`."""
        return _list_names(self.job.loads, self.config)

    def place(self, machines: Sequence[Machine], inputs: Any = None) -> Resources:
        """Resolve the resources of this step for these machines. inputs: the job's inputs. None: not known."""
        asked = self.resources
        if not self.job.uses("workers"):
            asked = replace(asked, workers=1)
        if not self.job.uses("gpus"):
            asked = replace(asked, gpus=0.0)
        if inputs is None:
            inputs = self.job.inputs(**dict.fromkeys(self.inputs))
        division = self.job.divide(self.config, inputs)
        if asked.gpus is None and division.gpus:
            asked = replace(asked, gpus=self.default_gpus)
        elif asked.gpus is None:
            asked = replace(asked, gpus=0.0)
            if any(machine.gpus for machine in machines):
                # All CPUs would be free only when no step uses a GPU.
                asked = replace(asked, cpus=asked.cpus or 1.0)
        resolved = resolve_resources(asked, machines)
        workers = resolved.workers or 1
        if asked.workers is None and division.default is not None:
            workers = min(workers, division.default)
        if division.most is not None:
            workers = min(workers, division.most)
        if workers == resolved.workers:
            return resolved
        # Fewer workers get more CPUs each.
        return resolve_resources(replace(asked, workers=workers), machines)

    def metric(self, name: str, count: str = "") -> "Metric":
        """Return a reference to a metric of this step, for the recipe's table. count: see `Metric`."""
        require(isinstance(name, str), f"step {self.name}: metric", name, "a name, such as 'loss'")
        return Metric(self, name, count)

    def references(self) -> "Iterator[tuple[str, Output | Source]]":
        """Yield (field, reference) of every input, with tuples flattened."""
        for name, value in self.inputs.items():
            for item in value if isinstance(value, tuple) else (value,):
                if item is not None:
                    yield name, item

    @property
    def parents(self) -> "list[Step]":
        return [ref.step for _, ref in self.references() if isinstance(ref, Output)]


@dataclass(frozen=True, eq=False)
class Output:
    """The artifact of a step, or one folder of it."""

    step: Step
    part: str | None = None

    def __str__(self) -> str:
        if self.part is None:
            return self.step.name
        return f"{self.step.name}[{self.part}]"


Reference = Output | Source | tuple[Output | Source, ...] | None


@dataclass(frozen=True, eq=False)
class Metric:
    """A scalar of a step's result."""

    step: Step
    name: str
    count: str = ""
    """Name of the metric with the number of rows that this metric averages over. The title of the column shows it. A
    step without such rows reports neither metric; a column without any rows is left out."""

    @property
    def direction(self) -> int:
        """See `Job.direction`."""
        return self.step.job.direction(self.name)


@dataclass(frozen=True, eq=False)
class Row:
    """A row of the final table."""

    label: str
    columns: Mapping[str, Metric | Sequence[Metric]]
    """Title -> metric, or several metrics, such as one per fold, of which the mean and standard deviation are shown."""
    steps: Sequence[Step] = ()
    """The steps whose total time the row shows."""
    model: Output | None = None
    """The folder of the model or adapter that the row evaluates, if the run makes it."""
    baseline: bool = False
    """Whether the row is a baseline, such as BM25, with which the report compares the other rows."""
    detail: bool = False
    """Whether the terminal shows the row only with `--full`. The report shows it."""

    def __post_init__(self) -> None:
        require(isinstance(self.label, str), "Row: label", self.label, "a text")
        where = f"Row '{self.label}'"
        expected = '{"title": step.metric("name")}'
        require(isinstance(self.columns, Mapping), f"{where}: columns", self.columns, expected)
        for title, metric in self.metrics:
            place = f"{where}, column '{title}'"
            require(isinstance(metric, Metric), place, metric, 'step.metric("name")')
        require_items(self.steps, Step, f"{where}: steps", "step(...)")
        require(
            isinstance(self.model, Output | None), f"{where}: model", self.model, 'step["model"]'
        )

    @property
    def metrics(self) -> list[tuple[str, Metric]]:
        """(title of the column, metric) of all metrics in the row."""
        found: list[tuple[str, Any]] = []
        for title, cell in self.columns.items():
            for metric in cell if isinstance(cell, list | tuple) else [cell]:
                found.append((title, metric))
        return found

    @property
    def directions(self) -> dict[str, int]:
        """Title of the column -> direction of its first metric."""
        return {title: metric.direction for title, metric in reversed(self.metrics)}


@dataclass(frozen=True, eq=False)
class Summary:
    """The result of a recipe: the rows of its final table, and further outputs. It determines which steps are run."""

    rows: Sequence[Row]
    goals: Sequence[Step] = field(default=())
    """Further steps to run, on which no row depends."""
    unreached: Sequence[str] = ()
    """Steps that the recipe made but the summary does not depend on; set by `recipe.build`. They do not run."""
    files: Mapping[str, Output] = field(default_factory=dict)
    """Name -> a file of a step's output, which is copied into the folder of the run for the user."""
    results: Mapping[str, Output | Source] = field(default_factory=dict)
    """Name -> an output that the command uses after the run. `--out` copies the first one, such as a model."""
    best: Mapping[str, Output] = field(default_factory=dict)
    """Name -> the folder of a model that the run ends with, such as {"embedder": merged["model"]}. A run id without a
    model name means the first one."""
    comparisons: Sequence[tuple[str, str]] = ()
    """Labels of two rows, (before, after): the report shows what changed in each column."""
    plots: Sequence[tuple[str, str]] = ()
    """(column across, column up) of charts with a point for each row."""
    notes: Sequence[str] = ()
    """Warnings about the recipe's settings, for plans."""

    def __post_init__(self) -> None:
        require_items(self.rows, Row, "Summary: rows", "Row(label, columns)")
        require_items(self.goals, Step, "Summary: goals", "step(...)")
        require_items(list(self.files.values()), Output, "Summary: files", 'step["name"]')
        require_items(list(self.best.values()), Output, "Summary: best", 'step["model"]')
        labels = [row.label for row in self.rows]
        for label in labels:
            if labels.count(label) > 1:
                raise RecipeError(
                    f"{locate_caller()}Summary: rows: label '{label}' given twice; expected unique labels"
                )
        for label in [label for pair in self.comparisons for label in pair]:
            require(label in labels, "Summary: comparisons", label, "the label of a row")


def average(summaries: Sequence[Summary]) -> Summary:
    """Return the summary of repetitions, such as folds: means with standard deviations, and the first one's outputs."""
    rows = []
    for same in zip(*(summary.rows for summary in summaries), strict=True):
        columns: dict[str, list[Metric]] = {}
        steps = []
        for row in same:
            steps += row.steps
            for title, metric in row.metrics:
                columns.setdefault(title, []).append(metric)
        rows.append(replace(same[0], columns=columns, steps=steps))
    goals = [goal for summary in summaries for goal in summary.goals]
    return replace(summaries[0], rows=rows, goals=goals)


_names_made: ContextVar[tuple[str, list[str]] | None] = ContextVar("names_made", default=None)


def step(name: str, job: Job, *, resources: Resources | None = None, **values: Any) -> Step:
    """Create a step called `name`, such as `iter0/mine`.

    Raises RecipeError for an unknown keyword, a missing input, a literal as an input, and an output as a setting, and
    InputError for a setting of the wrong type or out of bounds.
    """
    require(isinstance(name, str), "step", name, "a name, such as 'iter0/mine'")
    is_name = STEP_NAME.fullmatch(name) is not None
    require(is_name, "step", name, "letters, digits and . _ - = in parts between /")
    require(isinstance(job, Job), f"step {name}: job", job, "a Job, such as mine.JOB")
    require(
        isinstance(resources, Resources | None), f"step {name}: resources", resources, "Resources"
    )
    where = locate_caller()
    config_fields = {f.name: f for f in fields(job.config)}
    input_fields = {f.name: f for f in fields(job.inputs)}
    for key, value in values.items():
        if key not in config_fields and key not in input_fields:
            known = [*input_fields, *config_fields]
            raise RecipeError(f"{where}step {name}: '{key}' given; {expect_one_of(known, key)}")
        if key in config_fields and isinstance(value, Step | Output | Source):
            raise RecipeError(
                f"{where}step {name}: a step's output given as setting '{key}'; expected a literal"
            )
    given = {key: values[key] for key in values if key in config_fields}
    config = validate(job.config, given, f"{where}step {name}: {job.name}")
    if resources is not None:
        resources = validate(Resources, vars(resources), f"{where}step {name}: resources")
        check_resources(resources, f"{where}step {name}: resources", job)
    inputs = {key: _reference(name, key, values.get(key)) for key in input_fields}
    for key, input_field in input_fields.items():
        required = input_field.default is MISSING and "None" not in str(input_field.type)
        if required and inputs[key] is None:
            raise RecipeError(
                f"{where}step {name}: input '{key}' not given; expected a step's output or a Source"
            )
    prefix, names = _names_made.get() or ("", [])
    names.append(prefix + name)
    return Step(prefix + name, job, config, inputs, resources or Resources())


@contextmanager
def record_names(prefix: str = "") -> Iterator[list[str]]:
    """Add a prefix to the names of all steps that are made in the block, and yield the list that collects them."""
    names: list[str] = []
    token = _names_made.set((prefix, names))
    try:
        yield names
    finally:
        _names_made.reset(token)


def reachable(goals: Sequence[Step]) -> list[Step]:
    """Return the goals and all their ancestors, parents before children, in the order of the recipe.

    Raises RecipeError if two different steps have one name.
    """
    found: dict[Step, None] = {}
    for goal in goals:
        stack = [(goal, iter(goal.parents))]
        while stack:
            child, parents = stack[-1]
            parent = next((parent for parent in parents if parent not in found), None)
            if parent is None:
                found[child] = None
                stack.pop()
            else:
                stack.append((parent, iter(parent.parents)))
    by_name: dict[str, Step] = {}
    for step in found:
        if by_name.setdefault(step.name, step) is not step:
            raise RecipeError(
                f"step {step.name}: two different steps have this name; expected unique names; rename one"
            )
    return list(found)


def list_goals(summary: Summary) -> list[Step]:
    """Return the steps that a summary refers to: rows, goals, files, models and results."""
    outputs: list[Any] = [
        *summary.files.values(),
        *summary.best.values(),
        *summary.results.values(),
    ]
    goals = []
    for row in summary.rows:
        goals += [metric.step for _, metric in row.metrics]
        outputs.append(row.model)
    for row in summary.rows:
        goals += row.steps
    goals += summary.goals
    return goals + [output.step for output in outputs if isinstance(output, Output)]


def _reference(name: str, key: str, value: Any) -> Reference:
    if value is None or isinstance(value, Output | Source):
        return value
    if isinstance(value, Step):
        return Output(value)
    if isinstance(value, list | tuple):
        items = tuple(_reference(name, key, item) for item in value)
        return tuple(item for item in items if isinstance(item, Output | Source))
    raise RecipeError(
        f"{locate_caller()}step {name}: {describe_value(value)} given as input '{key}'; expected a step's output or a"
        " Source"
    )


def _list_names(names: Names, config: Any) -> Sequence[str]:
    if callable(names):
        return names(config)
    return names


def _matches(name: str, known: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in known)


def check_resources(resources: Resources, where: str, job: Job) -> None:
    """Raise RecipeError, beginning with `where`, for unused resources, invalid labels, and min_workers > workers."""
    for name, value in vars(resources).items():
        if not job.uses(name) and value != getattr(Resources(), name):
            raise RecipeError(
                f"{where}: {name} given; expected one of {', '.join(job.resources or ())}, since {job.name} uses no"
                " other resource; leave it out"
            )
    try:
        resources.selector()
    except InputError as error:
        raise RecipeError(f"{where}: {error}") from None
    if resources.min_workers and resources.workers and resources.min_workers > resources.workers:
        raise RecipeError(
            f"{where}: min_workers {resources.min_workers} given; expected at most workers, which is"
            f" {resources.workers}"
        )


def check_metrics(steps: Sequence[Step], rows: Sequence[Row]) -> None:
    """Raise RecipeError if a row has a metric that its step does not report. steps: with all settings applied."""
    by_name = {step.name: step for step in steps}
    for row in rows:
        for title, metric in row.metrics:
            check_metric(
                by_name[metric.step.name], metric.name, f"row '{row.label}', column '{title}'"
            )


def check_outputs(steps: Sequence[Step]) -> None:
    """Raise RecipeError if an input is an output that its step does not write. steps: with all settings applied."""
    known = {step.name: step.outputs for step in steps}
    for step in steps:
        for key, ref in step.references():
            if not isinstance(ref, Output) or ref.part is None:
                continue
            written = known[ref.step.name]
            if written and not _matches(ref.part, written):
                raise RecipeError(
                    f"step {step.name}: input '{key}' is '{ref.part}' of step {ref.step.name}, which with its settings"
                    f" writes {', '.join(written)} only; set the parameter of the recipe instead of the step's setting"
                    " (`ratchet recipes NAME` lists them), so that the recipe leaves out what needs it"
                )


def check_metric(step: Step, name: str, where: str) -> None:
    """Raise RecipeError, beginning with `where`, if the step's job says that it does not report the metric."""
    known = _list_names(step.job.metrics, step.config)
    if known and not _matches(name, known):
        raise RecipeError(
            f"{where}: step {step.name} reports no '{name}'; {expect_one_of(known, name)}"
        )
