"""What a reranker does to held-out lists, and what follows: one that orders them no better than before does not teach.

`finetune_reranker` writes it; `score` reads it before it scores lists to teach from, and hands them on unscored, with
the reason beside them; finetunes that were to distil then learn from the labels alone. A teacher that is worse than
what it teaches costs more than it gives.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from jobs.finetuning import Lists
from jobs.optimization import better

NAME = "standing.json"

L = TypeVar("L", bound=Lists)


@dataclass(frozen=True)
class Standing:
    metric: str
    """Such as map@25."""
    before: float
    """Of the held-out lists as they were."""
    after: float
    """Of the same lists, reranked."""

    @property
    def teaches(self) -> bool:
        return better(self.metric, {self.metric: self.after}, {self.metric: self.before})

    def __str__(self) -> str:
        verdict = "yes" if self.teaches else "no"
        return f"{verdict}: {self.metric} of held-out lists {self.before:.4f}, reranked {self.after:.4f}"

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / NAME).write_text(json.dumps(asdict(self), indent=1) + "\n")


def read(folder: Path) -> Standing:
    return Standing(**json.loads((folder / NAME).read_text()))


def heard(config: L, mined: Path) -> L:
    """The settings of a finetune, without distillation where `score` found no teacher for these lists."""
    silent = (mined / NAME).is_file() and not read(mined).teaches
    return replace(config, distillation="none") if silent else config
