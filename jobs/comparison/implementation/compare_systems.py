"""Implementation of `compare_systems`: paired differences of metrics, with bootstrap intervals."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from ratchet.data.significance import bootstrap_interval, number_groups
from ratchet.data.tables import read_shards
from ratchet.errors import InputError
from ratchet.jobs.comparison.compare_systems import Config, Inputs
from ratchet.orchestrator.job_interface import Context, Result


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    queries = read_shards(inputs.queries)
    names, group_Q = queries["id"].to_pylist(), number_groups(queries)
    tables = [pq.read_table(folder / "per_query.parquet") for folder in inputs.evaluations]
    for folder, table in zip(inputs.evaluations, tables, strict=True):
        if table["id"].to_pylist() != names:
            raise InputError(f"{folder}: evaluates other queries; expected those of {inputs.queries}")
    first, *others = ({name: table[name].to_numpy() for name in config.metrics} for table in tables)
    metrics: dict[str, float | int | str] = {}
    rows: list[dict[str, Any]] = []
    for number, (label, own) in enumerate(zip(config.names[1:], others, strict=True), 1):
        row: dict[str, Any] = {"system": label}
        for name in config.metrics:
            difference_Q = own[name] - first[name]
            metrics[f"{number}/{name}"] = row[name] = round(float(np.nanmean(difference_Q)), 6)
            low, high = bootstrap_interval(difference_Q, group_Q, config.samples, config.seed)
            if not np.isnan(low):  # several groups
                metrics[f"{number}/{name}/interval"] = round((high - low) / 2, 6)
                row |= {f"{name}, low": round(low, 6), f"{name}, high": round(high, 6)}
        decided_Q = own[config.metrics[0]] - first[config.metrics[0]]
        counts = {"won": int((decided_Q > 0).sum()), "lost": int((decided_Q < 0).sum())}
        metrics |= {f"{number}/{name}": count for name, count in counts.items()}
        rows.append({**row, **counts, "equal": len(names) - sum(counts.values())})
    (context.out / "differences.json").write_text(json.dumps(rows, indent=1))
    return Result(metrics, {f"differences from {config.names[0]}, 95 % intervals": rows})
