"""Checks of jobs, steps and rows at the moment users create them. Errors name the line of the user's file."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import types
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from ratchet.errors import RecipeError

STEP_NAME = re.compile(r"(?!\.)[\w.+=,@-]+(/(?!\.)[\w.+=,@-]+)*")
JOB_NAME = re.compile(r"[A-Za-z_]\w*")
SCALARS = (str, int, float, bool, type(None))
SETTINGS = "str, int, float, bool, Literal, None or tuples"
INPUTS = "Path, Path | None or tuple[Path, ...]"


def locate_caller() -> str:
    """Return `file:line: ` of the innermost caller outside the orchestrator; empty if it is in Ratchet."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(
            "ratchet.orchestrator."
        ) and not frame.f_code.co_filename.startswith("<"):
            break
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or module.partition(".")[0] == "ratchet":
        return ""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}: "


def require(holds: bool, where: str, given: Any, expected: str) -> None:
    """Raise RecipeError, with the user's line, if `holds` is false."""
    if not holds:
        raise RecipeError(
            f"{locate_caller()}{where}: {describe_value(given)} given; expected {expected}"
        )


def require_items(items: Any, kind: type, where: str, expected: str) -> None:
    """Raise RecipeError, with the user's line, unless `items` is a list or tuple of `kind`."""
    require(
        isinstance(items, Sequence) and not isinstance(items, str),
        where,
        items,
        f"a list of {expected}",
    )
    for item in items:
        require(isinstance(item, kind), where, item, expected)


def describe_value(value: Any) -> str:
    """Format a value for a message: short literals as their repr, other values as their type."""
    if isinstance(value, (*SCALARS, tuple, list, dict)) and len(text := repr(value)) <= 60:
        return text
    if isinstance(value, type):
        return value.__name__
    return f"a {type(value).__name__}"


def check_job(job: Any) -> None:
    """Raise RecipeError if the name, version, classes or functions of a Job are invalid."""
    where = f"job {job.name}"
    require(
        isinstance(job.name, str) and bool(JOB_NAME.fullmatch(job.name)),
        "Job",
        job.name,
        "a name like my_job",
    )
    require(isinstance(job.version, int), f"{where}.version", job.version, "an integer, such as 1")
    for name, kind in (("config", job.config), ("inputs", job.inputs)):
        is_class = isinstance(kind, type) and dataclasses.is_dataclass(kind)
        require(is_class, f"{where}.{name}", kind, "a dataclass; add @dataclass(frozen=True)")
        frozen = kind.__dataclass_params__.frozen
        require(
            frozen, f"{where}.{name}", kind, "a frozen dataclass; write @dataclass(frozen=True)"
        )
    with suppress(NameError):  # a type is defined in a function
        for name, kind in get_type_hints(job.config, include_extras=True).items():
            require(_is_setting(kind), f"{where}: Config.{name}", _show(kind), SETTINGS)
        for name, kind in get_type_hints(job.inputs).items():
            allowed = (Path, Path | None, tuple[Path, ...])
            require(kind in allowed, f"{where}: Inputs.{name}", _show(kind), INPUTS)
    _check_parameters(f"{where}.run", job.run, 3, "run(context, config, inputs)")
    if job.check is not None:
        _check_parameters(f"{where}.check", job.check, 3, "check(config, inputs, parents)")


def _check_parameters(where: str, function: Any, number: int, expected: str) -> None:
    require(callable(function), where, function, f"a function {expected}")
    signature = inspect.signature(function)
    try:
        signature.bind(*range(number))
    except TypeError:
        given = f"{getattr(function, '__name__', 'function')}({', '.join(signature.parameters)})"
        raise RecipeError(f"{locate_caller()}{where}: {given} given; expected {expected}") from None


def _is_setting(kind: Any) -> bool:
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin is Annotated:
        return _is_setting(arguments[0])
    if origin in (Union, types.UnionType, tuple):
        return all(argument is Ellipsis or _is_setting(argument) for argument in arguments)
    return origin is Literal or kind in SCALARS


def _show(kind: Any) -> Any:
    if isinstance(kind, type) and not get_args(kind):
        return kind
    return str(kind).replace("typing.", "")
