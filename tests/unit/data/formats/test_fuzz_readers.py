"""Readers of user files on damaged files: rows, or an InputError that names the file. More in tests/soak."""

from __future__ import annotations

import pytest
from fuzzed_files import FORMATS, Mutation, check_reader, mutations
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", FORMATS)
def test_a_valid_file_is_accepted(name: str) -> None:
    assert check_reader(FORMATS[name], 0, [])


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=80, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(file=st.integers(0, 3), changes=mutations)
def test_a_damaged_file_is_read_or_named(name: str, file: int, changes: list[Mutation]) -> None:
    check_reader(FORMATS[name], file, changes)
