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


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        # A footer whose row group has no rows.
        ("countdown_parquet", [(13, 50580, 32687)]),
        # An empty text in the place of a list.
        ("papers", [(6, 6718, 43127), (2, 37279, 62401), (11, 54882, 59707), (6, 61316, 64767)]),
    ],
)
def test_what_was_accepted_once_is_refused(name: str, changes: list[Mutation]) -> None:
    assert not check_reader(FORMATS[name], 0, changes)
