"""Readers of user files on 100,000 damaged files of each format, or as many as FUZZED_FILES says.

A format takes minutes: each file is written, read and, if accepted, read by another reader too. The changes are drawn
by seed and not by Hypothesis, which takes ten times as long as the reader. A failure names its seed.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from fuzzed_files import FORMATS, check_reader

pytestmark = pytest.mark.timeout(3600)

COUNT = int(os.environ.get("FUZZED_FILES", "100000"))


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_is_read_or_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    accepted: Counter[bool] = Counter()
    for seed in range(COUNT):
        draw = random.Random(seed)
        changes = [
            (draw.randrange(14), draw.randrange(2**16), draw.randrange(2**16))
            for _ in range(draw.randint(1, 4))
        ]
        try:
            accepted[check_reader(FORMATS[name], draw.randrange(4), changes)] += 1
        except Exception as error:
            error.add_note(f"{name}, seed {seed}: {changes}")
            raise
    with capsys.disabled():
        print(f"\n{name}: {accepted[True]:,} files accepted, {accepted[False]:,} refused")
