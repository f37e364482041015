"""Files of JSON lines that are only ever appended to, by several processes at once, any of which may be killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def append(path: Path, text: str) -> None:
    """In one write, so that lines of two writers never mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def whole(path: Path) -> list[dict[str, Any]]:
    """All whole lines; one that was torn by a kill is left out. Empty if there is no file."""
    try:
        texts = path.read_text().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for text in texts:
        try:
            found.append(json.loads(text))
        except ValueError:
            continue
    return found
