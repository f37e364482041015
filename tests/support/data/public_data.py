"""Public data sets that some tests read: the folders `countdown`, `eedi`, `gsm8k`, `squad` and `stacks` in the folder
`RATCHET_TEST_DATA`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("RATCHET_TEST_DATA") or "RATCHET_TEST_DATA is not set")

needs_public_data = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="RATCHET_TEST_DATA names no folder of data sets"
)
