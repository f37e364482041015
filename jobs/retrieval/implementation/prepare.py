"""Writes the corpus and the splits of retrieval data as shards."""

from __future__ import annotations

import pyarrow as pa

from ratchet.data.retrieval import Query
from ratchet.data.tables import CORPUS, INSTRUCTIONS, QUERIES, SCORES, TEACHER_SCORES, add_instructions, write_shards
from ratchet.jobs.retrieval.prepare import Config, Inputs
from ratchet.jobs.retrieval.splits import describe_repeated, load_data, split_data
from ratchet.orchestrator.job_interface import Context, Progress, Result


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    data = load_data(inputs.data, config.questions, config.seed)
    splits = split_data(data, config)
    corpus = [{"id": document.id, "text": document.text} for document in data.corpus]
    write_shards(context.out / "corpus", corpus, CORPUS, config.shard_rows)
    scores = (
        [TEACHER_SCORES["positives"], TEACHER_SCORES["negatives"]]
        if all(query.teacher for query in data.queries)
        else []
    )
    instructions = [name for name in INSTRUCTIONS if any(getattr(query, name) for query in data.queries)]
    schema = add_instructions(pa.schema([*QUERIES, *((name, SCORES) for name in scores)]), instructions)
    for name, queries in splits.items():
        rows = [
            {
                "id": query.id,
                "text": query.text,
                "positives": list(query.positives),
                "grades": list(query.grades),
                "negatives": list(query.negatives),
                **dict(zip(scores, query.teacher or (), strict=False)),
                **{name: getattr(query, name) for name in instructions},
            }
            for query in queries
        ]
        write_shards(context.out / name, rows, schema, config.shard_rows)
    context.progress(Progress(len(data.queries), len(data.queries), "queries"))
    counts = {f"{name}/queries": len(queries) for name, queries in splits.items()}
    counts["longest_text"] = data.longest_text
    return Result(
        {"documents": len(corpus), "queries": len(data.queries), **counts, **data.notes},
        {"splits": [_statistics(name, queries) for name, queries in splits.items()]},
        note=describe_repeated(splits),
    )


def _statistics(name: str, queries: list[Query]) -> dict[str, float | int | str]:
    counts = sorted(len(query.positives) for query in queries)
    groups = len({query.group for query in queries})
    at = {share: counts[min(len(counts) - 1, int(share * len(counts)))] for share in (0.5, 0.9)}
    return {
        "split": name,
        "queries": len(queries),
        "groups": groups,
        "documents per query, mean": round(sum(counts) / len(counts), 4),
        "median": at[0.5],
        "90% have at most": at[0.9],
        "maximum": counts[-1],
    }
