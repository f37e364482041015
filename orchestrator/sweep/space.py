"""What a sweep tries. A space is a YAML file, a line for each setting, in the grammar of `--set`:

    finetune_embedder.learning_rate: loguniform(1e-5, 1e-3)
    finetune_embedder.temperature: uniform(0.01, 0.1)
    finetune_embedder.rank: choice(8, 16, 32)
    finetune_embedder.epochs: randint(1, 4)
    iter*/mine.window: grid("2,100", "2,200")
    finetune_embedder.schedule: constant

`randint(a, b)` gives a, ..., b. `grid` is like `choice`, but its values are gone through in order, all combinations of
all grids; every other setting is drawn anew for each. A value that is no distribution is the same in all trials.
"""

from __future__ import annotations

import ast
import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import RecipeError
from orchestrator.recipe import read_lines

Kind = Literal["loguniform", "uniform", "randint", "choice", "grid"]
RANGES = ("loguniform", "uniform", "randint")
KINDS = (*RANGES, "choice", "grid")
Point = Mapping[str, str]
"""One trial's settings: name -> text, as after `--set name=`."""


@dataclass(frozen=True)
class Dimension:
    """What one setting may be."""

    name: str
    kind: Kind
    values: tuple[str, ...]
    """The two ends of a range, else all values; texts as they were written."""
    where: str
    """File and line, for messages."""
    written: str

    def draw(self, seed: int, trial: int) -> str:
        """The value of the trial numbered `trial`: it depends on nothing else, so that more trials, or more lines in
        the space, leave the others' values as they were."""
        chance = random.Random(f"{seed}/{trial}/{self.name}")
        if self.kind not in RANGES:
            return chance.choice(self.values)
        low, high = (float(value) for value in self.values)
        if self.kind == "randint":
            return str(chance.randint(int(low), int(high)))
        if self.kind == "uniform":
            return _short(chance.uniform(low, high), low, high)
        return _short(math.exp(chance.uniform(math.log(low), math.log(high))), low, high)

    def distribution(self) -> Any:
        """As Optuna has it."""
        from optuna import distributions

        if self.kind not in RANGES:
            return distributions.CategoricalDistribution(self.values)
        low, high = (float(value) for value in self.values)
        if self.kind == "randint":
            return distributions.IntDistribution(int(low), int(high))
        return distributions.FloatDistribution(low, high, log=self.kind == "loguniform")

    def native(self, text: str) -> Any:
        """One value as Optuna has it."""
        return text if self.kind not in RANGES else int(text) if self.kind == "randint" else float(text)


@dataclass(frozen=True)
class Space:
    """A file's dimensions, and the lines that all trials have in common."""

    dimensions: Sequence[Dimension]
    fixed: Sequence[str]
    """`name=value`, in the file's order."""

    @classmethod
    def read(cls, path: Path) -> Space:
        """Raises RecipeError, with file and line, for what is no line of a space."""
        dimensions: list[Dimension] = []
        fixed: list[str] = []
        for name, value, where in read_lines(path):
            dimension = _dimension(where, name, value)
            if dimension is None:
                fixed.append(f"{name}={value}")
            else:
                dimensions.append(dimension)
        return cls(dimensions, fixed)

    @property
    def grids(self) -> int:
        """How many combinations the grids have; 1 where there are none."""
        return math.prod(len(dimension.values) for dimension in self.dimensions if dimension.kind == "grid")

    def points(self, trials: int, seed: int) -> list[Point]:
        """The settings of each trial: none for the first, which has the recipe's own; then what is drawn, each once,
        no more than there are."""
        found: dict[tuple[str, ...], Point] = {(): {}}
        # A small space runs dry: what was drawn before is drawn again.
        for point in itertools.islice(self._drawn(seed), trials * 20):
            if len(found) >= trials:
                break
            found.setdefault(tuple(point.values()), point)
        return list(found.values())

    def _drawn(self, seed: int) -> Iterator[Point]:
        """Without end, unless all is grids."""
        grids = [dimension for dimension in self.dimensions if dimension.kind == "grid"]
        only_grids = len(grids) == len(self.dimensions)
        for trial in range(self.grids) if only_grids else itertools.count():
            point, rest = {}, trial % self.grids
            for grid in reversed(grids):
                rest, at = divmod(rest, len(grid.values))
                point[grid.name] = grid.values[at]
            yield {d.name: point[d.name] if d.kind == "grid" else d.draw(seed, trial) for d in self.dimensions}


def lines(point: Point) -> list[str]:
    """As `--set` takes them."""
    return [f"{name}={value}" for name, value in point.items()]


def _dimension(where: str, name: str, written: str) -> Dimension | None:
    """None for a plain value."""
    try:
        call = ast.parse(written, mode="eval").body
    except SyntaxError:
        return None
    if not isinstance(call, ast.Call):
        return None
    kind = call.func.id if isinstance(call.func, ast.Name) else ""
    if kind not in KINDS or call.keywords:
        raise RecipeError(f"{where}: {written} given; expected one of {', '.join(f'{k}(...)' for k in KINDS)}")
    values = tuple(
        argument.value
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
        else (ast.get_source_segment(written, argument) or "")
        for argument in call.args
    )
    if kind in RANGES:
        _check_range(where, written, kind, values)
    if not values:
        raise RecipeError(f"{where}: {written} given; expected at least one value in the brackets")
    return Dimension(name, kind, values, where, written)  # type: ignore[arg-type]


def _check_range(where: str, written: str, kind: str, values: Sequence[str]) -> None:
    try:
        low, high = (float(value) for value in values)
        fits = math.isfinite(low) and math.isfinite(high) and low < high
        whole = kind != "randint" or (low.is_integer() and high.is_integer())
    except ValueError:
        fits = whole = False
    if not (fits and whole) or (kind == "loguniform" and low <= 0):
        ends = {"randint": "whole numbers", "loguniform": "numbers above 0"}.get(kind, "numbers")
        raise RecipeError(f"{where}: {written} given; expected {kind}(low, high) with {ends}, low below high")


def text_of(value: Any) -> str:
    """A searcher's value as a setting: four digits of a float, which is what is run, and kept."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _short(value: float, low: float, high: float) -> str:
    """Four digits: more say nothing, and make names that nobody can read. Never outside the range."""
    return f"{min(max(float(f'{value:.4g}'), low), high):.6g}"
