"""Limits of lengths in tokens. A limit that is not given fits the positions of the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ratchet.models.model_files import count_learned_positions


@dataclass(frozen=True)
class Limit:
    name: str
    """The setting."""
    default: int

    def resolve(self, given: int | None, folder: Path | None, used: int = 0) -> int:
        """Return the given limit, else the default, or what a model's learned positions leave of it beside `used`
        tokens. folder: None: the model is not made yet."""
        if given is not None:
            return given
        if folder is None:
            return self.default
        positions = count_learned_positions(folder)
        if positions is None:
            return self.default
        return max(1, min(self.default, positions - used))

    def describe(self, given: int | None, folder: Path | None, used: int = 0) -> str:
        """Return a note for the plan on a limit that was not given and is below its default; empty for others."""
        fitting = self.resolve(given, folder, used)
        if given is None and fitting < self.default:
            return f"{self.name}={fitting}, by the positions of the model"
        return ""


SAMPLE = Limit("max_length", 2048)
"""Samples of `sft` and `teacher_logprobs`."""
PROMPT = Limit("max_prompt_length", 4096)
"""Prompts of `generate`."""
GRPO_PROMPT = Limit("max_prompt_length", 1024)
