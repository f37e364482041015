"""A recipe of one step that reads data, for mistakes in files. It needs no model."""

from __future__ import annotations

from typing import Any, Literal

from ratchet.jobs.answers import prepare_tasks
from ratchet.jobs.retrieval import prepare
from ratchet.jobs.retrieval.datasets import find_datasets
from ratchet.jobs.statements import prepare_papers
from ratchet.orchestrator.step import Source, Summary, step

COMMAND = f"plan {__file__} --set kind="


def read_data(
    *,
    data: str,
    kind: Literal["retrieval", "papers", "gsm8k", "squad-batch", "countdown", "chat"],
    test: str = "",
    verifier_file: str = "",
) -> Summary:
    """Read data of a kind."""
    if kind == "retrieval":
        return Summary([], goals=[step("prepare", prepare.JOB, **find_datasets(data, test=test))])
    source = Source.find(data)
    if kind == "papers":
        made = step("prepare", prepare_papers.JOB, papers=source)
    else:
        inputs: dict[str, Any] = {
            "data": source,
            "test": Source.find(test, "test") if test else None,
        }
        if verifier_file:
            inputs |= {"verifier": "verify", "verifier_file": Source.find(verifier_file)}
        made = step("prepare", prepare_tasks.JOB, task=kind, **inputs)
    return Summary([], goals=[made])
