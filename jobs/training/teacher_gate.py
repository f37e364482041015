"""The teacher gate: a reranker is used as a teacher only if it significantly improves the held-out lists.

`finetune_reranker` writes the gate. `rerank` reads it before it scores lists for distillation; if the gate is closed,
it hands the lists on without scores, together with the gate, and finetuning jobs learn from the labels alone. A teacher
that is worse than its student does harm. Without held-out lists nothing shows an improvement, and the gate is closed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from ratchet.jobs.training.config import RetrievalFinetuneConfig

NAME = "teacher_gate.json"

SIGNIFICANCE_LEVEL = 0.05
"""Largest p-value of a teacher. With a few hundred held-out queries, an improvement of 0.02 MAP may be chance."""

C = TypeVar("C", bound=RetrievalFinetuneConfig)


@dataclass(frozen=True)
class TeacherGate:
    metric: str
    """Such as map@25."""
    before: float | None
    """The metric of the held-out lists as they were. None: nothing is held out."""
    after: float | None
    """The metric of the same lists, reranked."""
    p_value: float
    """The p-value of the improvement; see `ratchet.data.significance.compute_p_value`."""

    @property
    def is_open(self) -> bool:
        """Whether the reranker is used as a teacher."""
        return self.p_value < SIGNIFICANCE_LEVEL

    def __str__(self) -> str:
        if self.before is None:
            return "no: nothing is held out, nothing was compared"
        answer = "yes" if self.is_open else "no"
        values = f"{self.metric} of held-out lists {self.before:.4f}, reranked {self.after:.4f}"
        return f"{answer}: {values}, p {self.p_value:.2g}"

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / NAME).write_text(json.dumps(asdict(self), indent=1) + "\n")


def read(folder: Path) -> TeacherGate:
    """Read the gate in a folder."""
    return TeacherGate(**json.loads((folder / NAME).read_text()))


def resolve_distillation(config: C, mined: Path) -> C:
    """Return the config without distillation if the mined lists come with a closed gate, else as it is."""
    closed = (mined / NAME).is_file() and not read(mined).is_open
    return replace(config, distillation="none") if closed else config
