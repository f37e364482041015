"""Append-only files of JSON lines, written by several processes, any of which may be killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def append(path: Path, line: str, *, durable: bool = False) -> None:
    """Append a line in one write, so that lines of two writers never mix.

    durable: sync the file. Without, a power loss may cut off its end. A line that was cut off before is ended first.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        cut_off = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, ("\n" * cut_off + line + "\n").encode())
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if durable and size == 0:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read(path: Path) -> list[dict[str, Any]]:
    """Read all complete lines; empty if there is no file. A line cut off by a kill is skipped."""
    try:
        texts = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for text in texts:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            found.append(line)
    return found
