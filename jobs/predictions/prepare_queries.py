"""prepare_queries: read queries of any known format, with or without labels, and write them as shards."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ratchet.orchestrator.job_interface import Context, Job, Parents, PositiveInt, Result, Unit


@dataclass(frozen=True)
class Config:
    shard_rows: Annotated[PositiveInt, Unit("rows")] = 4096
    """Rows per shard."""
    reading: str = ""
    """Reading options of the queries, in the format of `prepare.reading` for one path. Empty: none."""


@dataclass(frozen=True)
class Inputs:
    queries: Path
    """Eedi's test.csv, a BEIR folder, FlagEmbedding JSONL, JSONL with `query`, or a text file with a query per line."""


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Read all queries, so that a bad row is an error, with file and line, before the run starts."""
    from ratchet.data.formats.detection import load_queries

    queries = load_queries(inputs.queries, config.reading)
    return Result(
        {"queries": len(queries), "longest_text": max(len(query.text) for query in queries)}
    )


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.data.formats.detection import load_queries
    from ratchet.data.tables import INSTRUCTIONS, QUERIES, add_carried, write_shards

    queries = load_queries(inputs.queries, config.reading)
    instructions = [name for name in INSTRUCTIONS if any(getattr(one, name) for one in queries)]
    rows = (query._asdict() for query in queries)
    write_shards(context.out, rows, add_carried(QUERIES, instructions), config.shard_rows)
    return Result(
        {"queries": len(queries), "longest_text": max(len(query.text) for query in queries)}
    )


JOB = Job(
    "prepare_queries",
    Config,
    Inputs,
    run,
    resources=("retries",),
    check=check,
    metrics=("queries", "longest_text"),
)
