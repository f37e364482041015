"""Implementation of `clean_queries`: converts generated answers into queries."""

from __future__ import annotations

import json
from collections import Counter

import pyarrow.parquet as pq

from ratchet.data.tables import INSTRUCTIONS, QUERIES, add_carried, list_shards, read_shards, write_shards
from ratchet.data.tasks import query_generation
from ratchet.data.tasks.task import CORRECT, read_task_name
from ratchet.errors import ArtifactError, InputError
from ratchet.jobs.synthetic.clean_queries import COUNTS_FILE, Config, Inputs
from ratchet.orchestrator.job_interface import Context, Result


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    if (task := read_task_name(inputs.completions)) != query_generation.NAME:
        raise InputError(
            f"clean_queries.completions: answers of task {task} given; expected {query_generation.NAME}; give the"
            " output of generate for samples of prepare_query_generation"
        )
    train = read_shards(inputs.train)
    known = {text.casefold() for text in train["text"].to_pylist()}
    schema = add_carried(QUERIES, train.column_names)
    common = {
        name: Counter(train[name].to_pylist()).most_common(1)[0][0]
        for name in INSTRUCTIONS
        if name in train.column_names and len(train)
    }
    counts, rows = Counter(completions=0, empty=0, copy=0, duplicates=0), []
    for path in list_shards(inputs.completions):
        for row in pq.read_table(path, columns=["id", "gold", "answers"]).to_pylist():
            gold, seen = json.loads(row["gold"]), set[str]()
            for number, answers in enumerate(row["answers"]):
                counts["completions"] += 1
                query = query_generation.clean_query(answers[0])
                label = query_generation.verify(gold, answers)[0].label
                folded = query.casefold()
                if label == CORRECT and (folded in known or folded in seen):
                    label = "duplicates"
                if label != CORRECT:
                    counts[label] += 1
                    continue
                seen.add(folded)
                own = {"id": f"synthetic/{row['id']}/{number}", "text": query, "group": row["id"]}
                rows.append({**own, "positives": [row["id"]], "grades": [1], "negatives": [], **common})
    found = {"completions": counts["completions"], "empty": counts["empty"], "copies": counts["copy"]}
    found |= {"duplicates": counts["duplicates"], "queries": len(rows)}
    if not rows:
        shown = ", ".join(f"{name} {number}" for name, number in found.items())
        raise ArtifactError(
            f"step {context.step}: no query is left ({shown}); expected at least one; use another generator, or another"
            " prepare_query_generation.prompt_template"
        )
    write_shards(context.out, rows, schema, config.shard_rows)
    (context.out / COUNTS_FILE).write_text(json.dumps(found) + "\n")
    return Result(dict(found))
