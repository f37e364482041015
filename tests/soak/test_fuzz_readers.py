"""Readers of user files on 100,000 damaged files of each format, or as many as FUZZED_FILES says.

It takes minutes per format, since each file is written, read, and, if accepted, read by another reader too.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from fuzzed_files import FORMATS, Mutation, check_reader, mutations
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

COUNT = int(os.environ.get("FUZZED_FILES", "100000"))


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_is_read_or_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    accepted: Counter[bool] = Counter()

    @settings(max_examples=COUNT, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(file=st.integers(0, 3), changes=mutations)
    def check(file: int, changes: list[Mutation]) -> None:
        accepted[check_reader(FORMATS[name], file, changes)] += 1

    try:
        check()
    finally:
        with capsys.disabled():
            print(f"\n{name}: {accepted[True]:,} files accepted, {accepted[False]:,} refused")
