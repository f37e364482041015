"""Settings and libraries that count only where they affect the result."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from ratchet.extras import MATH_LIBRARIES
from ratchet.orchestrator.canonical_json import digest
from ratchet.orchestrator.fingerprint import build_fingerprint
from ratchet.orchestrator.job_interface import Job, Neutral, Uses, code
from ratchet.orchestrator.job_interface.settings import describe_settings, list_annotations
from ratchet.orchestrator.recipe import single_job

TRAINING = ["gradient_checkpointing", "offload", "save_steps", "zero_stage"]
NEUTRAL = {
    "distill": ["gradient_checkpointing", "save_steps"],
    "embed_api": ["concurrency", "key_variable", "timeout"],
    "generate_api": ["concurrency", "key_variable", "price", "timeout"],
    "finetune_embedder": TRAINING,
    "finetune_embedder_pairs": TRAINING,
    "finetune_reranker": TRAINING,
    "grpo": ["gradient_checkpointing", "save_steps"],
    "rerank_api": ["concurrency", "key_variable", "timeout"],
    "sft": TRAINING,
}
NF4 = [
    *("distill", "embed", "finetune_embedder"),
    *("finetune_embedder_pairs", "finetune_reranker", "generate", "grpo", "rerank", "sft"),
    "teacher_logprobs",
]


def list_jobs() -> dict[str, Job]:
    return {name: single_job.load_job(module) for name, module in single_job.list_jobs().items()}


@dataclass(frozen=True)
class Config:
    rows: int = 1
    threads: Annotated[int, Neutral()] = 1
    """Number of threads."""
    engine: Annotated[str, Uses("fast", ("measuring-tape",))] = "plain"


@dataclass(frozen=True)
class Inputs: ...


def run(context: Any, config: Config, inputs: Inputs) -> Any: ...


JOB = Job("toy", Config, Inputs, run)


def identify(config: Config) -> str:
    return digest(build_fingerprint(JOB, code.read_code(JOB), config, {}))


def test_neutral_settings_do_not_count() -> None:
    before = identify(Config())
    assert identify(Config(threads=2)) == before
    assert identify(Config(rows=2)) != before
    assert describe_settings(Config)[1].help == "Number of threads. Changing it runs no step again."


def test_libraries_count_for_the_values_that_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def install(version: str) -> tuple[str, str]:
        monkeypatch.setattr(
            importlib.metadata,
            "version",
            lambda name: version if name == "measuring-tape" else real(name),
        )
        return identify(Config()), identify(Config(engine="fast"))

    real = importlib.metadata.version
    one, two = install("1.0"), install("2.0")
    assert one[0] == two[0]
    assert len({one[0], one[1], two[1]}) == 3


def test_settings_of_the_jobs() -> None:
    jobs = list_jobs()
    neutral = {}
    libraries: dict[str, list[str]] = {}
    for name, job in jobs.items():
        found = sorted(field for field, _ in list_annotations(job.config, Neutral))
        if found:
            neutral[name] = found
        for field, uses in list_annotations(job.config, Uses):
            for library in uses.libraries:
                libraries.setdefault(f"{field}={uses.value}: {library}", []).append(name)
    assert neutral == NEUTRAL
    assert sorted(libraries.pop("quantization=nf4: bitsandbytes")) == NF4
    assert libraries.pop("engine=vllm: vllm") == ["generate"]
    assert libraries == {f"verifier=math: {one}": ["prepare_tasks"] for one in MATH_LIBRARIES}


@pytest.mark.slow
def test_an_extra_changes_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes ten seconds: the imports of all jobs are followed twice."""
    extras = (
        "bitsandbytes",
        "datasets",
        "latex2sympy2-extended",
        "math-verify",
        "sympy",
        "trl",
        "vllm",
    )
    real = importlib.metadata.distributions

    def read_all() -> dict[str, Any]:
        for cached in (code._distributions, code.follow_imports):
            cached.cache_clear()
        found = {name: code.read_code(job).libraries for name, job in list_jobs().items()}
        del found["distill"], found["grpo"]  # which are the extra itself
        return found

    try:
        with_extras = read_all()
        kept = [one for one in real() if one.name.lower().replace("_", "-") not in extras]
        monkeypatch.setattr(importlib.metadata, "distributions", lambda: kept)
        assert read_all() == with_extras
    finally:
        code._distributions.cache_clear()
        code.follow_imports.cache_clear()


def test_a_users_import_of_an_extra_counts() -> None:
    assert "math-verify" in code.read_script_libraries("import math_verify")
