"""Append-only files of JSON lines, written by several processes, any of which may be killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def append(path: Path, text: str) -> None:
    """Append text in one write, so that lines of two writers never mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def read(path: Path) -> list[dict[str, Any]]:
    """Read all complete lines; empty if there is no file. A line cut off by a kill is skipped."""
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
