"""Settings: the fields of `Config` and `Resources`. Conversion from text, validation and help.

A setting is defined once, at its field: type and bounds in the annotation, then the default, and the help below.

    max_length: Annotated[int, Ge(4), Unit("tokens")] | None = None
    \"\"\"Longer texts are truncated. None: the limit of the encoding config.\"\"\"

Bounds are from the package `annotated-types` (`Ge`, `Gt`, `Le`, `Lt`, `Interval`); pydantic checks them.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import math
import textwrap
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Interval
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from ratchet.errors import InputError, RecipeError


@dataclass(frozen=True)
class Unit:
    """The unit of a setting, for the help: `Annotated[float, Gt(0), Unit("seconds")]`."""

    name: str


PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Tokens = Annotated[int, Ge(1), Unit("tokens")]
Seed = Annotated[int, Interval(ge=0, lt=2**32)]
"""A random seed that all libraries accept: at least 0, below 2**32."""

SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
"""Name of a bound in annotated-types and pydantic -> its sign."""


@dataclass(frozen=True)
class Setting:
    """The description of a field of a config, for help texts."""

    name: str
    type: str
    """The type with bounds and unit, such as `int >= 1 (tokens)` or `cosine | linear | constant`."""
    default: str
    """The default as text, as after `--set name=`. Empty: a value is required, or the default is an empty text."""
    help: str


def validate(kind: type, values: Mapping[str, Any], where: str = "") -> Any:
    """Create an instance of the dataclass `kind` from values that have the types of its fields.

    Raises InputError, with `where.` before the name of the setting, for an unknown name (with the nearest known name),
    a missing value, and a value of the wrong type or out of bounds.
    """
    prefix = f"{where}." if where else ""
    known = []
    for field in dataclasses.fields(kind):
        known.append(field.name)
    for name in values:
        if name not in known:
            raise InputError(f"{prefix}{name}: unknown setting; {expect_one_of(known, name)}")
    try:
        made = _adapter(kind).validate_python(dict(values))
    except ValidationError as error:
        raise _input_error(error, values, prefix) from None
    hints = get_type_hints(kind, include_extras=True)
    for name in values:
        if isinstance(values[name], bool) and not isinstance(getattr(made, name), bool):
            raise InputError(
                f"{prefix}{name}: {values[name]} given; expected {_type_text(hints[name])}"
            )
        _check_finite(getattr(made, name), f"{prefix}{name}", InputError)
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
    _check_finite(value, where, RecipeError)
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
    found: list[str] = []
    for name, value in values.items():
        found.append(f"{name}={write_value(value)}")
    return found


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
    found: list[Setting] = []
    for name, parameter in inspect.signature(owner).parameters.items():
        for item in getattr(hints[name], "__metadata__", ()):
            if isinstance(item, FieldInfo):
                docs[name] = item.description or ""
        default = "" if parameter.default is parameter.empty else write_value(parameter.default)
        found.append(Setting(name, _type_text(hints[name]), default, docs.get(name, "")))
    return found


def field_docs(kind: type) -> dict[str, str]:
    """Return field -> the docstring under it in the source, on one line, including inherited fields."""
    docs: dict[str, str] = {}
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
    return docs


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _split(text: str, annotation: Any) -> Any:
    """Convert the texts that pydantic cannot read: None, tuples, and numbers with `_`."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        return _split(text, arguments[0])
    if origin in (Union, types.UnionType):
        if type(None) in arguments and text.lower() in ("none", "null", ""):
            return None
        return _split(text, next(argument for argument in arguments if argument is not type(None)))
    if origin is tuple:
        bare = text.strip("()[] ")  # a text may begin or end with a bracket
        items = []
        for item in (text if bare and str in arguments else bare).split(","):
            if item.strip():
                items.append(item.strip())
        if arguments[-1] is Ellipsis:
            kinds = tuple(arguments[0] for _ in items)
        else:
            kinds = (*arguments, *(str for _ in items))
        return tuple(_split(item, kind) for item, kind in zip(items, kinds, strict=False))
    if annotation in (int, float):
        return text.replace("_", "")
    return text


def _input_error(error: ValidationError, values: Mapping[str, Any], prefix: str) -> InputError:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    if first["type"] == "missing":
        return InputError(f"{prefix}{name}: not given; expected a value, since it has no default")
    return InputError(f"{prefix}{name}: {values[name]!r} given; expected {_expected(first)}")


def _check_finite(value: Any, where: str, error: type[InputError]) -> None:
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, float) and not math.isfinite(item):
            raise error(f"{where}: {value!r} given; expected a finite number")


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
        parts += [f"({item.name})" for item in arguments[1:] if isinstance(item, Unit)]
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
