"""Implementation of `prepare`: writes the corpus and the splits as shards."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ratchet.data import tables
from ratchet.data.rankings import summarize_counts
from ratchet.data.retrieval import Query, RetrievalData
from ratchet.data.retrieval.splits import find_seen
from ratchet.jobs.retrieval.prepare import Config, Inputs
from ratchet.jobs.retrieval.splits import describe_repeated, describe_unread, load_data, split_data
from ratchet.orchestrator.job_interface import Context, Progress, Result


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    data = load_data(config, inputs)
    splits = split_data(data, config)
    documents, longest, repeated = _copy_corpus(context, config, data)
    scored = splits["train"] and all(query.teacher for query in splits["train"])
    if scored:
        scores = [tables.TEACHER_SCORES["positives"], tables.TEACHER_SCORES["negatives"]]
    else:
        scores = []
    instructions = [name for name in tables.INSTRUCTIONS if f"{name}s" in data.notes]
    statistics = []
    for name, queries in splits.items():
        if name == "train":
            seen = [True] * len(queries)
        else:
            seen = find_seen(splits["train"], queries).tolist()
        rows = (
            {**query._asdict(), "seen": own, **dict(zip(scores, query.teacher or (), strict=False))}
            for query, own in zip(queries, seen, strict=True)
        )
        if name == "train":
            columns = tables.GROUPED
        else:
            columns = tables.HELD_OUT
        schema = pa.schema([*columns, *((score, tables.SCORES) for score in scores)])
        tables.write_shards(context.out / name, rows, tables.add_carried(schema, instructions), config.shard_rows)
        statistics.append(_statistics(name, queries, sum(seen)))
    context.progress(Progress(len(data.queries), len(data.queries), "queries"))
    counts = {f"{name}/queries": len(queries) for name, queries in splits.items()}
    counts["longest_text"] = longest
    notes = [describe_unread(data), describe_repeated(splits)]
    if repeated:
        counts["documents with the text of another one"] = repeated
        notes.append(f"{repeated:,} of {documents:,} documents have the text of another one: equal scores rank by id")
    return Result(
        {"documents": documents, "queries": len(data.queries), **counts, **data.notes},
        {"splits": statistics},
        note="; ".join(filter(None, notes)),
    )


def _copy_corpus(context: Context, config: Config, data: RetrievalData) -> tuple[int, int, int]:
    """Write the documents as shards, by id, descending. All steps order documents with equal scores by
    row, so that metrics do not depend on the order of the data, and are those of trec_eval. Return (number of
    documents, characters of the longest text, number of documents with the text of another one)."""
    corpus = sorted(data.corpus, key=lambda document: document.id, reverse=True)
    rows = ({"id": document.id, "text": document.text} for document in corpus)
    tables.write_shards(context.out / "corpus", rows, tables.CORPUS, config.shard_rows)
    context.progress(Progress(len(corpus), len(corpus), "documents"))
    longest = max(len(one.text) for ones in (data.queries, corpus) for one in ones)
    return len(corpus), longest, len(corpus) - len({document.text for document in corpus})


def _statistics(name: str, queries: Sequence[Query], seen: int) -> dict[str, float | int | str]:
    return {
        "split": name,
        "queries": len(queries),
        "groups": len({query.group for query in queries}),
        "with a label seen in training": seen,
        **{f"relevant, {key}": value for key, value in summarize_counts([len(q.positives) for q in queries]).items()},
    }
