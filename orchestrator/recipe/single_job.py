"""Any job as a recipe of one step, whose parameters are the inputs and settings of the job."""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import Field

import ratchet
from ratchet.orchestrator.job_interface.job import Job, Source
from ratchet.orchestrator.job_interface.settings import field_docs
from ratchet.orchestrator.step import Output, Summary, step

MODELS = {"model", "models", "base", "student"}
"""Input fields that take models: folders, hub ids, or models of runs. Other inputs are files and folders."""


@cache
def list_jobs() -> dict[str, str]:
    """Return job name -> dotted name of the module that declares it. These are the modules in `jobs` with a `JOB`."""
    found = {}
    for path in sorted(Path(ratchet.__file__).parent.glob("jobs/*/*.py")):
        if "\nJOB = " in path.read_text(encoding="utf-8"):
            found[path.stem] = f"ratchet.jobs.{path.parent.name}.{path.stem}"
    return found


def load_job(module: str) -> Job:
    """Return the job that a module declares."""
    job: Job = importlib.import_module(module).JOB
    return job


def make_recipe(job: Job) -> Callable[..., Summary]:
    """Return a recipe for a job: a function with a keyword parameter for each input and each setting of the job."""

    def run_job(**given: Any) -> Summary:
        values = {}
        for name in given:
            values[name] = _find_inputs(name, given[name]) if name in inputs else given[name]
        made = step(job.name, job, **values)
        return Summary([], goals=[made], results={job.name: Output(made)})

    inputs = {field.name for field in fields(job.inputs)}
    hints = {**get_type_hints(job.inputs), **get_type_hints(job.config, include_extras=True)}
    docs = {**field_docs(job.inputs), **field_docs(job.config)}
    parameters = []
    for field in (*fields(job.inputs), *fields(job.config)):
        kind: Any = hints[field.name]
        if field.name in inputs:
            if "tuple" in str(kind):
                kind = tuple[str, ...]
            else:
                kind = str if field.default is MISSING else str | None
        annotation: Any = Annotated[kind, Field(description=docs.get(field.name, ""))]
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        parameters.append(
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
        )
    made: Any = run_job
    made.__signature__ = inspect.Signature(parameters)
    made.__annotations__ = {one.name: one.annotation for one in parameters}
    made.__doc__ = inspect.getdoc(inspect.getmodule(job.config))
    return run_job


def _find_inputs(name: str, given: Any) -> Any:
    """Return the input, or tuple of inputs, that a user names; None and empty tuples unchanged."""
    if isinstance(given, tuple):
        return tuple(_find_inputs(name, one) for one in given)
    if not given:
        return given
    # Imported by name: the module imports jobs, and the orchestrator must not import jobs.
    models = importlib.import_module("ratchet.recipes.parts.models")
    if name in MODELS:
        return models.choose_model(given)
    return Source.find(given, name)
