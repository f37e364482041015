"""The names in the documents exist."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMES = sorted(set(re.findall(r"`([a-z_]+)\.([a-z_]+)`", (ROOT / "docs/flagembedding.md").read_text())))
JOBS = {path.stem for path in (ROOT / "jobs").glob("*.py")}


def known(owner: str) -> set[str]:
    from jobs.job import Resources
    from models.contract import Contract
    from models.pairs import PairContract

    if owner == "contract":
        kinds: list[type] = [Contract, PairContract]
    elif owner == "misconceptions":
        return set(inspect.signature(importlib.import_module("recipes.misconceptions").misconceptions).parameters)
    else:
        job = importlib.import_module(f"jobs.{owner}").JOB
        kinds = [job.config, job.inputs, Resources]
    return {field.name for kind in kinds for field in dataclasses.fields(kind)}


@pytest.mark.parametrize(("owner", "name"), [(o, n) for o, n in NAMES if n not in ("py", "json", "jsonl")])
def test_what_the_table_for_flag_embeddings_users_names_is_there(owner: str, name: str) -> None:
    assert owner in {"contract", "misconceptions", *JOBS}
    assert name in known(owner)
