"""The objective of a sweep, and the steps that a trial needs for it.

The objective is a held-out metric (`valid/map@25`) if a training step selects its checkpoints by it: the last such step
that the space changes, else the last one after a changed step. Its value after each checkpoint is used for early
stopping. Otherwise, the objective is a metric of the named step, or of the recipe's summary table. A metric of the test
split is refused: settings that are selected by it look better than they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ratchet.errors import RecipeError
from ratchet.orchestrator.job_interface.job import infer_direction
from ratchet.orchestrator.job_interface.settings import expect_one_of
from ratchet.orchestrator.plan import describe_inputs
from ratchet.orchestrator.recipe import match_steps
from ratchet.orchestrator.step import Output, Step, Summary, check_metric


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

    @property
    def maximize(self) -> bool:
        return infer_direction(self.name) >= 0

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
        return Objective((changed or training)[-1].name, f"valid/{name}", metric, trained=True)
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
    return Objective(last.name, name, metric, trained=False)


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
