"""Canonical JSON for fingerprints: equal values have equal bytes. Values without a stable form raise an error."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from ratchet.errors import CanonicalError

DEEPEST = 100
"""Maximum levels of nesting. Libraries that read the JSON later fail at a few hundred levels."""


def canonical_json(value: Any, where: str = "value") -> bytes:
    """Encode a value as UTF-8 JSON: sorted keys, no spaces, floats in their shortest exact form (1.0 differs from 1).

    Accepts None, bool, int, finite float, str, list, tuple, dict with str keys, and dataclasses of these. Raises
    CanonicalError, naming the position in the value, for other values and for more than 100 levels of nesting.
    """
    text = json.dumps(
        _plain(value, where),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise CanonicalError(
            f"{where}: a text that is not valid Unicode given; expected text that UTF-8 can hold"
        ) from None


def digest(value: Any) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    if depth > DEEPEST:
        raise CanonicalError(
            f"{where[:80]}...: more than {DEEPEST} levels of nesting given; expected plain tables; flatten it"
        )
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        if not math.isfinite(value):
            raise CanonicalError(f"{where}: {value} given; expected a finite number")
        return value
    if isinstance(value, list | tuple):
        found = []
        for index, item in enumerate(value):
            found.append(_plain(item, f"{where}[{index}]", depth + 1))
        return found
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        for key in value:
            if type(key) is not str:
                raise CanonicalError(
                    f"{where}: key of type {type(key).__name__} given; expected text"
                )
        return {key: _plain(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    raise CanonicalError(
        f"{where}: {type(value).__name__} given; it has no stable form; expected numbers, text, lists or dicts of them"
    )
