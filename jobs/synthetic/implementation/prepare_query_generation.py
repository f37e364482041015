"""Implementation of `prepare_query_generation`: writes prompts for documents as samples."""

from __future__ import annotations

import hashlib
from typing import Any

from ratchet.data.tables import Texts, read_shards, write_shards
from ratchet.data.tasks.query_generation import NAME, make_prompt
from ratchet.data.tasks.task import SAMPLES, Sample, sample_to_row, write_task_name
from ratchet.errors import InputError
from ratchet.jobs.answers.chat_options import CHAT_FILE
from ratchet.jobs.synthetic.prepare_query_generation import Config, Inputs, find_chat, find_template
from ratchet.orchestrator.job_interface import Context, Result


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    text_of, template = Texts(read_shards(inputs.corpus)), find_template(config)
    train = read_shards(inputs.train, ["id", "text", "positives"]).to_pylist()
    labelled = {name for query in train for name in query["positives"]}
    if not (wanted := [name for name in text_of if config.documents == "all" or name not in labelled]):
        raise InputError(
            f"prepare_query_generation.documents: {config.documents} given, and all {len(text_of)} documents have a"
            " training query; expected some without one; set prepare_query_generation.documents=all"
        )
    if config.max_documents is not None and len(wanted) > config.max_documents:
        kept = set(sorted(wanted, key=lambda name: _draw(config.seed, name))[: config.max_documents])
        wanted = [name for name in wanted if name in kept]
    examples = _draw_examples(train, config)
    known = [(text_of[other][: config.max_characters], query) for other, query in examples]
    answers = [{name for row in train if row["text"] == query for name in row["positives"]} for _, query in examples]

    def make_row(name: str) -> dict[str, Any]:
        shown, text = [pair for pair, own in zip(known, answers, strict=True) if name not in own], text_of[name]
        turn = make_prompt(template, text[: config.max_characters], shown), ""
        return sample_to_row(Sample(name, name, "", (turn,), {"document": text}))

    write_shards(context.out, map(make_row, wanted), SAMPLES, config.shard_rows)
    write_task_name(context.out, NAME)
    if chat := find_chat(config):
        (context.out / CHAT_FILE).write_text(chat["chat"] + "\n")
    unlabelled = len(text_of.keys() - labelled)
    counts = {"documents": len(text_of), "unlabelled": unlabelled, "prompts": len(wanted), "examples": len(examples)}
    column = [{"text": make_row(wanted[0])["questions"][0], "good": False}]
    return Result(
        {"task": NAME, **counts, **chat},
        cases={"prompts": [{"title": f"document {wanted[0]}", "columns": {"prompt": column}}]},
    )


def _draw(seed: int, name: str) -> bytes:
    """Return a random sort key that depends on the name only, so that a changed corpus changes few prompts."""
    return hashlib.sha256(f"{seed}/{name}".encode()).digest()


def _draw_examples(train: list[dict[str, Any]], config: Config) -> list[tuple[str, str]]:
    """Draw pairs (document, text of one of its queries) from different documents."""
    drawn: dict[str, str] = {}
    for query in sorted(train, key=lambda query: _draw(config.seed, query["id"])):
        if len(drawn) == config.num_examples:
            break
        if query["positives"]:
            drawn.setdefault(query["positives"][0], query["text"])
    return list(drawn.items())
