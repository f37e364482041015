"""Step ids under every mutation of a recipe's source code."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutations import mutate_copy

pytestmark = pytest.mark.timeout(3600)


@pytest.mark.parametrize("recipe", ["quickstart", "countdown"])
def test_source_mutations_change_identities(tmp_path: Path, recipe: str) -> None:
    """Takes ten minutes: some thousand mutations, each followed by the identities of all steps that import the file."""
    found = mutate_copy(tmp_path, recipe)
    assert min(found["count"].values()) > 50
    assert sum(found["count"].values()) > 2000
    assert not found["wrong"]
