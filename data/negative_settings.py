"""Settings of the selection of hard negatives. Plans read them, so nothing heavy is imported here."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Interval


@dataclass(frozen=True)
class NegativeSettings:
    """Settings of the selection of negatives. Similarities are those of the ranking."""

    window: tuple[int, int] = (2, 200)
    """Ranks that negatives are drawn from, counted from 0: from the first number up to, but not including, the second.
    Positives in the window are dropped."""
    num_negatives: Annotated[int, Ge(1)] = 15
    """Number of negatives per query. Missing negatives are drawn at random from the candidates."""
    sampling_strategy: Literal["random", "top"] = "random"
    """`random`: draw negatives from the window at random. `top`: take the best-ranked ones of the window."""
    absolute_margin: Annotated[float, Interval(ge=0, le=2)] | None = None
    """The similarity of a negative is at most that of the best positive minus this margin. None: no limit."""
    percent_of_positive: Annotated[float, Interval(ge=0, le=2)] | None = None
    """The similarity of a negative is at most this fraction of the best positive's (TopK-PercPos of NV-Retriever, which
    uses 0.95). None: no limit."""
    max_score: float | None = None
    """Maximum similarity of a negative. None: no limit."""
    min_score: float | None = None
    """Minimum similarity of a negative. None: no limit."""

    def ceiling(self, positive: float) -> float:
        """Return the highest similarity that a negative may have, given the similarity of the best positive."""
        limits = [math.inf if self.max_score is None else self.max_score]
        if self.absolute_margin is not None:
            limits.append(positive - self.absolute_margin)
        if self.percent_of_positive is not None:
            # If the similarity is negative, a plain fraction of it would be above it.
            limits.append(positive - (1 - self.percent_of_positive) * abs(positive))
        return min(limits)
