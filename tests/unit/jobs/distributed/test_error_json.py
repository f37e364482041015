"""Errors as JSON: class and message are kept, and untrusted JSON cannot run code."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import torch

from ratchet.errors import InputError, JobError, UnreachableError
from ratchet.jobs.distributed.error_json import error_from_json, error_to_json


@pytest.mark.parametrize(
    "error",
    [
        InputError("train.csv:7: no answer; expected A to D; mend the line"),
        UnreachableError("bucket: no answer"),
        ValueError("ungültig \ud800"),
        KeyError("column"),
        ZeroDivisionError(),
        OSError(errno.ENOSPC, "No space left on device", "/store/x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_python_and_ratchet_arrive_as_they_were(error: Exception) -> None:
    found = error_from_json(error_to_json(error))
    assert (type(found), found.args, str(found)) == (type(error), error.args, str(error))


class Strange(Exception):
    def __init__(self, one: str, two: Path) -> None:
        super().__init__(one, two)


@pytest.mark.parametrize(
    "error",
    [Strange("a", Path("b")), ValueError(Path("b")), torch.OutOfMemoryError("CUDA out of memory")],
)
def test_any_other_error_arrives_with_its_name_and_text(error: Exception) -> None:
    found = error_from_json(error_to_json(error))
    assert type(found) is JobError
    assert str(found) == f"{type(error).__name__}: {error}"


def test_the_traceback_comes_along() -> None:
    try:
        int("x")
    except ValueError as error:
        text = error_to_json(error)
    assert 'int("x")' in error_from_json(text).remote_traceback  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["eval", "print", "SystemExit", "DISK_FULL", "describe", ""])
def test_only_errors_are_constructed(name: str) -> None:
    found = error_from_json(json.dumps({"class": name, "arguments": ["1"], "traceback": ""}))
    assert type(found) is JobError
