"""What decides between trials, and what a trial needs to run for it.

The number that decides is a held-out one wherever there is one: of the steps that the space changes (else: of those
after them) the last that trains by the metric, `valid map@25`. Its value after each checkpoint is what a bad trial is
stopped by. Only where nothing is trained by the metric, or where the step is named, is it a number of the recipe's
table; choosing settings by that table's test rows makes them look better than they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import RecipeError
from orchestrator.plan import config_of
from orchestrator.recipe import matching
from orchestrator.step import Step, Summary, did_you_mean


@dataclass(frozen=True)
class Target:
    """A number of a step's result."""

    step: str
    name: str
    """As in the result: `valid map@25` of a step that trains, `map@25` of one that evaluates."""
    metric: str
    """As given."""
    trained: bool
    """Whether the step trains by it, so that its checkpoints have values too."""

    @property
    def maximize(self) -> bool:
        return not self.metric.endswith("loss")

    def value(self, result: Mapping[str, Any]) -> float:
        """Of a step's result. Raises RecipeError where the step reports no such number."""
        found = result.get("metrics", {}).get(self.name)
        if not isinstance(found, int | float):
            known = [key for key, value in result.get("metrics", {}).items() if isinstance(value, int | float)]
            raise RecipeError(
                f"--metric {self.metric}: step {self.step} reports no number '{self.name}'"
                f"{did_you_mean(self.name, known)} It reports {', '.join(known)}"
            )
        return float(found)

    def curve(self, result: Mapping[str, Any]) -> list[float]:
        """The metric after each checkpoint, from a finished step's table of them."""
        for rows in result.get("tables", {}).values() if self.trained else ():
            if rows and self.name in rows[0]:
                return [float(row[self.name]) for row in rows[1:]]  # the first is the start
        return []


def changed(default: Iterable[Step], variants: Iterable[Iterable[Step]]) -> set[str]:
    """Names of the steps whose settings differ between a recipe's default and any of its variants."""
    before = {step.name: config_of(step) for step in default}
    return {step.name for steps in variants for step in steps if before.get(step.name) != config_of(step)}


def needed(steps: Sequence[Step], goal: str) -> list[Step]:
    """The steps behind one, and itself; parents before children, as `steps` has them."""
    wanted = {goal}
    for step in reversed(steps):
        if step.name in wanted:
            wanted |= {parent.name for parent in step.parents}
    return [step for step in steps if step.name in wanted]


def find(metric: str, steps: Sequence[Step], summary: Summary, touched: set[str]) -> Target:
    """What `metric`, or `step.metric`, means here. steps: parents before children; touched: what the space changes.

    Raises RecipeError where nothing that the space reaches reports it.
    """
    named, dot, name = metric.rpartition(".")
    reached = set(touched)
    for step in steps:
        if any(parent.name in reached for parent in step.parents):
            reached.add(step.name)
    if dot:
        of_name = matching(steps, named)
        if not of_name:
            known = sorted({step.name for step in steps} | {step.job.name for step in steps})
            raise RecipeError(f"--metric {metric}: no step '{named}'{did_you_mean(named, known)}")
        steps, reached = of_name, {step.name for step in of_name} & reached
        if not reached:
            raise RecipeError(f"--metric {metric}: the space changes nothing that {named} depends on")
    training = [step for step in steps if _trains_by(step) == name]
    for among in (touched, reached):
        if found := [step for step in training if step.name in among]:
            return Target(found[-1].name, f"valid {name}", metric, trained=True)
    if dot:
        return Target([step for step in steps if step.name in reached][-1].name, name, metric, trained=False)
    shown = [
        number
        for row in summary.rows
        for column, number in row.columns.items()
        if name in (column, number.name) and number.step.name in reached
    ]
    if not shown:
        known = sorted({value for step in steps if step.name in reached and (value := _trains_by(step))})
        known += sorted({column for row in summary.rows for column in row.columns})
        raise RecipeError(
            f"--metric {metric}: nothing that the space changes reports it{did_you_mean(name, known)}"
            f" There are {', '.join(dict.fromkeys(known))}; another step's number is written step.name"
        )
    return Target(shown[-1].step.name, shown[-1].name, metric, trained=False)


def _trains_by(step: Step) -> str | None:
    """The held-out metric that a step keeps its best checkpoint by."""
    return getattr(step.config, "metric", None)
