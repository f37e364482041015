"""Papers: the other statements of a paper, and settings that cannot work."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from ratchet.data.formats.papers import number_papers, other_statements
from ratchet.errors import InputError
from ratchet.jobs.statements.evaluate_papers import Config
from ratchet.orchestrator.job_interface.settings import validate


def test_others_are_the_rest_of_the_paper() -> None:
    paper_S = number_papers(pa.table({"paper": ["a", "a", "a", "b", "c", "c"]}))
    ends, rows = other_statements(paper_S, np.array([0, 1, 3, 5]))
    assert [rows[a:b].tolist() for a, b in itertools.pairwise(ends)] == [[1, 2], [0, 2], [], [4]]


def test_wrong_settings_are_named() -> None:
    with pytest.raises(InputError, match=r"evaluate_papers\.k"):
        validate(Config, {"k": ()}, "evaluate_papers")
    with pytest.raises(InputError, match="max_queries: 0 given"):
        validate(Config, {"max_queries": 0}, "evaluate_papers")
