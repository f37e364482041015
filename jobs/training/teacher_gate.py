"""The teacher gate: a reranker is used as a teacher only if it significantly improves the held-out lists.

`finetune_reranker` writes the gate, and `rerank` reads it before it scores lists for distillation. If the gate is
closed, `rerank` copies the lists without scores, and the gate; finetuning jobs then learn from the labels alone
(`drop_refused_teacher`). The reason: a teacher that is worse than its student does
harm. Without held-out lists no improvement can be shown, and the gate is closed. The setting teacher_gate=open opens it
in all cases.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from ratchet.data.triplets import Triplets
from ratchet.jobs.training.config import RetrievalFinetuneConfig

NAME = "teacher_gate.json"

C = TypeVar("C", bound=RetrievalFinetuneConfig)

SIGNIFICANCE_LEVEL = 0.05
"""The p-value must be below this. With a few hundred held-out queries, an improvement of 0.02 MAP may be chance."""

TEACHER_MARGIN = 4.0
"""Mean margin of a teacher's scores after division by the temperature. Teachers with margins of 3.8, 12.8 and 14.9 were
distilled best after scaling to margins of 3.5 to 5: see docs/laboratory/teachers.md."""


@dataclass(frozen=True)
class TeacherGate:
    metric: str
    """Name of the metric, such as map@25."""
    before: float | None
    """The metric of the held-out lists before reranking. None: nothing is held out."""
    after: float | None
    """The metric of the same lists after reranking. None: nothing is held out."""
    p_value: float
    """The p-value of the improvement; see `ratchet.data.significance.compute_p_value`."""
    setting: str = "tested"
    """The setting `finetune_reranker.teacher_gate`."""

    @property
    def is_open(self) -> bool:
        """Whether the reranker is used as a teacher."""
        return self.setting == "open" or self.p_value < SIGNIFICANCE_LEVEL

    def __str__(self) -> str:
        answer = "yes" if self.is_open else "no"
        if self.setting == "open":
            answer = "yes, by the setting teacher_gate=open"
        if self.before is None:
            return f"{answer}: nothing is held out, nothing was compared"
        values = f"{self.metric} of held-out lists {self.before:.4f}, reranked {self.after:.4f}"
        return f"{answer}: {values}, p {self.p_value:.2g}"

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / NAME).write_text(json.dumps(asdict(self), indent=1) + "\n")


def read(folder: Path) -> TeacherGate:
    """Read the gate in a folder."""
    return TeacherGate(**json.loads((folder / NAME).read_text()))


def drop_refused_teacher(config: C, mined: Path) -> C:
    """Return the config, without distillation if a closed gate is beside the mined lists: they have no scores."""
    if (mined / NAME).is_file():
        return replace(config, distillation="none")
    return config


def find_teacher_temperature(config: RetrievalFinetuneConfig, triplets: Triplets) -> float:
    """Return the temperature of the teacher's scores: the setting, or one that makes the margin TEACHER_MARGIN."""
    if config.distillation == "none":
        return 1.0
    return config.teacher_temperature or triplets.teacher_margin / TEACHER_MARGIN
