"""clean_queries: convert the answers of `generate` into distinct queries, each with its document as the positive.

The answers are those to the prompts of `prepare_query_generation`. Only the first line of an answer is used. Empty
answers, copies of the document, and queries like a training query are left out. Of queries with nearly the same words
for chunks of one document, the first is kept, with all these chunks as positives. Of different documents, none is kept:
such a query says too little.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.errors import ArtifactError, InputError
from ratchet.orchestrator.job_interface import Context, Job, PositiveFraction, Result

SHARD_ROWS = 4096
Words = frozenset[str]


@dataclass(frozen=True)
class Config:
    near_duplicate: PositiveFraction = 0.8
    """Two queries for a document are duplicates if the words that both have are this part of the words that one of them
    has. 1: only with the same words."""


@dataclass(frozen=True)
class Inputs:
    completions: Path
    """The output of `generate`."""
    train: Path | None = None
    """Shards of training queries. Synthetic queries get their most frequent task and prompt."""


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import pyarrow.parquet as pq

    from ratchet.data.tables import QUERIES, add_carried, list_shards, write_shards
    from ratchet.data.tasks import query_generation
    from ratchet.data.tasks.task import CORRECT, read_task_name

    task = read_task_name(inputs.completions)
    if task != query_generation.NAME:
        raise InputError(
            f"clean_queries.completions: answers of task {task} given; expected {query_generation.NAME}; give the"
            " output of generate for samples of prepare_query_generation"
        )
    trained, common = _read_training_queries(inputs.train)
    counts = Counter(completions=0, empty=0, copies=0, duplicates=0, ambiguous=0)
    known: dict[str, list[tuple[Words, dict[str, Any]]]] = {}
    """Document -> words and row of each of its queries."""
    groups: dict[Words, set[str]] = {}
    """Words of a query -> the documents that have it."""
    for path in list_shards(inputs.completions):
        for row in pq.read_table(path, columns=["id", "gold", "answers"]).to_pylist():
            gold = json.loads(row["gold"])
            positives = gold["positives"]
            group = positives[0].rpartition("#")[0] or positives[0]
            own = known.setdefault(group, [])
            for number, answers in enumerate(row["answers"]):
                counts["completions"] += 1
                query = query_generation.clean_query(answers[0])
                label = query_generation.verify(gold, answers)[0].label
                words = _find_words(query)
                if label != CORRECT:
                    counts["copies" if label == "copy" else label] += 1
                    continue
                if words in trained:
                    counts["duplicates"] += 1
                    continue
                groups.setdefault(words, set()).add(group)
                same = _find_near(own, words, config.near_duplicate)
                if same is not None:
                    counts["duplicates"] += 1
                    same["positives"] += [
                        name for name in positives if name not in same["positives"]
                    ]
                    continue
                made = {"id": f"synthetic/{row['id']}/{number}", "text": query, "group": group}
                made |= {"positives": list(positives), "negatives": [], **common}
                own.append((words, made))
    rows = []
    for own in known.values():
        for words, made in own:
            if len(groups[words]) > 1:
                counts["ambiguous"] += 1
                continue
            rows.append({**made, "grades": [1] * len(made["positives"])})
    found = {**counts, "queries": len(rows)}
    if not rows:
        shown = ", ".join(f"{name} {number}" for name, number in found.items())
        raise ArtifactError(
            f"step {context.step}: no query is left ({shown}); expected at least one; use another generator, or another"
            " prepare_query_generation.prompt_template"
        )
    write_shards(context.out, rows, add_carried(QUERIES, ["group", *common]), SHARD_ROWS)
    return Result(found)


def _read_training_queries(train: Path | None) -> tuple[set[Words], dict[str, str]]:
    """Return the words of each training query, and the most frequent instructions."""
    from ratchet.data.tables import INSTRUCTIONS, read_shards

    if train is None:
        return set(), {}
    table = read_shards(train)
    common = {}
    for name in INSTRUCTIONS:
        if name in table.column_names and len(table):
            common[name] = Counter(table[name].to_pylist()).most_common(1)[0][0]
    return {_find_words(text) for text in table["text"].to_pylist()}, common


def _find_words(text: str) -> Words:
    return frozenset(re.findall(r"\w+", text.casefold()))


def _find_near(
    known: list[tuple[Words, dict[str, Any]]], words: Words, least: float
) -> dict[str, Any] | None:
    """Return the first row with nearly the same words."""
    for other, row in known:
        if len(words & other) >= least * len(words | other):
            return row
    return None


JOB = Job(
    "clean_queries",
    Config,
    Inputs,
    run,
    resources=("retries",),
    metrics=("completions", "empty", "copies", "duplicates", "ambiguous", "queries"),
)
