"""Texts into typed values: what `--set name=value` means for a field of a dataclass."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import itertools
import textwrap
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def parse(text: str, annotation: Any) -> Any:
    """The value that `text` stands for in a field annotated `annotation`.

    Knows int, float, bool, str, None, unions and tuples of them, and Literal. Raises ValueError that says what was
    expected.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _union(text, arguments)
    if origin is Literal:
        if text in arguments:
            return text
        raise ValueError(f"'{text}' given; expected one of {', '.join(map(str, arguments))}{nearest(text, arguments)}")
    if origin is tuple:
        return _tuple(text, arguments)
    if annotation is bool:
        if text.lower() in WORDS:
            return WORDS[text.lower()]
        raise ValueError(f"'{text}' given; expected true or false")
    if annotation in (int, float):
        return _number(text, annotation)
    if annotation is str:
        return text
    raise TypeError(f"fields annotated {annotation} cannot be set from text")


def coerce(config: type, values: Mapping[str, Any]) -> Any:
    """An instance of the dataclass `config`; texts are parsed, other values are taken as they are.

    Raises ValueError for an unknown name (with the nearest one), a missing or a wrong value.
    """
    hints = get_type_hints(config)
    known = [field.name for field in fields(config)]
    for name in values:
        if name not in known:
            raise ValueError(f"'{name}' given; expected one of {', '.join(known)}{nearest(name, known)}")
    parsed = {}
    for name, value in values.items():
        try:
            parsed[name] = parse(value, hints[name]) if isinstance(value, str) else value
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    for field in fields(config):
        if field.name not in parsed and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{field.name}: not given; expected a value; it has no default")
    return config(**parsed)


def nearest(given: str, known: Any) -> str:
    """'; did you mean X?' for the nearest known name, or nothing."""
    near = difflib.get_close_matches(given, [str(name) for name in known], n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""


def _union(text: str, arguments: tuple[Any, ...]) -> Any:
    if type(None) in arguments and text.lower() in ("none", "null", ""):
        return None
    for argument in sorted((a for a in arguments if a is not type(None)), key=lambda a: a is str):
        try:
            return parse(text, argument)
        except ValueError as error:
            reason = error
    raise reason


def _tuple(text: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    items = [item.strip() for item in text.strip("()[] ").split(",") if item.strip()]
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(parse(item, arguments[0]) for item in items)
    if len(items) != len(arguments):
        raise ValueError(f"'{text}' given; expected {len(arguments)} values separated by commas")
    return tuple(parse(item, argument) for item, argument in zip(items, arguments, strict=True))


def _number(text: str, kind: type) -> Any:
    word = "a whole number" if kind is int else "a number"
    try:
        value = kind(text.replace("_", ""))
    except ValueError:
        raise ValueError(f"'{text}' given; expected {word}") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"'{text}' given; expected {word} that is finite")
    return value


def field_docs(kind: type) -> dict[str, str]:
    """Field -> the text under it in the class's source, on one line; of inherited fields too."""
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
