"""compare_systems: paired differences of systems' metrics, with confidence intervals, and queries won and lost."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import MinLen

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import Context, Job, Parents, Result


@dataclass(frozen=True)
class Config:
    names: Annotated[tuple[str, ...], MinLen(2)]
    """Names of the systems. Each further system is compared with the first."""
    metrics: Annotated[tuple[str, ...], MinLen(1)] = ("map@25", "ndcg@10", "r@25", "mrr")
    """Metrics of `evaluate_retrieval` to compare. The first one decides which queries are won and lost."""


@dataclass(frozen=True)
class Inputs:
    queries: Path
    """Shards of the queries. Intervals are over groups, since the queries of a group are not independent."""
    evaluations: tuple[Path, ...]
    """The output of `evaluate_retrieval` for each system, on these queries."""


def check(config: Config, inputs: Inputs, parents: Parents) -> None:
    if inputs.evaluations is not None and len(inputs.evaluations) != len(config.names):
        raise InputError(
            f"compare_systems.evaluations: {len(inputs.evaluations)} given; expected one for each of"
            f" {', '.join(config.names)}"
        )


def list_metrics(config: Config) -> list[str]:
    found = []
    for number in range(1, len(config.names)):
        for name in config.metrics:
            found += [f"{number}/{name}", f"{number}/{name}/interval"]
        found += [f"{number}/won", f"{number}/lost"]
    return found


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import numpy as np
    import pyarrow.parquet as pq

    from ratchet.data.significance import compute_half_width, number_groups
    from ratchet.data.tables import check_queries, read_shards

    queries = read_shards(inputs.queries)
    group_Q = number_groups(queries)
    tables = [pq.read_table(folder / "per_query.parquet") for folder in inputs.evaluations]
    for folder, table in zip(inputs.evaluations, tables, strict=True):
        check_queries(folder, table, queries, inputs.queries)
    first, *others = ({name: table[name].to_numpy() for name in config.metrics} for table in tables)
    metrics = {}
    rows = []
    for number, (label, own) in enumerate(zip(config.names[1:], others, strict=True), 1):
        row: dict[str, Any] = {"system": label}
        for name in config.metrics:
            difference_Q = own[name] - first[name]
            mean = float(np.nanmean(difference_Q))
            metrics[f"{number}/{name}"] = row[name] = round(mean, 6)
            width = compute_half_width(difference_Q, group_Q)
            if not np.isnan(width):  # several groups
                metrics[f"{number}/{name}/interval"] = round(width, 6)
                row[f"{name}, low"] = round(mean - width, 6)
                row[f"{name}, high"] = round(mean + width, 6)
        decided_Q = own[config.metrics[0]] - first[config.metrics[0]]
        counts = {"won": int((decided_Q > 0).sum()), "lost": int((decided_Q < 0).sum())}
        metrics |= {f"{number}/{name}": count for name, count in counts.items()}
        rows.append({**row, **counts, "equal": len(queries) - sum(counts.values())})
    return Result(metrics, {f"differences from {config.names[0]}, 95 % intervals": rows})


JOB = Job(
    "compare_systems",
    Config,
    Inputs,
    run,
    resources=("retries",),
    check=check,
    metrics=list_metrics,
)
