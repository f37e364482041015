"""The search space of a sweep: a YAML file with a line per setting, whose names are the same as after `--set`:

    finetune_embedder.learning_rate: loguniform(1e-5, 1e-3)
    finetune_embedder.temperature: uniform(0.01, 0.1)
    finetune_embedder.lora_r: choice(8, 16, 32)
    finetune_embedder.epochs: randint(1, 4)
    iter*/mine.window: grid("2,100", "2,200")
    finetune_embedder.lr_scheduler_type: constant

`randint(a, b)` includes both ends. `grid` enumerates its values in order, in all combinations of all grids; the other
settings are drawn for each combination. A plain value holds for all trials; `--set` overrides it.
"""

import csv
import itertools
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import RecipeError
from ratchet.orchestrator.canonical_json import digest
from ratchet.orchestrator.recipe import read_lines

RANGES = ("loguniform", "uniform", "randint")
KINDS = (*RANGES, "choice", "grid")
Point = Mapping[str, str]
"""Settings of a trial: name -> value as text, as after `--set name=`."""


@dataclass(frozen=True)
class Dimension:
    """The distribution of one setting."""

    name: str
    kind: str
    """One of `KINDS`."""
    values: tuple[str, ...]
    """The bounds of a range, or all values of `choice` and `grid`, as written."""
    where: str
    """File and line, for messages."""
    written: str

    def draw(self, seed: int, trial: int) -> str:
        """Draw the value of trial number `trial`. It depends only on the seed, the trial number and the name:
        further trials and settings do not change it."""
        chance = random.Random(f"{seed}/{trial}/{self.name}")
        if self.kind not in RANGES:
            return chance.choice(self.values)
        low, high = (float(value) for value in self.values)
        if self.kind == "randint":
            return str(chance.randint(int(low), int(high)))
        if self.kind == "uniform":
            return _round_to_range(chance.uniform(low, high), low, high)
        return _round_to_range(math.exp(chance.uniform(math.log(low), math.log(high))), low, high)


@dataclass(frozen=True)
class Space:
    """The dimensions of a search space, and the settings with plain values, which all trials share."""

    dimensions: Sequence[Dimension]
    fixed: Sequence[str]
    """`name=value`, in the order of the file."""

    @classmethod
    def read(cls, path: Path) -> "Space":
        """Read a file. Raises RecipeError, with file and line, for an invalid line."""
        dimensions = []
        fixed = []
        for name, value, where in read_lines(path):
            dimension = _parse_dimension(where, name, value)
            if dimension is None:
                fixed.append(f"{name}={value}")
            else:
                dimensions.append(dimension)
        return cls(dimensions, fixed)

    def draw_points(self, trials: int, seed: int) -> list[Point]:
        """Draw the settings of each trial, without duplicates. The first point is empty: the recipe's defaults.

        Returns fewer than `trials` points if the space has fewer.
        """
        found: dict[tuple[str, ...], Point] = {(): {}}
        # In a small space the same point is drawn repeatedly.
        for point in itertools.islice(self._draw_all(seed), trials * 20):
            if len(found) >= trials:
                break
            found.setdefault(tuple(point.values()), point)
        return list(found.values())

    def _draw_all(self, seed: int) -> Iterator[Point]:
        """Yield points with possible duplicates, endlessly unless all dimensions are grids."""
        grids = [dimension for dimension in self.dimensions if dimension.kind == "grid"]
        combinations = itertools.product(*(grid.values for grid in grids))
        only_grids = len(grids) == len(self.dimensions)
        for trial, values in enumerate(
            combinations if only_grids else itertools.cycle(combinations)
        ):
            point = {}
            for dimension in self.dimensions:
                point[dimension.name] = dimension.draw(seed, trial)
            for grid, value in zip(grids, values, strict=True):
                point[grid.name] = value
            yield point


def compute_key(point: Point) -> str:
    """Return the key of a trial: a digest of its settings."""
    return digest(dict(point))[:12]


def _parse_dimension(where: str, name: str, written: str) -> Dimension | None:
    """Parse a value. Returns None for a plain value."""
    shown = written if len(written) <= 100 else f"{written[:100]}..."
    call = re.fullmatch(r"(\w+)\s*\((.*)\)", written)
    if call is None:
        if written.partition("(")[0].strip() in KINDS:
            raise RecipeError(
                f"{where}: {shown} given, which cannot be read; expected values separated by commas, such as"
                " loguniform(1e-5, 1e-3)"
            )
        return None
    kind = call[1]
    if kind not in KINDS:
        raise RecipeError(
            f"{where}: {shown} given; expected one of {', '.join(f'{k}(...)' for k in KINDS)}"
        )
    items = next(csv.reader([call[2]], skipinitialspace=True), [])
    values = tuple(item.strip().strip("'") for item in items)
    if kind in RANGES:
        _check_range(where, shown, kind, values)
    if not values or (kind not in RANGES and len(set(values)) < len(values)):
        raise RecipeError(
            f"{where}: {shown} given; expected at least one value in the brackets, each once"
        )
    return Dimension(name, kind, values, where, written)


def _check_range(where: str, written: str, kind: str, values: Sequence[str]) -> None:
    try:
        low, high = (float(value) for value in values)
        fits = math.isfinite(low) and math.isfinite(high) and low < high
        whole = kind != "randint" or (low.is_integer() and high.is_integer())
    except ValueError:
        fits = whole = False
    if not (fits and whole) or (kind == "loguniform" and low <= 0):
        ends = {"randint": "whole numbers", "loguniform": "numbers above 0"}.get(kind, "numbers")
        raise RecipeError(
            f"{where}: {written} given; expected {kind}(low, high) with {ends}, low below high"
        )


def _round_to_range(value: float, low: float, high: float) -> str:
    """Format a value with four significant digits, within the range."""
    return f"{min(max(float(f'{value:.4g}'), low), high):.6g}"
