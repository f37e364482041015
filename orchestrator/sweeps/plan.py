"""The plan of a sweep: the search space and the objective, checked before anything is started."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import InputError, RatchetError, RecipeError
from ratchet.orchestrator import recipe
from ratchet.orchestrator.job_interface.job import Resources
from ratchet.orchestrator.plan import Plan, describe_inputs
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.step import Step
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.sweeps.objective import (
    Objective,
    find_changed_steps,
    find_objective,
    select_needed_steps,
)
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
    """Steps of finished runs by name, fixed when the sweep begins, since promoted names may change later."""
    objective: Objective
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
    variants: dict[Dimension, list[list[Step]]] = {}
    changed: dict[Dimension, set[str]] = {}
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
    started = {"command": command, "inputs": {step.name: describe_inputs(step) for step in needed}}
    finished = {}
    for step in reached:
        if step.finished:
            finished[step.name] = step
    return SweepPlan(
        name,
        found,
        lines,
        space,
        needed,
        finished,
        objective,
        tuple(seeded),
        RunLog.begin(store, found.name, started, folder="sweeps"),
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
