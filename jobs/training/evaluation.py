"""Evaluations on held-out rows, and the decision whether the best model of a training run replaces the current best.

The decision is a paired test over groups of rows, corrected for the choice of the best evaluation on the same rows
(`ratchet.data.significance.compute_p_value`). The model must also not be worse on queries whose labels are not in the
training data: memorized labels alone would raise the metric over all held-out rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.data.significance import compute_p_value, loses, number_groups, sum_by_group
from ratchet.jobs.training.config import FinetuneConfig, RankFinetuneConfig
from ratchet.jobs.training.schedule import TrainHistory, is_better
from ratchet.models.search.rank_metrics import compute_rank_metrics
from ratchet.models.search.ranks import Relevant


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a model on held-out rows."""

    metrics: dict[str, float]
    sums: dict[str, list[float]] = field(default_factory=dict)
    """`all` -> sums of the selecting metric over the rows of each group; `unseen` -> the same over the rows with unseen
    labels only. Empty for jobs that compare models by the metric itself."""


class HeldOutRows:
    """The groups of held-out rows, and which rows have labels that are not in the training data."""

    def __init__(self, table: pa.Table, group: str = "group") -> None:
        """group: the column that names a row's group; see `number_groups`."""
        self.group_Q = number_groups(table, group)
        self.unseen_Q: np.ndarray | None = None
        if "seen" in table.column_names:
            self.unseen_Q = ~table["seen"].to_numpy(zero_copy_only=False).astype(bool)
        self.grades_R: np.ndarray | None = None
        if "grades" in table.column_names:
            self.grades_R = pc.list_flatten(table["grades"]).to_numpy().astype(np.float64)

    def evaluate(self, metric: str, ranks_R: np.ndarray, relevant: Relevant, *names: str) -> Evaluation:
        """Return the selecting metric and the other metrics `names`, from the ranks of all relevant documents, [R]. The
        documents have the order of the column `positives`, and its grades, if the rows have some."""
        relevant = replace(relevant, grades=self.grades_R)
        wanted = list(dict.fromkeys((metric, *names)))
        ks = sorted({int(name.partition("@")[2]) for name in wanted if "@" in name})
        found = compute_rank_metrics(ranks_R, relevant, ks or [1])
        metrics = {name: round(found.values[name], 6) for name in wanted}
        value_Q, sums = found.per_query[metric], self.sum(found.per_query[metric])
        if "unseen" in sums:
            metrics[f"unseen/{metric}"] = round(float(np.nanmean(value_Q[self.unseen_Q])), 6)
        return Evaluation(metrics, sums)

    def sum(self, value_Q: np.ndarray) -> dict[str, list[float]]:
        """Return the sums of a metric over the rows of each group; see `Evaluation.sums`."""
        values = {"all": value_Q}
        if self.unseen_Q is not None and 0 < self.unseen_Q.sum() < len(value_Q):
            values["unseen"] = np.where(self.unseen_Q, value_Q, np.nan)
        return {name: sum_by_group(one, self.group_Q).round(6).tolist() for name, one in values.items()}


def decide(config: FinetuneConfig, history: TrainHistory, unit: str) -> tuple[str, float | None]:
    """Compare the best evaluation of a training run with the evaluation before training. Return (reason, p-value). The
    reason says why the new model does not replace the current best; empty: it does. The p-value is None if no test was
    made. unit: `epoch` or `step`, for the reason."""
    assert history.best is not None
    if not is_better(config.metric, history.evaluations[history.best], history.start):
        return f"no {unit} was better", None
    before, after = history.start_sums, history.sums
    if not isinstance(config, RankFinetuneConfig) or not before:
        return "", None
    p_value = compute_p_value(np.array(before["all"]), np.array([one["all"] for one in after]))
    if p_value > config.significance_level:
        groups = len(before["all"])
        few = f": {groups} groups are too few to tell" if 0.5**groups > config.significance_level else ""
        return f"no {unit} was significantly better, p {p_value:.2g}{few}", p_value
    if "unseen" in before and loses(np.array(before["unseen"]), np.array(after[history.best]["unseen"])):
        return f"the best {unit} is worse on unseen labels", p_value
    return "", p_value
