"""clean_queries: convert the answers of `generate` into distinct queries, each with its document as the positive.

The answers are those to the prompts of `prepare_query_generation`. Only the first line of an answer is used. Empty
answers, copies of the document, and duplicates of another query of the document or of a training query are left out.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import ArtifactError, InputError
from ratchet.orchestrator.job_interface import Context, Job, Result

COUNTS_FILE = "counts.json"
"""File with the numbers of answers and of left-out answers, for `filter_queries`."""
COUNTS = ("completions", "empty", "copies", "duplicates", "queries")


SHARD_ROWS = 4096


@dataclass(frozen=True)
class Config:
    pass


@dataclass(frozen=True)
class Inputs:
    completions: Path
    """The output of `generate`."""
    train: Path
    """Shards of training queries. Synthetic queries get their most frequent task and prompt."""


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import pyarrow.parquet as pq

    from ratchet.data.tables import (
        INSTRUCTIONS,
        QUERIES,
        add_carried,
        list_shards,
        read_shards,
        write_shards,
    )
    from ratchet.data.tasks import query_generation
    from ratchet.data.tasks.task import CORRECT, read_task_name

    task = read_task_name(inputs.completions)
    if task != query_generation.NAME:
        raise InputError(
            f"clean_queries.completions: answers of task {task} given; expected {query_generation.NAME}; give the"
            " output of generate for samples of prepare_query_generation"
        )
    train = read_shards(inputs.train)
    known = {text.casefold() for text in train["text"].to_pylist()}
    schema = add_carried(QUERIES, train.column_names)
    common = {}
    for name in INSTRUCTIONS:
        if name in train.column_names and len(train):
            common[name] = Counter(train[name].to_pylist()).most_common(1)[0][0]
    counts = Counter(completions=0, empty=0, copies=0, duplicates=0)
    rows = []
    for path in list_shards(inputs.completions):
        for row in pq.read_table(path, columns=["id", "gold", "answers"]).to_pylist():
            gold = json.loads(row["gold"])
            seen = set()
            for number, answers in enumerate(row["answers"]):
                counts["completions"] += 1
                query = query_generation.clean_query(answers[0])
                label = query_generation.verify(gold, answers)[0].label
                folded = query.casefold()
                if label == CORRECT and (folded in known or folded in seen):
                    label = "duplicates"
                if label != CORRECT:
                    counts["copies" if label == "copy" else label] += 1
                    continue
                seen.add(folded)
                own = {"id": f"synthetic/{row['id']}/{number}", "text": query, "group": row["id"]}
                rows.append(
                    {**own, "positives": [row["id"]], "grades": [1], "negatives": [], **common}
                )
    found = {**counts, "queries": len(rows)}
    if not rows:
        shown = ", ".join(f"{name} {number}" for name, number in found.items())
        raise ArtifactError(
            f"step {context.step}: no query is left ({shown}); expected at least one; use another generator, or another"
            " prepare_query_generation.prompt_template"
        )
    write_shards(context.out, rows, schema, SHARD_ROWS)
    (context.out / COUNTS_FILE).write_text(json.dumps(found) + "\n")
    return Result(found)


JOB = Job("clean_queries", Config, Inputs, run, resources=("retries",), metrics=COUNTS)
