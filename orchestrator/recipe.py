"""Finds recipes, reads their parameters, and applies `--set`.

One grammar for everything that can be set:

    --set iterations=2                            a parameter of the recipe
    --set finetune_embedder.learning_rate=2e-4    a setting of every step of that job
    --set 'iter*/mine.window=2,100'               a setting of the steps whose name matches
    --set 'iter0/embed_*.workers=4'               a resource: changes speed, never identity
"""

from __future__ import annotations

import fnmatch
import importlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

import recipes as recipes_package
from jobs.job import Resources
from jobs.values import parse
from orchestrator.errors import RecipeError
from orchestrator.secret import holds_secret
from orchestrator.step import Step, Summary, did_you_mean, goals_of, reachable, with_settings


@dataclass(frozen=True)
class Recipe:
    """A recipe's function with its name; `doc` is its docstring."""

    name: str
    function: Callable[..., Summary]

    @property
    def doc(self) -> str:
        return inspect.cleandoc(self.function.__doc__ or "")

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function).parameters


@dataclass(frozen=True)
class Settings:
    """`--set` lines, sorted: recipe parameters as given, and (pattern, field, text) for steps."""

    parameters: Mapping[str, str] = field(default_factory=dict)
    steps: Sequence[tuple[str, str, str]] = ()

    @classmethod
    def read(cls, lines: Sequence[str]) -> Settings:
        """Raises RecipeError for a line that is not `name=value` or `steps.field=value`."""
        parameters: dict[str, str] = {}
        steps: list[tuple[str, str, str]] = []
        for line in lines:
            left, equals, value = line.partition("=")
            if holds_secret(value):
                raise RecipeError(
                    f"--set {left}: looks like a secret; expected none, since settings stand in plans and reports; put"
                    " it where the machines find it (docs/cluster.md)"
                )
            pattern, dot, name = left.strip().rpartition(".")
            if not equals or not name:
                raise RecipeError(
                    f"--set {line}: expected name=value or steps.field=value, as in 'iter*/mine.negatives=15'"
                )
            if dot:
                steps.append((pattern, name, value))
            else:
                parameters[name] = value
        return cls(parameters, steps)


def read_settings(path: Path) -> list[str]:
    """The lines of a YAML file of `name: value`. Raises RecipeError, with file and line, for anything else."""
    return [f"{name}={value}" for name, value, _ in read_lines(path)]


def read_lines(path: Path) -> list[tuple[str, str, str]]:
    """(name, value, file and line) of each line of a YAML file of settings; values as they are written."""
    import yaml

    try:
        node = yaml.compose(path.read_text(), Loader=yaml.BaseLoader)
    except OSError as error:
        raise RecipeError(f"{path}: {error.strerror}; expected a YAML file with lines `name: value`") from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: {' '.join(str(error).split())}; expected lines `name: value`") from None
    if node is not None and not isinstance(node, yaml.MappingNode):
        raise RecipeError(f"{path}: no settings in it; expected lines `name: value`")
    found: dict[str, tuple[str, str, str]] = {}
    for key, value in node.value if node is not None else ():
        where = f"{path}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode) or not isinstance(value, yaml.ScalarNode):
            raise RecipeError(f"{where}: a list or a nested block given; expected `name: value` on a line")
        if key.value in found:
            raise RecipeError(f"{where}: {key.value} given for the second time; expected one line for it")
        found[key.value] = (key.value, value.value.strip(), where)
    return list(found.values())


def names() -> list[str]:
    """The recipes that come with the project."""
    return sorted(module.name for module in pkgutil.iter_modules(recipes_package.__path__) if module.name[0] != "_")


def find(name: str) -> Recipe:
    """A recipe by name, or by the path of a file that holds a function of the file's name."""
    if name.endswith(".py"):
        path = Path(name).resolve()
        if not path.is_file():
            raise RecipeError(f"recipe {name}: no such file; give a recipe's name ({', '.join(names())}) or a file")
        # Workers find the file, and jobs that are defined beside it, the way this process does.
        sys.path.insert(0, str(path.parent))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path.parent), os.environ.get("PYTHONPATH")]))
        name = path.stem
        module = importlib.import_module(name)
        if Path(module.__file__ or "").resolve() != path:
            raise RecipeError(f"recipe {path}: '{name}' is also the name of {module.__file__}; rename the file")
    elif name in names():
        module = importlib.import_module(f"recipes.{name}")
    else:
        raise RecipeError(
            f"recipe '{name}': there is none of this name{did_you_mean(name, names())} `ratchet recipes` lists them"
        )
    function = getattr(module, name, None)
    if not callable(function):
        raise RecipeError(
            f"recipe {name}: {module.__file__} has no function {name}(); expected one that returns a Summary"
        )
    return Recipe(name, function)


def build(recipe: Recipe, settings: Settings) -> tuple[list[Step], Summary, dict[str, Any]]:
    """The recipe's steps with all settings applied (parents before children), its table, and its parameters.

    Raises RecipeError for an unknown name (with the nearest one) and for a value of the wrong type.
    """
    parameters = _parameters(recipe, settings.parameters)
    summary = recipe.function(**parameters)
    if not isinstance(summary, Summary):
        raise RecipeError(f"recipe {recipe.name}: returned {type(summary).__name__}; expected a Summary")
    steps = reachable(goals_of(summary))
    for pattern, name, text in settings.steps:
        steps = _apply(steps, pattern, name, text)
    return steps, summary, parameters


def matching(steps: Sequence[Step], pattern: str) -> list[Step]:
    """The steps that the left side of `--set pattern.field=value` means: by name, or by their job's."""
    return [s for s in steps if fnmatch.fnmatchcase(s.name, pattern) or s.job.name == pattern]


def _parameters(recipe: Recipe, given: Mapping[str, str]) -> dict[str, Any]:
    hints = get_type_hints(recipe.function)
    values = {key: p.default for key, p in recipe.parameters.items() if p.default is not p.empty}
    for key, text in given.items():
        if key not in recipe.parameters:
            known = list(recipe.parameters)
            raise RecipeError(
                f"--set {key}={text}: recipe {recipe.name} has no parameter '{key}'{did_you_mean(key, known)}"
                f" It takes {', '.join(known)}; a step's setting is written steps.field=value"
            )
        values[key] = _parsed(f"--set {key}={text}", text, hints[key])
    missing = [key for key in recipe.parameters if key not in values]
    if missing:
        raise RecipeError(
            f"recipe {recipe.name}: no value for {', '.join(missing)}; give it with "
            + " ".join(f"--set {key}=..." for key in missing)
        )
    return values


def _apply(steps: list[Step], pattern: str, name: str, text: str) -> list[Step]:
    line = f"--set {pattern}.{name}={text}"
    matched = matching(steps, pattern)
    if not matched:
        known = sorted({s.name for s in steps} | {s.job.name for s in steps})
        raise RecipeError(
            f"{line}: no step matches '{pattern}'{did_you_mean(pattern, known)}; `ratchet plan` lists the steps"
        )
    changed: dict[str, Step] = {}
    for s in matched:
        slots = {f.name: s.job.config for f in fields(s.job.config)} | {
            f.name: Resources for f in fields(Resources) if f.name not in {g.name for g in fields(s.job.config)}
        }
        if name not in slots:
            raise RecipeError(
                f"{line}: step {s.name} has no setting '{name}'{did_you_mean(name, list(slots))};"
                f" it takes {', '.join(slots)}"
            )
        value = {name: _parsed(line, text, get_type_hints(slots[name])[name])}
        changed[s.name] = with_settings(s, {}, value) if slots[name] is Resources else with_settings(s, value, {})
    return [changed.get(s.name, s) for s in steps]


def _parsed(line: str, text: str, annotation: Any) -> Any:
    try:
        return parse(text, annotation)
    except ValueError as error:
        raise RecipeError(f"{line}: {error}") from None
