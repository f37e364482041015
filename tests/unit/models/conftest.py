"""Fixtures for tests of models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import WORDS

from ratchet.models.model_files import MINILM, resolve


@pytest.fixture(scope="session")
def minilm() -> Path:
    return resolve(MINILM)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Return texts of many lengths, in no order."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 40, (50,), generator=generator).tolist()
    return [
        " ".join(WORDS[int(i)] for i in torch.randint(0, 40, (n,), generator=generator))
        for n in lengths
    ]
