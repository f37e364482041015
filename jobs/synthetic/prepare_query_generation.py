"""prepare_query_generation: documents -> prompts that ask for a query of each, for `generate`.

Prompts begin with pairs of a document and a real training query, so that a model that was trained on nothing of the
kind writes queries like them (InPars, Bonifacio et al. 2022; Promptagator, Dai et al. 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from ratchet.jobs.answers.chat_options import describe_chat
from ratchet.models.embedder.encoding_config import check_template
from ratchet.orchestrator.job_interface import Job, Parents, Result, Seed, Unit


@dataclass(frozen=True)
class Config:
    documents: Literal["unlabelled", "all"] = "unlabelled"
    """`unlabelled`: the documents that are a positive of no training query. `all`: the whole corpus."""
    max_documents: Annotated[int, Ge(1), Unit("documents")] | None = None
    """Ask for queries of a random subset of at most this size. None: of all."""
    num_examples: Annotated[int, Ge(0)] = 3
    """Pairs of a document and a training query in front of each document, the same in all prompts. The document's own
    query is never one of them."""
    prompt_template: str | None = None
    """Template of prompts, with `{document}`, and `{examples}` where there are some; `\\n` is a line break. None: that
    of the task `query-generation`."""
    max_characters: Annotated[int, Ge(1), Unit("characters")] = 2000
    """Longer documents are truncated in the prompt."""
    stop: tuple[str, ...] = ()
    """Answers also end after any of these texts; `\\n` is a line break."""
    chat_template_kwargs: tuple[str, ...] = ()
    """Arguments of the models' chat templates, such as `enable_thinking=false`."""
    seed: Seed = 42
    """Seed of the examples and of the subset."""
    shard_rows: Annotated[int, Ge(1), Unit("prompts")] = 128
    """Prompts per shard, the unit of generation and of recovery after a kill."""


@dataclass(frozen=True)
class Inputs:
    corpus: Path
    """Shards of documents."""
    train: Path
    """Shards of training queries with their positives."""


def find_template(config: Config) -> str:
    """Return the template of prompts. Raises ModelError for one without its placeholders."""
    from ratchet.data.tasks.query_generation import PROMPT

    template = PROMPT if config.prompt_template is None else config.prompt_template.replace("\\n", "\n")
    needed = ("document", "examples") if config.num_examples else ("document",)
    check_template("prepare_query_generation.prompt_template", template, needed, ("examples",)[: 2 - len(needed)])
    return template


def find_chat(config: Config) -> dict[str, str]:
    """Return what `describe_chat` returns."""
    return describe_chat(config, [text.replace("\\n", "\n") for text in config.stop], "prepare_query_generation")


def predict(config: Config, inputs: Inputs, parents: Parents) -> Result:
    from ratchet.data.tasks.query_generation import NAME

    find_template(config)
    return Result({"task": NAME, **find_chat(config)})


JOB = Job(
    "prepare_query_generation",
    config=Config,
    inputs=Inputs,
    resources=("retries",),
    predict=predict,
    metrics=lambda config: ("task", "documents", "unlabelled", "prompts", "examples", "chat"),
)
