"""What a reranker does to held-out lists, and what follows: one that does not clearly better them does not teach.

`finetune_reranker` writes it; `score` reads it before it scores lists to teach from, and hands them on unscored, with
the reason beside them; finetunes that were to distil then learn from the labels alone. A teacher that is worse than
what it teaches costs more than it gives.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from jobs.finetuning import Lists

NAME = "standing.json"

LEVEL = 0.05
"""Of the test that a reranker must pass. A few hundred held-out queries cannot tell two hundredths of MAP: of such a
lead nothing may be left on other queries, while a teacher that is worse than the lists does harm."""

L = TypeVar("L", bound=Lists)


@dataclass(frozen=True)
class Standing:
    metric: str
    """Such as map@25."""
    before: float
    """Of the held-out lists as they were."""
    after: float
    """Of the same lists, reranked."""
    p_value: float
    """How likely such a lead is, query by query, where there is none: see `p_value`."""

    @property
    def teaches(self) -> bool:
        return self.p_value < LEVEL

    def __str__(self) -> str:
        verdict = "yes" if self.teaches else "no"
        values = f"{self.metric} of held-out lists {self.before:.4f}, reranked {self.after:.4f}"
        return f"{verdict}: {values}, p {self.p_value:.2g}"

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / NAME).write_text(json.dumps(asdict(self), indent=1) + "\n")


def p_value(before: Sequence[float], after: Sequence[float]) -> float:
    """Of a metric's values query by query: one-sided paired t-test (Smucker, Allan and Carterette, CIKM 2007, find it
    as good as a randomization test for such metrics). 1 where nothing differs."""
    from scipy.stats import ttest_rel

    if len(before) < 2 or list(before) == list(after):
        return 1.0
    found = float(ttest_rel(after, before, alternative="greater").pvalue)
    return 1.0 if math.isnan(found) else found  # leads that are nothing but rounding


def read(folder: Path) -> Standing:
    return Standing(**json.loads((folder / NAME).read_text()))


def heard(config: L, mined: Path) -> L:
    """The settings of a finetune, without distillation where `score` found no teacher for these lists."""
    silent = (mined / NAME).is_file() and not read(mined).teaches
    return replace(config, distillation="none") if silent else config
