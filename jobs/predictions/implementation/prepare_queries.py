"""Implementation of `prepare_queries`: writes queries as shards."""

from __future__ import annotations

from ratchet.data.formats.detection import load_queries
from ratchet.data.tables import INSTRUCTIONS, QUERIES, add_carried, write_shards
from ratchet.jobs.predictions.prepare_queries import Config, Inputs
from ratchet.orchestrator.job_interface import Context, Result


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    queries = load_queries(inputs.queries, config.reading)
    instructions = [name for name in INSTRUCTIONS if any(getattr(query, name) for query in queries)]
    rows = (query._asdict() for query in queries)
    write_shards(context.out, rows, add_carried(QUERIES, instructions), config.shard_rows)
    return Result({"queries": len(queries), "longest_text": max(len(query.text) for query in queries)})
