"""prepare_query_generation: make prompts for `generate` that ask for a query for each document.

A prompt begins with examples, pairs of a document and a training query, so that a model writes similar queries
without being trained for it (InPars, Bonifacio et al. 2022; Promptagator, Dai et al. 2023).
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
    """`unlabelled`: documents that are not a positive of any training query. `all`: all documents of the corpus."""
    max_documents: Annotated[int, Ge(1), Unit("documents")] | None = None
    """Maximum number of these documents, drawn at random. None: all."""
    num_examples: Annotated[int, Ge(0)] = 3
    """Number of examples (a document and one of its training queries) in a prompt. All prompts have the same examples,
    except that a document's own query is left out."""
    prompt_template: str | None = None
    """Template of prompts, with `{document}`, and with `{examples}` if num_examples > 0; `\\n` is a line break. None:
    the template of the task `query-generation`."""
    max_characters: Annotated[int, Ge(1), Unit("characters")] = 2000
    """Maximum length of a document in a prompt. Longer documents are truncated."""
    stop: tuple[str, ...] = ()
    """Additional stop strings: an answer also ends after any of them. `\\n` is a line break."""
    chat_template_kwargs: tuple[str, ...] = ()
    """Arguments of the generator's chat template, such as `enable_thinking=false`."""
    seed: Seed = 42
    """Seed of the examples and the subset."""
    shard_rows: Annotated[int, Ge(1), Unit("prompts")] = 128
    """Prompts per shard. A shard is the unit of generation, and is repeated if it was not finished by a killed run."""


@dataclass(frozen=True)
class Inputs:
    corpus: Path
    """Shards of documents."""
    train: Path
    """Shards of training queries with their positives."""


def find_template(config: Config) -> str:
    """Return the prompt template. Raises ModelError for a template without its placeholders."""
    from ratchet.data.tasks.query_generation import PROMPT

    template = PROMPT if config.prompt_template is None else config.prompt_template.replace("\\n", "\n")
    needed = ("document", "examples") if config.num_examples else ("document",)
    check_template("prepare_query_generation.prompt_template", template, needed, ("examples",)[: 2 - len(needed)])
    return template


def find_chat(config: Config) -> dict[str, str]:
    """Return the metric `chat`; see `describe_chat`."""
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
