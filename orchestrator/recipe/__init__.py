"""Recipes: find them by name or file, read their parameters, and apply `--set`.

All settings have one grammar:

    --set iterations=2                            a parameter of the recipe
    --set finetune_embedder.learning_rate=2e-4    a setting of every step of that job
    --set 'iter*/mine.window=2,100'               a setting of the steps whose name matches
    --set 'iter0/embed_*.workers=4'               a resource: not part of the fingerprint
"""

import fnmatch
import importlib
import inspect
import pkgutil
import re
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import yaml

import ratchet
from ratchet.errors import RecipeError
from ratchet.files import read_text
from ratchet.orchestrator.finished_run import use_store
from ratchet.orchestrator.job_interface.job import Job, Resources
from ratchet.orchestrator.job_interface.settings import convert, expect_one_of, suggest
from ratchet.orchestrator.recipe import single_job
from ratchet.orchestrator.secrets import contains_secret
from ratchet.orchestrator.step import (
    Output,
    Step,
    Summary,
    average,
    check_metrics,
    check_outputs,
    check_resources,
    list_goals,
    reachable,
    record_names,
)
from ratchet.orchestrator.store import Store

MAX_SETTINGS_BYTES = 2**20


@dataclass(frozen=True)
class Recipe:
    """A recipe: a function with keyword parameters that returns a Summary."""

    name: str
    function: Callable[..., Summary]

    @property
    def module(self) -> str:
        """The dotted name of the module that defines the function."""
        return self.function.__module__

    @property
    def doc(self) -> str:
        return inspect.cleandoc(self.function.__doc__ or "")

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function).parameters


@dataclass(frozen=True)
class Settings:
    """Parsed `--set` lines."""

    parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the recipe -> text."""
    steps: Sequence[tuple[str, str, str]] = ()
    """(pattern, field, text) for steps."""
    seeds: int = 1
    """Number of seeds, from the recipe's parameter `seed` on. The table shows the means over seeds."""

    @classmethod
    def read(cls, lines: Sequence[str], seeds: int = 1) -> "Settings":
        """Parse lines. Raises RecipeError for secrets, and for lines other than `name=value` or `steps.field=value`."""
        parameters = {}
        steps = []
        for line in lines:
            left, equals, value = line.partition("=")
            if contains_secret(line):
                raise RecipeError(
                    f"--set {left}: looks like a secret; expected none, since settings are shown in plans and"
                    " reports; put it into a file on the machines (docs/cluster.md)"
                )
            pattern, dot, name = left.strip().rpartition(".")
            if not equals or not name:
                raise RecipeError(
                    f"--set {line}: expected name=value or steps.field=value, as in 'iter*/mine.num_negatives=15'"
                )
            if dot:
                steps.append((pattern, name, value))
            else:
                parameters[name] = value
        return cls(parameters, steps, seeds)


def find_settings(name: str) -> Path:
    """Return the path of a settings file. `published/NAME` is a settings file that comes with Ratchet."""
    own = Path(ratchet.__file__).parent / "recipes" / f"{name}.yaml"
    if own.is_file():
        return own
    return Path(name)


def read_settings(path: Path) -> list[str]:
    """Read a YAML file of `name: value` lines as `name=value` lines. Raises RecipeError with file and line."""
    return [f"{name}={value}" for name, value, _ in read_lines(path)]


def read_lines(path: Path) -> list[tuple[str, str, str]]:
    """Return (name, value, `file:line`) of each setting in a YAML file. Values remain texts."""
    try:
        node = yaml.compose(
            read_text(path, RecipeError, MAX_SETTINGS_BYTES), Loader=yaml.BaseLoader
        )
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        said = " ".join(str(getattr(error, "problem", None) or error).split())
        raise RecipeError(
            f"{path}{line}: {said}; expected lines `name: value`; correct the line"
        ) from None
    except RecursionError:
        raise RecipeError(
            f"{path}: hundreds of nested lists given; expected lines `name: value`"
        ) from None
    if node is not None and not isinstance(node, yaml.MappingNode):
        raise RecipeError(f"{path}: no mapping given; expected lines `name: value`")
    found: dict[str, tuple[str, str, str]] = {}
    for key, value in _flatten(node.value if node is not None else ()):
        where = f"{path}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode) or not isinstance(value, yaml.ScalarNode):
            raise RecipeError(
                f"{where}: a list or a nested block given; expected `name: value` on a line"
            )
        if key.value in found:
            first = found[key.value][2]
            raise RecipeError(
                f"{where}: {key.value} is also given at {first}; expected one line; remove one"
            )
        if not (key.value + value.value).isprintable():
            given = reprlib.repr(key.value + value.value)
            raise RecipeError(f"{where}: {given} given; expected printable text; correct the line")
        found[key.value] = (key.value, value.value.strip(), where)
    return list(found.values())


def _flatten(pairs: Iterable[tuple[yaml.Node, yaml.Node]]) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Yield `mine: {num_negatives: 15}` as `mine.num_negatives: 15`, and plain settings unchanged."""
    for key, value in pairs:
        if isinstance(value, yaml.MappingNode):
            for inner, own in value.value:
                yield type(inner)(inner.tag, f"{key.value}.{inner.value}", inner.start_mark), own
        else:
            yield key, value


def names() -> list[str]:
    """Return the names of the recipes that come with Ratchet."""
    folder = importlib.import_module("ratchet.recipes").__path__
    return sorted(module.name for module in pkgutil.iter_modules(folder) if not module.ispkg)


def job_names() -> list[str]:
    """Return the names `jobs/NAME` of Ratchet's jobs. Each job is also a recipe of one step."""
    return [f"jobs/{name}" for name in single_job.list_jobs()]


def find(name: str) -> Recipe:
    """Find a recipe by its name, by the name of a job (`jobs/mine`), or by the path of a Python file. The file must
    define a function with the name of the file, or a `JOB`."""
    if name.startswith("jobs/") and name in job_names():
        job = name.removeprefix("jobs/")
        return Recipe(job, single_job.make_recipe(single_job.load_job(single_job.list_jobs()[job])))
    if name.endswith(".py"):
        path = Path(name).resolve()
        if not path.is_file():
            raise RecipeError(
                f"recipe {name}: no such file; give a recipe's name ({', '.join(names())}) or a file"
            )
        sys.path.insert(0, str(path.parent))
        name = path.stem
        if not name.isidentifier():
            raise RecipeError(
                f"recipe {path}: '{name}' is no name of a Python function; expected letters, digits and _; rename the"
                f" file to {re.sub(r'[^A-Za-z0-9_]', '_', name)}.py"
            )
        read_text(path, RecipeError)
        module = importlib.import_module(name)
        if Path(module.__file__ or "").resolve() != path:
            raise RecipeError(
                f"recipe {path}: {module.__file__} has the same module name; expected a unique one; rename the file"
            )
    elif name in names():
        module = importlib.import_module(f"ratchet.recipes.{name}")
    else:
        known = job_names() if name.startswith("jobs/") else names()
        raise RecipeError(f"recipe '{name}': unknown; {expect_one_of(known, name)}")
    function = getattr(module, name, None)
    declared = getattr(module, "JOB", None)
    if function is None and isinstance(declared, Job):
        return Recipe(name, single_job.make_recipe(declared))
    if (
        not callable(function)
        or inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
    ):
        raise RecipeError(
            f"recipe {name}: {module.__file__} has no function {name}(); expected one that returns a Summary, or a JOB"
        )
    recipe = Recipe(name, function)
    for key, parameter in recipe.parameters.items():
        where = f"recipe {name}: parameter {key}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise RecipeError(
                f"{where}: * or ** given; expected a name, a type and a default, such as {key}: int = 2"
            )
        if parameter.annotation is parameter.empty:
            raise RecipeError(f"{where}: no type given; expected one, such as {key}: int = 2")
    return recipe


def build(
    recipe: Recipe, settings: Settings, store: Store | None = None
) -> tuple[list[Step], Summary, dict[str, Any]]:
    """Return the recipe's steps with all settings applied (parents before children), its summary and its parameters.

    store: the store with finished runs that the recipe may use. Raises RecipeError for an unknown name, with the
    nearest known name, and for a value of the wrong type.
    """
    parameters = _parameters(recipe, settings.parameters)
    summaries = []
    made = []
    for values in _list_seeds(recipe, parameters, settings.seeds):
        prefix = f"seed{values['seed']}/" if settings.seeds > 1 else ""
        with record_names(prefix) as names, use_store(store):
            summaries.append(recipe.function(**values))
        made += names
        if not isinstance(summaries[-1], Summary):
            raise RecipeError(
                f"recipe {recipe.name}: returned {type(summaries[-1]).__name__}; expected a Summary"
            )
    summary = average(summaries) if len(summaries) > 1 else summaries[0]
    steps = reachable(list_goals(summary))
    for pattern, name, text in settings.steps:
        steps = _apply(steps, pattern, name, text)
    _check_job_names(steps)
    check_outputs(steps)
    check_metrics(steps, summary.rows)
    if not steps and not summary.results:
        raise RecipeError(
            f"recipe {recipe.name}: the Summary has no rows and no goals; expected a step to run"
        )
    reached = {s.name for s in steps}
    summary = replace(
        summary, unreached=[name for name in dict.fromkeys(made) if name not in reached]
    )
    return steps, summary, parameters


def _check_job_names(steps: Sequence[Step]) -> None:
    """Raise RecipeError if two different jobs have one name, since `--set` and fingerprints could not separate them."""
    jobs: dict[str, Any] = {}
    built_in = single_job.list_jobs()
    for s in steps:
        if s.job.name in built_in and s.job.config.__module__.partition(".")[0] != "ratchet":
            raise RecipeError(
                f"job {s.job.name}: declared in {s.job.config.__module__}; expected another name than those of"
                " Ratchet's own jobs; rename it"
            )
        first = jobs.setdefault(s.job.name, s.job)
        if first.config is not s.job.config:
            modules = f"{first.config.__module__} and {s.job.config.__module__}"
            raise RecipeError(
                f"job {s.job.name}: declared in {modules}; expected unique names; rename one"
            )


def list_modules(recipe: Recipe, steps: Iterable[Step]) -> list[str]:
    """Return the modules of a recipe and of its jobs, which the processes of a run import."""
    return list(
        dict.fromkeys([recipe.module, *(module for step in steps for module in step.job.modules)])
    )


def match_steps(steps: Sequence[Step], pattern: str) -> list[Step]:
    """Return the steps that the pattern in `--set pattern.field=value` selects, by step name or job name. With several
    seeds, a step name without its seed selects the step of every seed."""
    found = []
    for s in steps:
        without_seed = re.sub(r"^seed\d+/", "", s.name)
        if s.job.name == pattern or fnmatch.filter([s.name, without_seed], pattern):
            found.append(s)
    return found


def _list_seeds(recipe: Recipe, parameters: Mapping[str, Any], seeds: int) -> list[dict[str, Any]]:
    if seeds == 1:
        return [dict(parameters)]
    if not isinstance(parameters.get("seed"), int):
        raise RecipeError(
            f"--seeds {seeds}: recipe {recipe.name} has no parameter seed; expected one, such as seed: Seed = 42; leave"
            " --seeds out"
        )
    return [{**parameters, "seed": parameters["seed"] + number} for number in range(seeds)]


def _parameters(recipe: Recipe, given: Mapping[str, str]) -> dict[str, Any]:
    hints = get_type_hints(recipe.function, include_extras=True)
    values = {key: p.default for key, p in recipe.parameters.items() if p.default is not p.empty}
    for key, text in given.items():
        if key not in recipe.parameters:
            known = list(recipe.parameters)
            raise RecipeError(
                f"--set {key}={text}: recipe {recipe.name} has no parameter '{key}'; expected one of"
                f" {', '.join(known)}, or steps.field=value{suggest(key, known)}"
            )
        values[key] = convert(text, hints[key], f"--set {key}={text}")
    missing = [key for key in recipe.parameters if key not in values]
    if missing:
        raise RecipeError(
            f"recipe {recipe.name}: {', '.join(missing)} not given; expected a value; add "
            + " ".join(f"--set {key}=..." for key in missing)
        )
    return values


def _apply(steps: list[Step], pattern: str, name: str, text: str) -> list[Step]:
    line = f"--set {pattern}.{name}={text}"
    matched = match_steps(steps, pattern)
    if not matched:
        known = sorted({s.name for s in steps} | {s.job.name for s in steps})
        raise RecipeError(
            f"{line}: no step matches '{pattern}'; `ratchet plan` lists the steps{suggest(pattern, known)}"
        )
    if name in {f.name for f in fields(Resources)}:  # a resource is set only for steps that use it
        matched = [s for s in matched if s.job.uses(name)] or matched
    changed = {}
    for s in matched:
        part = "config" if hasattr(s.config, name) else "resources"
        before = getattr(s, part)
        hints = get_type_hints(type(before), include_extras=True)
        if name not in hints:
            known = [f.name for f in (*fields(s.job.config), *fields(Resources))]
            raise RecipeError(
                f"{line}: step {s.name} has no setting '{name}'; {expect_one_of(known, name)}"
            )
        value = convert(text, hints[name], line)
        changed[s.name] = replace(s, **{part: replace(before, **{name: value})})
        check_resources(changed[s.name].resources, line, s.job)
        _check_more_outputs(steps, s, changed[s.name], line)
    return [changed.get(s.name, s) for s in steps]


def _check_more_outputs(steps: Sequence[Step], before: Step, after: Step, line: str) -> None:
    """Raise RecipeError if a setting makes a step write a further part, such as a split, and the recipe reads others:
    rows of this part would be lost."""
    read = set()
    for s in steps:
        for _, ref in s.references():
            if isinstance(ref, Output) and ref.step.name == before.name:
                read.add(ref.part)
    more = set(after.outputs) - {*before.outputs, *read}
    if more and read and None not in read:
        raise RecipeError(
            f"{line}: step {before.name} would also write {', '.join(sorted(more))}, which this recipe does not read;"
            " set the parameter of the recipe instead (`ratchet recipes NAME` lists them), or leave it out"
        )


def apply_setting(step: Step, line: str) -> Step:
    """Return a copy of a step with a setting or resource, given as `name=value`. Raises RecipeError."""
    name, _, text = line.partition("=")
    return _apply([step], step.name, name, text)[0]
