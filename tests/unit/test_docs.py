"""The documents: the page of settings can be written, and the settings that documents name exist."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest

from docs.write_settings import write_reference
from ratchet.models.embedder.encoding_config import EncodingConfig
from ratchet.models.reranker.reranker_config import RerankerConfig
from ratchet.orchestrator.job_interface import Resources
from ratchet.orchestrator.job_interface.code import read_code
from ratchet.orchestrator.recipe import names as recipe_names
from ratchet.orchestrator.recipe.single_job import list_jobs, load_job
from ratchet.public_names import PLACES

ROOT = Path(__file__).resolve().parents[2]
DECLARATIONS = list_jobs()
CONFIGS = {"encoding_config": EncodingConfig, "reranker_config": RerankerConfig}
FILES = (
    "py",
    "csv",
    "tsv",
    "txt",
    "json",
    "jsonl",
    "parquet",
    "html",
    "yaml",
    "md",
    "trec",
    "sbatch",
)


def named_settings(text: str) -> set[tuple[str, str]]:
    """(owner, name) of every `owner.name`, `owner.name=value` and `--set owner.name=value`."""
    found = re.findall(r"(?:`|--set '?(?:iter\S*/)?)([a-z_]+)\.([a-z_]+)(?=[`=])", text)
    return {(owner, name) for owner, name in found if name not in FILES}


READERS = ("ratchet/jobs/", "ratchet/models/", "ratchet/data/")
PLANNING = ("check", "predict", "estimate_needs", "list_metrics")
DECLARING = ("ratchet/jobs/training/config.py", "ratchet/jobs/needs.py")

DOCUMENTS = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.stem != "adding-a-job"),
]
NAMED = sorted({pair for path in DOCUMENTS for pair in named_settings(path.read_text())})


def test_the_reference_has_every_job() -> None:
    written = write_reference()
    assert [name for name in DECLARATIONS if f"\n## {name}\n" not in written] == []


@pytest.mark.parametrize(("owner", "name"), NAMED)
def test_settings_that_documents_name_exist(owner: str, name: str) -> None:
    if owner in ("choose_embedder", "choose_reranker"):  # steps, whose settings are set one by one
        owner = "choose_checkpoint"
    if owner == "ratchet":
        assert name in {one for names in PLACES.values() for one in names}
        return
    if owner in recipe_names() and owner not in DECLARATIONS:
        function = getattr(importlib.import_module(f"ratchet.recipes.{owner}"), owner)
        assert name in inspect.signature(function).parameters
        return
    if owner in CONFIGS:
        kinds: list[type] = [CONFIGS[owner]]
    else:
        assert owner in DECLARATIONS
        job = load_job(DECLARATIONS[owner])
        kinds = [job.config, job.inputs, Resources]
    assert name in {field.name for kind in kinds for field in dataclasses.fields(kind)}


def test_documents_name_settings() -> None:
    assert len(NAMED) > 50


def list_properties(body: list[ast.stmt]) -> list[ast.stmt]:
    """The properties of classes, which the work reads in place of settings."""
    inside = [one for kind in body if isinstance(kind, ast.ClassDef) for one in kind.body]
    return [one for one in inside if isinstance(one, ast.FunctionDef) and one.decorator_list]


@pytest.mark.slow
@pytest.mark.parametrize("verb", DECLARATIONS)
def test_every_setting_and_resource_is_read_by_the_work(verb: str) -> None:
    """A setting that only its declaration and its check know does nothing. `placement` reads the resources that every
    map and training has."""
    job = load_job(DECLARATIONS[verb])
    declared = f"{DECLARATIONS[verb].replace('.', '/')}.py"
    read: set[str] = set()
    for name, path in read_code(job).files.items():
        if name.startswith(READERS):
            body = ast.parse(path.read_bytes()).body
            if name in DECLARING:
                body = list_properties(body)
            if name == declared:
                body = [
                    one
                    for one in body
                    if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name not in PLANNING
                ]
            nodes = (node for statement in body for node in ast.walk(statement))
            read |= {
                node.attr
                for node in nodes
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
            }
    settings = {field.name for field in dataclasses.fields(job.config)}
    everywhere = {
        "workers",
        "min_workers",
        "cpus",
        "gpus",
        "memory",
        "accelerator",
        "labels",
        "retries",
    }
    resources = (
        {field.name for field in dataclasses.fields(Resources)}
        if job.resources is None
        else {*job.resources}
    )
    assert not (settings | (resources - everywhere)) - read, "accepted, and without effect"
