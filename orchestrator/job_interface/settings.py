"""Settings: the fields of `Config` and `Resources`. Conversion from text, validation and help.

Below are the checks of jobs, steps and rows when users create them. Their errors name the line of the user's file.

A setting is defined once, at its field: type and bounds in the annotation, then the default, and the help below.

    max_length: Annotated[int, Ge(4), Unit("tokens")] | None = None
    \"\"\"Longer texts are truncated. None: the limit of the encoding config.\"\"\"

Bounds (`Ge`, `Gt`, `Le`, `Lt`, `Interval`) and `Unit` are from the package `annotated-types`; pydantic checks bounds.
"""

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import math
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Interval, Unit
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from ratchet.errors import InputError, RecipeError

PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Fraction = Annotated[float, Interval(ge=0, le=1)]
PositiveFraction = Annotated[float, Interval(gt=0, le=1)]
FractionBelowOne = Annotated[float, Interval(ge=0, lt=1)]
Tokens = Annotated[int, Ge(1), Unit("tokens")]
Seed = Annotated[int, Interval(ge=0, lt=2**32)]
"""A random seed that all libraries accept: at least 0, below 2**32."""

SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
"""Name of a bound in annotated-types and pydantic -> its sign."""


@dataclass(frozen=True)
class Neutral:
    """Annotation of a setting that changes the cost of a step, but not its result: it is no part of the fingerprint."""


@dataclass(frozen=True)
class Uses:
    """Annotation of a setting whose `value` needs further libraries. Their versions then count in the fingerprint."""

    value: str
    libraries: tuple[str, ...]
    """Distributions."""


@dataclass(frozen=True)
class Setting:
    """The description of a field of a config, for help texts."""

    name: str
    type: str
    """The type with bounds and unit, such as `int >= 1 (tokens)` or `cosine | linear | constant`."""
    default: str
    """The default as text, as after `--set name=`. Empty: a value is required, or the default is an empty text."""
    help: str


def validate(kind: type, values: Mapping[str, Any], where: str) -> Any:
    """Create an instance of the dataclass `kind` from values that have the types of its fields.

    Raises InputError, with `where.` before the name of the setting, for a missing value, and for a value of the wrong
    type or out of bounds.
    """
    prefix = f"{where}."
    try:
        made = _adapter(kind).validate_python(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        if first["type"] == "missing":
            given = "not given; expected a value, since it has no default"
        else:
            given = f"{values[name]!r} given; expected {_expected(first)}"
        raise InputError(f"{prefix}{name}: {given}") from None
    hints = get_type_hints(kind, include_extras=True)
    for name in values:
        if isinstance(values[name], bool) and not isinstance(getattr(made, name), bool):
            raise InputError(
                f"{prefix}{name}: {values[name]} given; expected {_type_text(hints[name])}"
            )
        _check_finite(getattr(made, name), f"{prefix}{name}")
    return made


def convert(text: str, annotation: Any, where: str) -> Any:
    """Convert the text after `--set name=` to a value of the annotated type.

    `none` and `null` mean None if the annotation allows it, commas separate the items of a tuple, and `_` may separate
    digits. Raises RecipeError, beginning with `where`, for a text of another type or out of bounds.
    """
    try:
        value = _adapter(annotation).validate_python(_split(text, annotation))
    except ValidationError as error:
        expected = _expected(error.errors(include_url=False)[0])
        raise RecipeError(f"{where}: {text!r} given; expected {expected}") from None
    _check_finite(value, where)
    return value


def write_value(value: Any) -> str:
    """Format a value as text that `convert` converts back to the value."""
    if isinstance(value, list | tuple):
        return ",".join(map(write_value, value))
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def write_lines(values: Mapping[str, Any]) -> list[str]:
    """Return Python values as the `name=value` lines of the command."""
    return [f"{name}={write_value(value)}" for name, value in values.items()]


def suggest(given: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'X'?` for the nearest known name, or an empty string."""
    names = {name.lower(): name for name in known}  # such as gsm8k for GSM8K
    near = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.5)
    return f"; did you mean '{names[near[0]]}'?" if near else ""


def expect_one_of(known: Iterable[str], given: str) -> str:
    """Return the text `expected one of A, B; did you mean 'A'?` for an error message about an unknown name."""
    names = list(known)
    return f"expected one of {', '.join(names)}{suggest(given, names)}"


def describe_settings(owner: Callable[..., Any]) -> list[Setting]:
    """Return the descriptions of the fields of a dataclass, or of the parameters of a function, in order. The help may
    be empty."""
    hints = get_type_hints(owner, include_extras=True)
    docs = field_docs(owner) if isinstance(owner, type) else {}
    found = []
    for name, parameter in inspect.signature(owner).parameters.items():
        for item in getattr(hints[name], "__metadata__", ()):
            if isinstance(item, FieldInfo):
                docs[name] = item.description or ""
        default = "" if parameter.default is parameter.empty else write_value(parameter.default)
        found.append(Setting(name, _type_text(hints[name]), default, docs.get(name, "")))
    return found


def list_annotations(kind: type, annotation: type) -> list[tuple[str, Any]]:
    """Return (field, item) of the annotations of this type in a dataclass, such as `Neutral`."""
    found = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for item in getattr(hint, "__metadata__", ()):
            if isinstance(item, annotation):
                found.append((name, item))
    return found


def field_docs(kind: type) -> dict[str, str]:
    """Return field -> the docstring under it in the source, on one line, including inherited fields. The text of a
    `Neutral` setting says that it is one."""
    docs = {}
    for parent in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(parent):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(parent))).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in itertools.pairwise(tree.body):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                docs[field.target.id] = " ".join(str(text.value.value).split())
    for name, _ in list_annotations(kind, Neutral):
        docs[name] = f"{docs.get(name, '')} Changing it runs no step again.".lstrip()
    return docs


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _split(text: str, annotation: Any) -> Any:
    """Convert the texts that pydantic cannot read: None and tuples."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        return _split(text, arguments[0])
    if origin in (Union, types.UnionType):
        if type(None) in arguments and text.lower() in ("none", "null", ""):
            return None
        return _split(text, next(argument for argument in arguments if argument is not type(None)))
    if origin is not tuple:
        return text
    bare = text.strip("()[] ")  # a text may begin or end with a bracket
    if bare and str in arguments:
        bare = text
    return tuple(item.strip() for item in bare.split(",") if item.strip())


def _check_finite(value: Any, where: str) -> None:
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, float) and not math.isfinite(item):
            raise RecipeError(f"{where}: {value!r} given; expected a finite number")


def _expected(error: Any) -> str:
    """Return what pydantic expected, as text after `expected`."""
    if error["type"] == "literal_error":
        choices = []
        for choice in error["ctx"]["expected"].replace(" or ", ", ").split(", "):
            choices.append(choice.strip("'"))
        return f"one of {', '.join(choices)}{suggest(str(error['input']), choices)}"
    if error["type"] == "missing":
        return "more items, separated by commas"
    for name, limit in error.get("ctx", {}).items():
        if name in SIGNS:
            return f"{SIGNS[name]} {limit:.12g}"
    return str(error["msg"]).partition(", ")[0].removeprefix("Input should be ")


def _type_text(annotation: Any) -> str:
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        parts = [_type_text(arguments[0])]
        for item in arguments[1:]:
            for name, sign in SIGNS.items():
                if getattr(item, name, None) is not None:
                    parts.append(f"{sign} {getattr(item, name):g}")
        parts += [f"({item.unit})" for item in arguments[1:] if isinstance(item, Unit)]
        return " ".join(parts)
    if origin in (Union, types.UnionType):
        return " | ".join(_type_text(argument) for argument in arguments)
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin is tuple:
        return ",".join(
            "..." if argument is Ellipsis else _type_text(argument) for argument in arguments
        )
    if annotation is type(None):
        return "none"
    return getattr(annotation, "__name__", str(annotation))


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
