"""Steps and what joins them: everything a recipe needs to describe its iterations. Nothing runs here.

    mined = step("iter0/mine", mine.JOB, queries=data["train"], corpus=data["corpus"], window=(2, 200))
    tuned = step("iter0/finetune_embedder", finetune_embedder.JOB, base=base, mined=mined, epochs=3)

Keywords are sorted into the job's `Config` fields (literals) and `Inputs` fields (what other steps made, or a
`Source`). A recipe returns a `Summary`: the rows of its final table; all the steps behind them are what runs.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from jobs.job import Job, Resources, Source
from orchestrator.errors import RecipeError

__all__ = ["Metric", "Output", "Resources", "Row", "Source", "Step", "Summary", "reachable", "step"]


@dataclass(frozen=True, eq=False)
class Step:
    """One job with its settings and inputs. Identity is worked out by the plan, once the inputs exist."""

    name: str
    job: Job
    config: Any
    inputs: Mapping[str, Reference]
    resources: Resources

    def __getitem__(self, part: str) -> Output:
        """One folder of this step's artifact: `prepared["corpus"]`. Steps that take it ignore the other folders."""
        return Output(self, part)

    def metric(self, name: str) -> Metric:
        """A number that this step will report, for the recipe's table."""
        return Metric(self, name)

    def references(self) -> Iterator[tuple[str, Output | Source]]:
        """(field, reference) of every input, tuples flattened."""
        for name, value in self.inputs.items():
            for item in value if isinstance(value, tuple) else (value,):
                if item is not None:
                    yield name, item

    @property
    def parents(self) -> list[Step]:
        return [ref.step for _, ref in self.references() if isinstance(ref, Output)]


@dataclass(frozen=True, eq=False)
class Output:
    """What a step made: its whole artifact, or one folder of it."""

    step: Step
    part: str | None = None

    def __str__(self) -> str:
        return self.step.name if self.part is None else f"{self.step.name}[{self.part}]"


Reference = Output | Source | tuple[Output | Source, ...] | None


@dataclass(frozen=True, eq=False)
class Metric:
    """A scalar of a step's result, known when the step is done."""

    step: Step
    name: str


@dataclass(frozen=True, eq=False)
class Row:
    """A line of the final table. `steps`: those whose time the row shows."""

    label: str
    columns: Mapping[str, Metric]
    steps: Sequence[Step] = ()


@dataclass(frozen=True, eq=False)
class Summary:
    """What a recipe returns: the table at its end. `goals`: further steps to run that no row shows."""

    rows: Sequence[Row]
    goals: Sequence[Step] = field(default=())


def step(name: str, job: Job, *, resources: Resources | None = None, **values: Any) -> Step:
    """A step called `name` (such as `iter0/mine`) of `job`.

    Raises RecipeError for a keyword that is no field of the job's Config or Inputs, for a missing one, and for a
    value in the wrong slot (a literal as an input, a step as a setting).
    """
    config_fields = {f.name: f for f in fields(job.config)}
    input_fields = {f.name: f for f in fields(job.inputs)}
    for key, value in values.items():
        if key not in config_fields and key not in input_fields:
            raise RecipeError(
                f"step {name}: '{key}' given; job {job.name} takes {', '.join([*input_fields, *config_fields])}"
                f"{did_you_mean(key, [*input_fields, *config_fields])}"
            )
        if key in config_fields and isinstance(value, Step | Output | Source):
            raise RecipeError(f"step {name}: setting '{key}' was given a step's output; expected a literal")
    config = _filled(name, job, config_fields, values)
    inputs = {key: _reference(name, key, values.get(key)) for key in input_fields}
    for key, input_field in input_fields.items():
        required = input_field.default is MISSING and "None" not in str(input_field.type)
        if required and inputs[key] is None:
            raise RecipeError(f"step {name}: input '{key}' is missing; give it a step's output or a Source")
    return Step(name, job, config, inputs, resources or Resources())


def reachable(goals: Sequence[Step]) -> list[Step]:
    """Every step behind `goals`, parents before children, in the order of the recipe.

    Raises RecipeError where two different steps have one name.
    """
    order: dict[str, Step] = {}

    def visit(root: Step) -> None:
        stack = [(root, iter(root.parents))]
        while stack:
            current, parents = stack[-1]
            parent = next(parents, None)
            if parent is None:
                stack.pop()
                order.setdefault(current.name, current)
            elif parent.name not in order:
                stack.append((parent, iter(parent.parents)))
            elif order[parent.name] is not parent:
                raise RecipeError(f"step {parent.name}: two different steps have this name; give each its own")
            if order.get(current.name, current) is not current:
                raise RecipeError(f"step {current.name}: two different steps have this name; give each its own")

    for goal in goals:
        if goal.name not in order:
            visit(goal)
        elif order[goal.name] is not goal:
            raise RecipeError(f"step {goal.name}: two different steps have this name; give each its own")
    return list(order.values())


def goals_of(summary: Summary) -> list[Step]:
    """The steps that a summary needs."""
    shown = [metric.step for row in summary.rows for metric in row.columns.values()]
    return [*shown, *(s for row in summary.rows for s in row.steps), *summary.goals]


def with_settings(step_: Step, config: Mapping[str, Any], resources: Mapping[str, Any]) -> Step:
    """The same step with some settings and resources replaced."""
    return replace(step_, config=replace(step_.config, **config), resources=replace(step_.resources, **resources))


def did_you_mean(given: str, known: Sequence[str]) -> str:
    """'; did you mean X?' for the nearest known name, or nothing."""
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""


def _filled(name: str, job: Job, config_fields: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    given = {key: _literal(value) for key, value in values.items() if key in config_fields}
    missing = [
        key
        for key, f in config_fields.items()
        if key not in given and f.default is MISSING and f.default_factory is MISSING
    ]
    if missing:
        raise RecipeError(f"step {name}: no value for {', '.join(missing)}; job {job.name} has no default for it")
    return job.config(**given)


def _literal(value: Any) -> Any:
    return tuple(_literal(item) for item in value) if isinstance(value, list | tuple) else value


def _reference(name: str, key: str, value: Any) -> Reference:
    if value is None or isinstance(value, Output | Source):
        return value
    if isinstance(value, Step):
        return Output(value)
    if isinstance(value, list | tuple):
        items = tuple(_reference(name, key, item) for item in value)
        return tuple(item for item in items if isinstance(item, Output | Source))
    raise RecipeError(f"step {name}: input '{key}' was given {value!r}; expected a step's output or a Source")
