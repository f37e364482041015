"""Evaluations on held-out rows, and the decision whether the best model of a training run replaces the current best.

The decision is a paired test over groups of rows, corrected for the choice of the best evaluation on the same rows
(`ratchet.data.significance.compute_p_value`). If the metric changed in too few groups for any p-value to reach the
level, the test compares the held-out losses, which change in every group. The model must also not be worse on queries
whose labels are not in the training data: memorized labels alone would raise the metric over all held-out rows.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.data.significance import (
    compute_p_value,
    count_changed,
    loses,
    number_groups,
    sum_by_group,
)
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
    labels only; `loss` -> sums of the negative loss, if it was measured. Empty for jobs that compare models by the
    metric itself."""


def evaluate_rows(
    valid: pa.Table,
    metric: str,
    ranks_R: np.ndarray,
    relevant: Relevant,
    *names: str,
    losses_Q: np.ndarray | None = None,
    group: str = "group",
) -> Evaluation:
    """Return the selecting metric and the other metrics `names` of held-out rows, from the ranks of all relevant
    documents, [R]. The documents have the order of the column `positives`, and its grades, if the rows have some.

    losses_Q: the loss of each row (`ratchet.models.search.held_out_loss`), for the metric `eval_loss`. group: the
    column that names a row's group; see `number_groups`."""
    grades_R = None
    if "grades" in valid.column_names:
        grades_R = pc.list_flatten(valid["grades"]).to_numpy().astype(np.float64)
    relevant = replace(relevant, grades=grades_R)
    wanted = list(dict.fromkeys((metric, *names)))
    ks = sorted({int(name.partition("@")[2]) for name in wanted if "@" in name})
    found = compute_rank_metrics(ranks_R, relevant, ks or [1])
    metrics = {name: round(found.values[name], 6) for name in wanted}
    value_Q = found.per_query[metric]
    values = {"all": value_Q}
    if "seen" in valid.column_names:
        unseen_Q = ~valid["seen"].to_numpy(zero_copy_only=False).astype(bool)
        if 0 < unseen_Q.sum() < len(value_Q):
            values["unseen"] = np.where(unseen_Q, value_Q, np.nan)
            metrics[f"unseen/{metric}"] = round(float(np.nanmean(values["unseen"])), 6)
    if losses_Q is not None and not np.isnan(losses_Q).all():
        values["loss"] = -losses_Q
        metrics["eval_loss"] = round(float(np.nanmean(losses_Q)), 6)
    group_Q = number_groups(valid, group)
    sums = {}
    for name, one in values.items():
        sums[name] = sum_by_group(one, group_Q).round(6).tolist()
    return Evaluation(metrics, sums)


def draw_rows(valid: pa.Table, fraction: float, seed: int) -> np.ndarray:
    """Draw a fraction of the groups of held-out rows, at least one. Return the indices of their rows, ascending."""
    group_Q = number_groups(valid)
    groups = int(group_Q.max(initial=-1)) + 1
    count = max(1, round(fraction * groups))
    drawn = np.random.default_rng(seed).permutation(groups)[:count]
    return np.flatnonzero(np.isin(group_Q, drawn))


@dataclass(frozen=True)
class Decision:
    """Whether the best evaluation of a training run replaces the current best."""

    reason: str
    """Why it does not. Empty: it does."""
    p_value: float | None = None
    """None: no test was made."""
    by_loss: bool = False
    """Whether the test compared the held-out losses instead of the metric."""


def decide(config: FinetuneConfig, history: TrainHistory, *, least_changed: int = 0) -> Decision:
    """Compare the best evaluation of a training run with the evaluation before training. least_changed: the held-out
    losses decide if the metric changed for fewer groups, even if it could decide (that number says nothing of the
    direction, so the choice does not favour either), and else must not be worse."""
    assert history.best is not None
    unit = config.unit
    if not is_better(config.metric, history.evaluations[history.best], history.start):
        return Decision(f"no {unit} was better")
    before = history.start_sums
    after = history.sums
    if not isinstance(config, RankFinetuneConfig) or not before:
        return Decision("")
    best = after[history.best]
    level = config.significance_level
    changed = count_changed(np.array(before["all"]), np.array(best["all"]))
    # The smallest p-value that the test can give.
    is_weak = changed < least_changed or 0.5**changed > level
    by_loss = is_weak and "loss" in before and "loss" in best
    name = "loss" if by_loss else "all"
    tried = np.array([one[name] for one in after])
    p_value = compute_p_value(np.array(before[name]), tried, chosen=history.best)
    if p_value > level:
        reason = f"no {unit} was significantly better"
        if by_loss:
            reason += " by the held-out loss"
        reason += f", p {p_value:.2g}"
        groups = len(before["all"])
        if 0.5**groups > level:
            reason += f": {groups} groups are too few to tell"
        return Decision(reason, p_value, by_loss)
    if least_changed and not by_loss and sum(best.get("loss", [])) < sum(before.get("loss", [])):
        # Frequent labels at the top of all lists raise the metric, and the loss.
        return Decision(f"the held-out loss of the best {unit} is worse", p_value)
    if "unseen" in before and loses(np.array(before["unseen"]), np.array(best["unseen"])):
        return Decision(f"the best {unit} is worse on unseen labels", p_value, by_loss)
    return Decision("", p_value, by_loss)
