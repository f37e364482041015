"""fuse: fuse the rankings of several systems into one, with weights chosen on held-out queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, MinLen

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import Context, Job, Parents, Result

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

BATCH = 4096
"""Number of queries that are fused at a time, and of rows per shard."""

MOST = 10_000
"""Maximum number of held-out queries that choose the weights (evenly spaced). Each takes about 30 KB of memory."""

Fused = list[list[tuple[str, float]]]


@dataclass(frozen=True)
class Config:
    method: Literal["scores", "rrf"] = "scores"
    """`scores`: weighted sum of normalized scores. A system's score minus the lowest one of the query's list is divided
    by the mean score range of the system's lists on the held-out queries; documents outside a list get 0. `rrf`:
    reciprocal rank fusion, the sum of weight / (60 + rank) (Cormack et al., 2009)."""
    names: Annotated[tuple[str, ...], MinLen(2)] = ("first", "second")
    """Names of the systems, for the report."""
    weights: tuple[Annotated[float, Ge(0)], ...] = ()
    """Weight of each system. Empty: choose the weights with the best MAP on the held-out queries (on at most 10,000).
    If these do not beat the best single system by more than the standard error over groups, only that one is used."""
    k: Annotated[int, Ge(1)] = 25
    """Cut-off of the MAP that chooses the weights."""


@dataclass(frozen=True)
class Inputs:
    valid: Path
    """Held-out queries with their positives."""
    valid_rankings: tuple[Path, ...]
    """Each system's ranking for the held-out queries, as written by `evaluate_retrieval`."""
    rankings: tuple[Path, ...]
    """Each system's ranking for the queries whose rankings are fused."""


def check(config: Config, inputs: Inputs, parents: Parents) -> None:
    for name, given in (
        ("valid_rankings", inputs.valid_rankings),
        ("rankings", inputs.rankings),
        ("weights", config.weights or config.names),
    ):
        if given is not None and len(given) != len(config.names):
            raise InputError(
                f"fuse.{name}: {len(given)} given; expected one for each of {', '.join(config.names)}"
            )
    if config.weights and not any(config.weights):
        raise InputError("fuse.weights: only zeros given; expected one above 0")


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import numpy as np
    import pyarrow as pa

    from ratchet.data.fusion import choose_weights, compute_points, compute_spread, fuse
    from ratchet.data.significance import loses, number_groups, sum_by_group
    from ratchet.data.tables import RANKED, SCORES, TEACHER_SCORES, read_shards, write_shards
    from ratchet.models.search.rank_metrics import compute_rank_metrics
    from ratchet.models.search.ranks import Relevant

    held_out = _read(inputs.valid_rankings)
    queries = read_shards(inputs.valid)
    if queries["id"].to_pylist() != held_out[0]["id"].to_pylist():
        raise InputError(
            f"{inputs.valid_rankings[0]}: ranks other queries; expected those of {inputs.valid}, in order"
        )
    rows = np.unique(np.linspace(0, len(queries) - 1, MOST).astype(int))
    queries, *held_out = (table.take(rows) for table in (queries, *held_out))
    labels = queries["positives"].to_pylist()
    group_Q = number_groups(queries)
    spreads = [compute_spread(table) for table in held_out]

    def score(systems: Sequence[pa.Table]) -> list[list[dict[str, float]]]:
        with_spread = zip(systems, spreads, strict=True)
        found: list[list[dict[str, float]]] = []
        for one, spread in with_spread:
            found.append(compute_points(one, config.method, spread))
        return found

    points = score(held_out)

    @cache
    def measure(weights: tuple[float, ...]) -> np.ndarray:
        ranks = []
        for own, names in zip(fuse(points, weights), labels, strict=True):
            ranks.append(_rank(own, names))
        relevant = Relevant.from_lists([range(len(own)) for own in ranks])
        return compute_rank_metrics(np.concatenate(ranks), relevant, [config.k]).per_query[
            f"map@{config.k}"
        ]

    def average(weights: Sequence[float]) -> float:
        return float(measure(tuple(weights)).mean())

    names = config.names
    eye = np.eye(len(config.names)).tolist()
    weights = list(config.weights) or choose_weights(len(names), average)
    best = max(eye, key=average)
    sums = (sum_by_group(measure(tuple(one)), group_Q) for one in (weights, best))
    if not config.weights and not loses(*sums):
        weights = best  # the improvement of the fusion may be due to chance
    fused = _fuse(_read(inputs.rankings), lambda systems: fuse(score(systems), weights))
    schema = RANKED.append(pa.field(TEACHER_SCORES["documents"], SCORES))
    write_shards(context.out / "ranking", fused, schema, BATCH)
    metric = f"valid/map@{config.k}"
    found = zip(names, weights, map(average, eye), strict=True)
    table = []
    for name, weight, value in found:
        table.append({"system": name, "weight": weight, metric: round(value, 6)})
    return Result(
        {
            metric: round(average(weights), 6),
            **{f"weight/{n}": w for n, w in zip(names, weights, strict=True)},
        },
        {"fused systems, each by itself on the held-out queries": table},
    )


def _read(folders: Sequence[Path]) -> list[pa.Table]:
    from ratchet.data.tables import read_shards

    tables = [read_shards(folder) for folder in folders]
    for folder, table in zip(folders, tables, strict=True):
        if table["id"] != tables[0]["id"]:
            raise InputError(
                f"{folder}: ranks other queries than {folders[0]}; expected the same ones in one order"
            )
    return tables


def _rank(fused: Sequence[tuple[str, float]], positives: Sequence[str]) -> np.ndarray:
    """Return the ranks of the positives. Positives outside the fused list get consecutive ranks after its end."""
    import numpy as np

    place = {}
    for rank, (name, _) in enumerate(fused, 1):
        place[name] = rank
    lacking = iter(range(len(fused) + 1, len(fused) + 1 + len(positives)))
    return np.array(
        [place[name] if name in place else next(lacking) for name in positives], np.int64
    )


def _fuse(
    systems: Sequence[pa.Table], combine: Callable[[Sequence[pa.Table]], Fused]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the fused ranking. Its fused scores are also in the column of teacher scores, by which
    `evaluate_retrieval` orders. The rank of a positive is the best one of all systems, but after the end of the fused
    list; `evaluate_retrieval` replaces it if the positive is in the list."""
    from ratchet.data.tables import TEACHER_SCORES

    for start in range(0, len(systems[0]), BATCH):
        part = [table.slice(start, BATCH) for table in systems]
        queries = part[0].select(["id", "text"]).to_pylist()
        ranks = (one["ranks"].to_pylist() for one in part)
        for query, found, *own in zip(queries, combine(part), *ranks, strict=True):
            points = [value for _, value in found]
            yield {
                **query,
                "documents": [name for name, _ in found],
                "scores": points,
                "ranks": [max(min(each), len(found) + 1) for each in zip(*own, strict=True)],
                TEACHER_SCORES["documents"]: points,
            }


JOB = Job(
    "fuse",
    config=Config,
    inputs=Inputs,
    run=run,
    resources=("retries",),
    check=check,
    outputs=("ranking",),
    metrics=lambda config: (f"valid/map@{config.k}", "weight/*"),
)
