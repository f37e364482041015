"""prepare_query_generation: make prompts for `generate` that ask for a query for each document.

A prompt begins with examples, pairs of a document and a training query, so that a model writes similar queries
without being trained for it (InPars, Bonifacio et al. 2022; Promptagator, Dai et al. 2023).
"""

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from ratchet.errors import InputError
from ratchet.jobs.answers.chat_options import CHAT_FILE, describe_chat
from ratchet.models.embedder.encoding_config import check_template
from ratchet.orchestrator.job_interface import (
    Context,
    Fraction,
    Job,
    NonNegativeInt,
    Parents,
    PositiveInt,
    Result,
    Seed,
    Unit,
)

SHARD_ROWS = 128
"""Prompts per shard, the unit of generation, which is repeated if it was not finished by a killed run."""


@dataclass(frozen=True)
class Config:
    documents: Literal["unlabelled", "all"] = "unlabelled"
    """`unlabelled`: documents that are not a positive of any training query. `all`: all documents of the corpus."""
    max_documents: Annotated[PositiveInt, Unit("documents")] | None = None
    """Maximum number of these documents, drawn at random. None: all."""
    num_examples: NonNegativeInt = 3
    """Number of examples (a document and one of its training queries) in a prompt. All prompts have the same examples,
    except that a document's own query is left out."""
    prompt_template: str | None = None
    """Template of prompts, with `{document}`, and with `{examples}` if num_examples > 0; `\\n` is a line break. None:
    the template of the task `query-generation`."""
    multi_hop: Fraction = 0.0
    """For this fraction of the chunks of documents (`chunk_documents`), ask also for a question that needs another
    chunk of the same document for its answer."""
    max_characters: Annotated[PositiveInt, Unit("characters")] = 2000
    """Maximum length of a document in a prompt. Longer documents are truncated."""
    stop: tuple[str, ...] = ()
    """Additional stop strings: an answer also ends after any of them. `\\n` is a line break."""
    chat_template_kwargs: tuple[str, ...] = ()
    """Arguments of the generator's chat template, such as `enable_thinking=false`."""
    seed: Seed = 42
    """Seed of the examples and the subset."""


@dataclass(frozen=True)
class Inputs:
    corpus: Path
    """Shards of documents."""
    train: Path | None = None
    """Shards of training queries with their positives. None: there are none, and prompts have no examples."""


def find_template(config: Config) -> str:
    """Return the prompt template. Raises ModelError for a template without its placeholders."""
    from ratchet.data.tasks.query_generation import PROMPT

    if config.prompt_template is None:
        template = PROMPT
    else:
        template = config.prompt_template.replace("\\n", "\n")
    needed: tuple[str, ...] = ("document",)
    if config.num_examples:
        needed = ("document", "examples")
    check_template(
        "prepare_query_generation.prompt_template",
        template,
        needed,
        ("examples",)[: 2 - len(needed)],
    )
    return template


def find_chat(config: Config) -> dict[str, str]:
    """Return the metric `chat`; see `describe_chat`."""
    return describe_chat(
        config, [text.replace("\\n", "\n") for text in config.stop], "prepare_query_generation"
    )


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    from ratchet.data.tasks.query_generation import NAME

    find_template(config)
    known = parents.get("corpus", Result()).metrics
    counts: dict[str, int | str] = {"task": NAME, **find_chat(config)}
    if config.documents == "all" and "documents" in known:
        documents = min(int(known["documents"]), config.max_documents or int(known["documents"]))
        counts["prompts"] = documents + round(config.multi_hop * documents)
        counts["prompt_characters"] = int(known.get("characters", config.max_characters))
    return Result(counts)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.data.tables import Texts, read_shards, write_shards
    from ratchet.data.tasks.query_generation import NAME, PROMPT_OF_TWO, SEPARATOR, make_prompt
    from ratchet.data.tasks.task import SAMPLES, Sample, sample_to_row, write_task_name

    text_of = Texts(read_shards(inputs.corpus))
    template = find_template(config)
    train = []
    if inputs.train is not None:
        train = read_shards(inputs.train, ["id", "text", "positives"]).to_pylist()
    labelled = {name for query in train for name in query["positives"]}
    wanted = [name for name in text_of if config.documents == "all" or name not in labelled]
    if not wanted:
        raise InputError(
            f"prepare_query_generation.documents: {config.documents} given, and all {len(text_of)} documents have a"
            " training query; expected some without one; set prepare_query_generation.documents=all"
        )
    if config.max_documents is not None and len(wanted) > config.max_documents:
        kept = set(
            sorted(wanted, key=lambda name: _draw(config.seed, name))[: config.max_documents]
        )
        wanted = [name for name in wanted if name in kept]
    examples = _draw_examples(train, config)
    answers: dict[str, set[str]] = {query: set() for _, query in examples}
    for row in train:
        if row["text"] in answers:
            answers[row["text"]].update(row["positives"])
    rows = []
    for name in wanted:
        shown = []
        for other, query in examples:
            if name not in answers[query]:
                shown.append((text_of[other][: config.max_characters], query))
        text = text_of[name]
        turn = make_prompt(template, text[: config.max_characters], shown), ""
        gold = {"document": text, "positives": [name]}
        rows.append(sample_to_row(Sample(name, name, "", (turn,), gold)))
    for name, other in _draw_pairs(wanted, config):
        half = config.max_characters // 2
        both = text_of[name][:half] + SEPARATOR + text_of[other][:half]
        gold = {"document": both, "positives": [name, other]}
        turn = make_prompt(PROMPT_OF_TWO, both), ""
        rows.append(sample_to_row(Sample(f"{name}+{other}", name, "", (turn,), gold)))
    write_shards(context.out, rows, SAMPLES, SHARD_ROWS)
    write_task_name(context.out, NAME)
    chat = find_chat(config)
    if chat:
        (context.out / CHAT_FILE).write_text(chat["chat"] + "\n")
    counts = {
        "documents": len(text_of),
        "unlabelled": len(text_of.keys() - labelled),
        "prompts": len(rows),
        "examples": len(examples),
    }
    return Result({"task": NAME, **counts, **chat})


def _draw(seed: int, name: str) -> bytes:
    """Return a random sort key that depends on the name only, so that a changed corpus changes few prompts."""
    return hashlib.sha256(f"{seed}/{name}".encode()).digest()


def _draw_pairs(names: list[str], config: Config) -> list[tuple[str, str]]:
    """Draw pairs of a chunk and another one of the same document. The id of a chunk is `document#number`."""
    chunks: dict[str, list[str]] = {}
    for name in names:
        chunks.setdefault(name.rpartition("#")[0] or name, []).append(name)
    pairs = []
    for own in chunks.values():
        order = sorted(own, key=lambda name: _draw(config.seed, name))
        pairs += list(pairwise(order))
    pairs.sort(key=lambda pair: _draw(config.seed, pair[0]))
    return pairs[: round(config.multi_hop * len(names))]


def _draw_examples(train: list[dict[str, Any]], config: Config) -> list[tuple[str, str]]:
    """Draw pairs (document, text of one of its queries) from different documents."""
    drawn: dict[str, str] = {}
    for query in sorted(train, key=lambda query: _draw(config.seed, query["id"])):
        if len(drawn) == config.num_examples:
            break
        if query["positives"]:
            drawn.setdefault(query["positives"][0], query["text"])
    return list(drawn.items())


JOB = Job(
    "prepare_query_generation",
    Config,
    Inputs,
    run,
    resources=("retries",),
    check=check,
    metrics=("task", "documents", "unlabelled", "prompts", "examples", "chat", "prompt_characters"),
)
