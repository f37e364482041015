"""Confidence intervals and significance of metrics whose rows come in groups, such as the wrong answers of a question.

Rows of a group are not independent of each other, but groups are. All functions therefore take sums over groups.

Shapes: Q rows, C groups, E evaluations.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.special import stdtrit

MIN_VALID_GROUPS = 20
"""With fewer groups of valid queries, a cross-validation decides. The power of both: docs/splits.md."""
FLIPS = 9_999
"""Random sign flips of a test. The standard error of a p-value of 0.05 is 0.002."""
FLIPS_AT_ONCE = 1 << 22
"""Signs that are drawn at a time."""


def sum_by_group(value_Q: np.ndarray, group_Q: np.ndarray) -> np.ndarray:
    """Return the sum of a metric over the rows of each group, float64 [C]. group_Q: the group of each row, from 0. Rows
    without a value (NaN) count as 0."""
    groups = int(group_Q.max(initial=-1)) + 1
    return np.bincount(group_Q, np.nan_to_num(value_Q), minlength=groups)


def number_groups(table: pa.Table, column: str = "group") -> np.ndarray:
    """Return the number of each row's group in the order of their names, int64 [Q]. column: has the group's name;
    without it each row, by its `id`, is a group."""
    names = table[column if column in table.column_names else "id"]
    return pc.rank(names, tiebreaker="dense").to_numpy().astype(np.int64) - 1


def compute_half_width(value_Q: np.ndarray, group_Q: np.ndarray) -> float:
    """Return the half width of the 95 % confidence interval of a mean over rows, with the standard error that is robust
    to groups (Liang and Zeger 1986; the linearised error of a ratio, with Student's t for C - 1 degrees of freedom):

        error^2 = C / (C - 1) * sum_c (sum of (value - mean) over group c)^2 / Q^2

    Rows without a value (NaN) are left out. NaN with fewer than two groups."""
    known_Q = ~np.isnan(value_Q)
    value_Q = value_Q[known_Q]
    group_Q = np.unique(group_Q[known_Q], return_inverse=True)[1]
    groups = int(group_Q.max(initial=-1)) + 1
    if groups < 2:
        return float("nan")
    off_C = sum_by_group(value_Q - value_Q.mean(), group_Q)
    variance = groups / (groups - 1) * (off_C**2).sum()
    error = np.sqrt(variance) / len(value_Q)
    return float(stdtrit(groups - 1, 0.975) * error)


def describe_groups(groups: int) -> str:
    """Say how exactly at least two groups show a metric: the half width of the 95 % confidence interval if it is 0 for
    half of them and 1 for the others, which is the widest for metrics from 0 to 1."""
    width = stdtrit(groups - 1, 0.975) * 0.5 / np.sqrt(groups - 1)
    if width > 0.5:
        return f"{groups} groups of queries, too few to show a metric"
    return f"{groups} groups of queries, which show a metric to ± {width:.2f} or better"


def list_half_widths(
    per_query: Mapping[str, np.ndarray], names: Sequence[str], group_Q: np.ndarray, prefix: str = ""
) -> dict[str, float]:
    """Return `{prefix}NAME/interval` -> half width, to 6 places, for the metrics that exist. NaN is left out."""
    found = {}
    for name in names:
        if name in per_query:
            width = compute_half_width(per_query[name], group_Q)
            if not np.isnan(width):
                found[f"{prefix}{name}/interval"] = round(width, 6)
    return found


def compute_p_value(
    before_C: np.ndarray, after_EC: np.ndarray, seed: int = 0, *, chosen: int | None = None
) -> float:
    """Return the p-value of the best of several evaluations against the one before: a one-sided randomization test
    (Smucker, Allan and Carterette, CIKM 2007) whose statistic is the largest mean difference of all evaluations.

    The choice of the best on the same rows is corrected for: under the null hypothesis a group's differences have
    either sign with equal probability, in all evaluations at once, and the largest difference of each draw is compared
    with the observed one (max-T; Westfall and Young 1993). before_C, after_EC: sums over groups, higher is better.
    chosen: the evaluation whose difference is the observed one, if another measure chose it. None: the best one."""
    difference_EC = np.atleast_2d(after_EC) - before_C
    difference_EC = difference_EC[:, np.any(difference_EC != 0, axis=0)]
    groups = difference_EC.shape[1]
    if not groups:
        return 1.0
    totals_E = difference_EC.sum(1)
    observed = float(totals_E.max() if chosen is None else totals_E[chosen])
    random = np.random.default_rng(seed)
    observed -= 1e-9 * max(1.0, abs(observed))  # sums that differ by rounding only are equal
    reached = 1
    at_once = max(1, FLIPS_AT_ONCE // groups)
    for start in range(0, FLIPS, at_once):
        shape = min(at_once, FLIPS - start), groups
        sign_BC = random.integers(0, 2, shape, dtype=np.int8) * 2.0 - 1.0
        largest_B = (sign_BC @ difference_EC.T).max(1)
        reached += int((largest_B >= observed).sum())
    return reached / (FLIPS + 1)


def count_changed(before_C: np.ndarray, after_C: np.ndarray) -> int:
    """Return the number n of groups that changed. The smallest p-value of one evaluation is 2**-n."""
    return int(np.count_nonzero(after_C != before_C))


def loses(before_C: np.ndarray, after_C: np.ndarray) -> bool:
    """Return whether a metric fell by more than its standard error, sqrt(sum_c difference_c^2) in sums over groups."""
    difference_C = after_C - before_C
    error = np.sqrt((difference_C**2).sum())
    return bool(difference_C.sum() < -error)
