"""fuse: fuse the rankings of several systems into one, with weights chosen on held-out queries."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import MinLen

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import (
    Context,
    Job,
    NonNegativeFloat,
    Parents,
    PositiveInt,
    Result,
)

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
    weights: tuple[NonNegativeFloat, ...] = ()
    """Weight of each system. Empty: choose the weights with the best MAP on the held-out queries (on at most 10,000).
    If these do not beat the best single system by more than the standard error over groups, only that one is used."""
    k: PositiveInt = 25
    """Cut-off of the MAP that chooses the weights."""
    folds: PositiveInt = 1
    """Number of folds, for rankings of the held-out queries themselves: the weights for each fold of their groups are
    chosen on the other folds. 1: the weights are chosen on all held-out queries."""


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

    from ratchet.data.fusion import fuse
    from ratchet.data.tables import RANKED, SCORES, check_queries, read_shards, write_shards

    tables = _read(inputs.valid_rankings)
    queries = read_shards(inputs.valid)
    check_queries(inputs.valid_rankings[0], tables[0], queries, inputs.valid)
    chosen = np.unique(np.linspace(0, len(queries) - 1, MOST).astype(int))
    held_out = HeldOut(config, queries.take(chosen), [table.take(chosen) for table in tables])
    ranked = _read(inputs.rankings)
    fold_Q = np.zeros(len(ranked[0]), np.int64)
    if config.folds == 1:
        weights_of = [held_out.choose(np.ones(len(chosen), bool))]
    else:
        check_queries(inputs.rankings[0], ranked[0], queries, inputs.valid)
        fold_Q = held_out.group_Q % config.folds
        weights_of = [held_out.choose(fold_Q != fold) for fold in range(config.folds)]

    def make_rows() -> Iterator[dict[str, Any]]:
        for start in range(0, len(ranked[0]), BATCH):
            part = [table.slice(start, BATCH) for table in ranked]
            points = held_out.score(part)
            fused = [fuse(points, weights) for weights in weights_of]
            folds = fold_Q[start : start + BATCH]
            yield from _make_rows(part, [fused[fold][q] for q, fold in enumerate(folds)])

    schema = RANKED.append(pa.field("teacher_scores", SCORES))
    write_shards(context.out / "ranking", make_rows(), schema, BATCH)
    metric = f"valid/map@{config.k}"
    values = []
    for fold, weights in enumerate(weights_of):
        map_Q = held_out.measure(weights)
        values.append(map_Q if config.folds == 1 else map_Q[fold_Q == fold])
    metrics = {metric: round(float(np.concatenate(values).mean()), 6)}
    table = []
    for place, name in enumerate(config.names):
        weight = float(np.mean([weights[place] for weights in weights_of]))
        metrics[f"weight/{name}"] = round(weight, 4)
        value = round(float(held_out.measure(held_out.alone[place]).mean()), 6)
        table.append({"system": name, "weight": metrics[f"weight/{name}"], metric: value})
    return Result(metrics, {"fused systems, each by itself on the held-out queries": table})


class HeldOut:
    """The held-out queries, and the points of the documents that each system ranks for them."""

    def __init__(self, config: Config, queries: "pa.Table", tables: "list[pa.Table]") -> None:
        from ratchet.data.fusion import compute_spread
        from ratchet.data.significance import number_groups

        self.config = config
        self.group_Q = number_groups(queries)
        self.labels = queries["positives"].to_pylist()
        self.spreads = [compute_spread(table) for table in tables]
        self.points = self.score(tables)
        systems = range(len(config.names))
        self.alone = [[float(other == system) for other in systems] for system in systems]
        """The weights of each system by itself."""
        self._maps: dict[tuple[float, ...], np.ndarray] = {}

    def score(self, tables: "list[pa.Table]") -> list[list[dict[str, float]]]:
        """Return the points of each system's documents."""
        from ratchet.data.fusion import compute_points

        pairs = zip(tables, self.spreads, strict=True)
        return [compute_points(table, self.config.method, spread) for table, spread in pairs]

    def measure(self, weights: Sequence[float]) -> "np.ndarray":
        """Return the MAP@k of each query, [Q]."""
        from ratchet.data.fusion import fuse

        key = tuple(weights)
        if key not in self._maps:
            self._maps[key] = _compute_map(fuse(self.points, key), self.labels, self.config.k)
        return self._maps[key]

    def choose(self, some_Q: "np.ndarray") -> list[float]:
        """Choose the weights on some of the queries, bool [Q]."""
        from ratchet.data.fusion import choose_weights
        from ratchet.data.significance import loses, sum_by_group

        if self.config.weights:
            return list(self.config.weights)

        def average(weights: Sequence[float]) -> float:
            return float(self.measure(weights)[some_Q].mean())

        weights = choose_weights(len(self.alone), average)
        best = max(self.alone, key=average)
        sums = []
        for one in (weights, best):
            sums.append(sum_by_group(self.measure(one)[some_Q], self.group_Q[some_Q]))
        if loses(*sums):
            return weights
        return best  # the improvement of the fusion may be due to chance


def _read(folders: Sequence[Path]) -> "list[pa.Table]":
    from ratchet.data.tables import check_queries, read_shards

    tables = [read_shards(folder) for folder in folders]
    for folder, table in zip(folders, tables, strict=True):
        check_queries(folder, table, tables[0], folders[0])
    return tables


def _compute_map(fused: Fused, labels: list[list[str]], k: int) -> "np.ndarray":
    """Return the MAP@k of each query, [Q]. Positives outside a fused list get consecutive ranks after its end."""
    import numpy as np

    from ratchet.models.search.rank_metrics import compute_rank_metrics
    from ratchet.models.search.ranks import Relevant

    ranks = []
    for ranked, positives in zip(fused, labels, strict=True):
        place = {name: rank for rank, (name, _) in enumerate(ranked, 1)}
        for name in positives:
            ranks.append(place.setdefault(name, len(place) + 1))
    relevant = Relevant.from_lists([range(len(own)) for own in labels])
    return compute_rank_metrics(np.array(ranks, np.int64), relevant, [k]).per_query[f"map@{k}"]


def _make_rows(systems: "Sequence[pa.Table]", fused: Fused) -> Iterator[dict[str, Any]]:
    """Yield the rows of the fused ranking. Its fused scores are also in the column of teacher scores, by which
    `evaluate_retrieval` orders. The rank of a positive is the best one of all systems, but after the end of the fused
    list; `evaluate_retrieval` replaces it if the positive is in the list."""
    queries = systems[0].select(["id", "text"]).to_pylist()
    ranks = zip(*(table["ranks"].to_pylist() for table in systems), strict=True)
    for query, found, own in zip(queries, fused, ranks, strict=True):
        points = [value for _, value in found]
        best = [min(each) for each in zip(*own, strict=True)]
        yield {
            **query,
            "documents": [name for name, _ in found],
            "scores": points,
            "ranks": [max(rank, len(found) + 1) for rank in best],
            "teacher_scores": points,
        }


JOB = Job(
    "fuse",
    Config,
    Inputs,
    run,
    resources=("retries",),
    check=check,
    outputs=("ranking",),
    metrics=lambda config: (f"valid/map@{config.k}", "weight/*"),
)
