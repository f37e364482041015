"""The plan of a sweep: the search space and the objective, checked before anything is started."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ratchet.errors import InputError, RatchetError, RecipeError
from ratchet.orchestrator import recipe
from ratchet.orchestrator.job_interface.job import Resources
from ratchet.orchestrator.job_interface.settings import expect_one_of
from ratchet.orchestrator.plan import Plan, describe_inputs
from ratchet.orchestrator.recipe import match_steps
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.step import Output, Step, Summary, check_metric
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.sweeps.space import Dimension, Space


@dataclass(frozen=True)
class SweepPlan:
    """A checked sweep."""

    given: str
    """The recipe's name or file, as given by the user."""
    recipe: recipe.Recipe
    lines: tuple[str, ...]
    """`name=value` settings of all trials: the plain values of the space, then the settings of the command."""
    space: Space
    steps: Sequence[Step]
    """Steps of the trial with the recipe's defaults, up to the deciding step."""
    finished: Mapping[str, Step]
    """Steps of finished runs by name, fixed when the sweep begins, since the prefix of a run may later mean another."""
    objective: "Objective"
    seeded_steps: tuple[str, ...]
    """Names of the steps whose `seed` setting differs between the seeds of a trial."""
    run_log: RunLog
    """The folder of the sweep."""
    notes: tuple[str, ...]


def plan_sweep(
    name: str, lines: Iterable[str], path: Path, metric: str, store: Store, command: str
) -> SweepPlan:
    """Build and check a sweep, and create its folder. path: the file of the space.

    Raises RecipeError, with file and line of the space, for an unknown name, a value that the recipe does not accept,
    and a value that fails the check of a job.
    """
    found = recipe.find(name)
    space = Space.read(path)
    if not space.dimensions:
        raise RecipeError(
            f"space {path}: no distribution given; expected a line such as `epochs: choice(1, 2)`"
        )
    lines = (*space.fixed, *lines)
    steps, summary, _ = recipe.build(found, recipe.Settings.read(list(lines)), store)
    variants = {}
    changed = {}
    for dimension in space.dimensions:
        variants[dimension] = [
            _vary(found, lines, dimension, value, store) for value in dimension.values
        ]
        changed[dimension] = find_changed_steps(steps, variants[dimension])
        if dimension.name.rpartition(".")[2] in vars(Resources()) and not changed[dimension]:
            raise RecipeError(
                f"{dimension.where}: {dimension.name} is a resource: it changes the speed and no result; expected a"
                f" setting; give it with --set {dimension.name}=..."
            )
        _check_whole_numbers(found, lines, dimension, store)
    touched = set().union(*changed.values())
    objective = find_objective(metric, steps, summary, touched)
    needed = select_needed_steps(steps, objective.step)
    names = {step.name for step in needed}
    planned = Plan(needed, store)
    planned.check()
    reached = list(needed)  # some steps exist only for other values of a setting
    for dimension, made in variants.items():
        if not changed[dimension] & names:
            raise RecipeError(
                f"{dimension.where}: {dimension.name} changes nothing that {objective.step} depends on; expected a"
                f" setting that changes {objective.name}; leave it out, or name a later step:"
                f" --metric STEP.{metric.rpartition('.')[2]}"
            )
        for varied in made:
            _check_values(dimension.where, [step for step in varied if step.name in names])
            reached += select_needed_steps(varied, objective.step)
    seeded = []
    for step in needed:
        if step.name in {*touched, objective.step} and hasattr(step.config, "seed"):
            seeded.append(step.name)
    finished = {step.name: step for step in reached if step.finished}
    return SweepPlan(
        name,
        found,
        lines,
        space,
        needed,
        finished,
        objective,
        tuple(seeded),
        RunLog.begin(store, found.name, {"command": command}, folder="sweeps"),
        tuple(planned.warnings),
    )


def _vary(
    found: recipe.Recipe, lines: Iterable[str], dimension: Dimension, value: str, store: Store
) -> list[Step]:
    try:
        return recipe.build(
            found, recipe.Settings.read([*lines, f"{dimension.name}={value}"]), store
        )[0]
    except InputError as error:
        raise RecipeError(f"{dimension.where}: {error}") from None


def _check_whole_numbers(
    found: recipe.Recipe, lines: Iterable[str], dimension: Dimension, store: Store
) -> None:
    """Raise RecipeError if a range draws fractions for a setting that only takes whole numbers."""
    if dimension.kind not in ("uniform", "loguniform"):
        return
    low, high = (float(value) for value in dimension.values)
    try:
        _vary(found, lines, dimension, str(low + (high - low) / math.pi), store)
    except RecipeError:
        raise RecipeError(
            f"{dimension.where}: {dimension.written} given, which draws fractions; expected whole numbers for"
            f" {dimension.name}; write randint({low:g}, {high:g})"
        ) from None


def _check_values(where: str, steps: Iterable[Step]) -> None:
    """Run the jobs' checks on steps with values of the space (for ranges, the bounds). where: file and line."""
    for step in steps:
        if step.job.check is not None:
            nothing = step.job.inputs(**dict.fromkeys(step.inputs))
            try:
                step.job.check(step.config, nothing, {})
            except RatchetError as error:
                raise RecipeError(f"{where}: step {step.name}: {error}") from None


@dataclass(frozen=True)
class Objective:
    """The objective of a sweep: a metric in the result of the deciding step."""

    step: str
    name: str
    """Name in the result: `valid/map@25` if the step trains, `map@25` if it evaluates."""
    metric: str
    """Metric as given by the user: `map@25`."""
    trained: bool
    """Whether the step selects its checkpoints by the metric, so that each checkpoint has a value."""
    maximize: bool

    def read_value(self, numbers: Mapping[str, float]) -> float:
        """Return the objective from the metrics of the step. Raises RecipeError if the step did not report it."""
        if self.name not in numbers:
            raise RecipeError(
                f"--metric {self.metric}: step {self.step} reports no number '{self.name}';"
                f" {expect_one_of(numbers, self.name)}"
            )
        return numbers[self.name]

    def read_curve(self, result: Mapping[str, Any]) -> list[float]:
        """Return the objective after each checkpoint, from a table in the result of the finished step."""
        for rows in result.get("tables", {}).values() if self.trained else ():
            if rows and self.name in rows[0]:
                return [
                    float(row[self.name]) for row in rows[1:]
                ]  # the first row is before training
        return []


def find_changed_steps(default: Iterable[Step], variants: Iterable[Iterable[Step]]) -> set[str]:
    """Return the names of the steps whose settings or inputs differ between the defaults and any of the variants."""

    def describe(step: Step) -> Any:
        return asdict(step.config), describe_inputs(step)

    before = {step.name: describe(step) for step in default}
    return {
        step.name for steps in variants for step in steps if before.get(step.name) != describe(step)
    }


def select_needed_steps(steps: Sequence[Step], goal: str) -> list[Step]:
    """Return the step `goal` and all steps that it depends on, in the order of `steps`."""
    wanted = {goal}
    for step in reversed(steps):
        if step.name in wanted:
            wanted |= {parent.name for parent in step.parents}
    return [step for step in steps if step.name in wanted]


def find_objective(
    metric: str, steps: Sequence[Step], summary: Summary, touched: set[str]
) -> Objective:
    """Find the objective `METRIC` or `STEP.METRIC`. steps: parents first. touched: names of steps the space changes.

    Raises RecipeError if no step that depends on the space reports the metric.
    """
    named, dot, name = metric.rpartition(".")
    reached = set(touched)
    for step in steps:
        if any(parent.name in reached for parent in step.parents):
            reached.add(step.name)
    among = match_steps(steps, named) if dot else list(steps)
    if not among:
        known = sorted({step.name for step in steps} | {step.job.name for step in steps})
        raise RecipeError(f"--metric {metric}: no step '{named}'; {expect_one_of(known, named)}")
    among = [step for step in among if step.name in reached]
    if not among:
        raise RecipeError(
            f"--metric {metric}: the space changes nothing that {named} depends on; expected a step that it changes"
        )
    training = [step for step in among if _get_training_metric(step) == name]
    changed = [step for step in training if step.name in touched]
    if training:
        chosen = (changed or training)[-1]
        maximize = _is_higher_better(chosen, name, metric)
        return Objective(chosen.name, f"valid/{name}", metric, trained=True, maximize=maximize)
    last = among[-1] if dot else None
    titles = []
    if last:
        check_metric(last, name, f"--metric {metric}")
    else:
        for row in summary.rows:
            for title, number in row.metrics:
                titles.append(title)
                if metric in (title, number.name) and number.step.name in reached:
                    last, name = number.step, number.name
    if last is None:
        reported = {*titles, *(_get_training_metric(step) or "" for step in among)}
        raise RecipeError(
            f"--metric {metric}: no step that depends on the space reports it;"
            f" {expect_one_of(sorted(reported - {''}), name)}; write STEP.NAME for the metric of another step"
        )
    if reads_test_split(last):
        known = []
        for step in steps:
            if step.name not in reached:
                continue
            if step.job is last.job and not reads_test_split(step):
                known.append(f"{step.name}.{name}")
            elif _get_training_metric(step):
                known.append(f"{step.name}.{_get_training_metric(step)}")
        expected = (
            ", ".join(known) or "held-out rows for valid, in the data or by validation_fraction"
        )
        raise RecipeError(
            f"--metric {metric}: step {last.name} measures it on the test split; expected a metric of the valid split,"
            f" since a sweep that selects by test rows overestimates its winner; give {expected}"
        )
    maximize = _is_higher_better(last, name, metric)
    return Objective(last.name, name, metric, trained=False, maximize=maximize)


def _is_higher_better(step: Step, name: str, metric: str) -> bool:
    direction = step.job.direction(name)
    if not direction:
        raise RecipeError(
            f"--metric {metric}: job {step.job.name} does not say whether a higher or a lower '{name}' is better;"
            " expected a metric with a direction; add direction=... to its JOB"
        )
    return direction > 0


def reads_test_split(step: Step) -> bool:
    """Return whether a step evaluates the output `test` of another step: it has this input, or a step that it depends
    on has it. What a training step reads does not count, since it reports metrics of `valid` and of its training."""
    seen = {step.name}
    left = [step]
    while left:
        current = left.pop()
        for _, ref in current.references():
            if not isinstance(ref, Output):
                continue
            if ref.part == "test":
                return True
            if ref.step.name not in seen and _get_training_metric(ref.step) is None:
                seen.add(ref.step.name)
                left.append(ref.step)
    return False


def _get_training_metric(step: Step) -> str | None:
    """Return the held-out metric by which a step selects its best checkpoint; None without one or without `valid`."""
    if step.inputs.get("valid", step) is None:
        return None
    return getattr(step.config, "metric", None)
