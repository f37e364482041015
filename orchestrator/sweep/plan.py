"""A sweep, worked out and checked before anything is started: the trials, what decides between them, and its ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator import recipe
from orchestrator.errors import RecipeError
from orchestrator.plan import Plan, config_of, describe_inputs
from orchestrator.show import literal
from orchestrator.step import Source, Step
from orchestrator.store import Store
from orchestrator.sweep import target as targets
from orchestrator.sweep.ledger import Ledger
from orchestrator.sweep.space import Dimension, Space
from orchestrator.sweep.target import Target


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep is going to do."""

    given: str
    """The recipe's name, or its file, as the person wrote it."""
    recipe: recipe.Recipe
    lines: tuple[str, ...]
    """`name=value` of all trials: those of the command, then the space's plain values."""
    space: Space
    steps: Sequence[Step]
    """Of the trial with the recipe's defaults, up to the target."""
    target: Target
    seeded: tuple[str, ...]
    """Steps whose seed the second and later seeds of a trial change."""
    defaults: Mapping[str, str]
    """What the recipe has for the settings of the space, for people; without those that it has no one value for."""
    ledger: Ledger
    notes: tuple[str, ...]


def plan(
    name: str, lines: Iterable[str], path: Path, metric: str, store: Store, how: Mapping[str, Any], command: str
) -> SweepPlan:
    """how: of what the sweep's identity is beside its trials' (searcher, seeds, ...).

    Raises RecipeError (with the space's file and line) for a name that the recipe does not have and a value that it
    does not take, and what a job's own check raises for one that cannot work.
    """
    found = recipe.find(name)
    space = Space.read(path)
    if not space.dimensions:
        raise RecipeError(f"space {path}: no distribution in it; expected a line such as `epochs: choice(1, 2)`")
    lines = (*lines, *space.fixed)
    steps, summary, parameters = recipe.build(found, recipe.Settings.read(list(lines)))
    variants = [(d, [_variant(found, lines, d, value) for value in d.values]) for d in space.dimensions]
    touched = {name for _, made in variants for name in targets.changed(steps, made)}
    target = targets.find(metric, steps, summary, touched)
    needed = targets.needed(steps, target.step)
    names = {step.name for step in needed}
    for dimension, made in variants:
        if not targets.changed(steps, made) & names:
            raise RecipeError(
                f"{dimension.where}: {dimension.name} changes nothing that {target.step} depends on, which decides by"
                f" {target.name}; leave it out, or let a later step decide: --metric step.{metric.rpartition('.')[2]}"
            )
    planned = Plan(needed, store)
    planned.check()
    for dimension, made in variants:
        _check_values(dimension.where, [step for changed in made for step in changed if step.name in names])
    seeded = tuple(
        step.name for step in needed if hasattr(step.config, "seed") and step.name in touched | {target.step}
    )
    document = {
        "recipe": found.name,
        "lines": list(lines),
        "space": {dimension.name: dimension.written for dimension in space.dimensions},
        "target": asdict(target),
        "how": dict(how),
        "code": {step.name: dict(planned.code[step.job]) for step in needed},
        "data": {
            f"{step.name}.{field}": planned.sources.digest(ref)
            for step in needed
            for field, ref in step.references()
            if isinstance(ref, Source)
        },
    }
    about = {"command": command, "inputs": {step.name: describe_inputs(step) for step in needed}}
    ledger = Ledger(store, found.name, document, about)
    defaults = {d.name: text for d in space.dimensions if (text := _default(d.name, steps, parameters)) is not None}
    notes = tuple(_notes(needed, touched, space))
    return SweepPlan(name, found, lines, space, needed, target, seeded, defaults, ledger, notes)


def _default(name: str, steps: Sequence[Step], parameters: Mapping[str, Any]) -> str | None:
    pattern, dot, field = name.rpartition(".")
    if not dot:
        return literal(parameters[name])
    found = {literal(config_of(step)[field]) for step in recipe.matching(steps, pattern) if field in config_of(step)}
    return found.pop() if len(found) == 1 else None


def _variant(found: recipe.Recipe, lines: Iterable[str], dimension: Dimension, value: str) -> list[Step]:
    """The recipe with one value of one setting."""
    try:
        return recipe.build(found, recipe.Settings.read([*lines, f"{dimension.name}={value}"]))[0]
    except RecipeError as error:
        raise RecipeError(f"{dimension.where}: {error}") from None


def _check_values(where: str, steps: Iterable[Step]) -> None:
    """Lets each job look at each value that the space may give it, at the ends of ranges. where: its line."""
    for step in steps:
        if step.job.check is not None:
            nothing = step.job.inputs(**dict.fromkeys(step.inputs))
            try:
                step.job.check(step.config, nothing)
            except Exception as error:
                if not getattr(error, "permanent", False):
                    raise
                raise RecipeError(f"{where}: step {step.name}: {error}") from None


def _notes(needed: Sequence[Step], touched: set[str], space: Space) -> Iterable[str]:
    """Why trials that ask for more of the same begin anew, where they do."""
    for step in needed:
        if step.job.longer is None or step.name not in touched:
            continue
        name, why_not = step.job.longer
        varied = [dimension.name for dimension in space.dimensions if dimension.name.rpartition(".")[2] == name]
        reason = why_not(step.config)
        if varied and reason:
            yield f"{step.name}: trials with more {name} train from the start: {reason}"
