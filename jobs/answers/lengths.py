"""Limits of lengths in tokens. A limit that is not given fits the positions of the model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.models.model_files import count_learned_positions


@dataclass(frozen=True)
class Limit:
    name: str
    """The setting."""
    default: int
    answered: bool = True
    """Whether the tokens of an answer, `max_new_tokens`, need positions too."""

    def resolve(self, config: Any, folder: Path | None) -> int:
        """Return the limit that is set, else the default, or what a model's learned positions leave of it. folder:
        None: the model is not made yet."""
        given = getattr(config, self.name)
        if given is not None:
            return given
        positions = None
        if folder is not None:
            positions = count_learned_positions(folder)
        if positions is None:
            return self.default
        if self.answered:
            positions -= config.max_new_tokens
        return max(1, min(self.default, positions))

    def describe(self, config: Any, folder: Path | None) -> str:
        """Return a note for the plan on a limit that is not set and is below its default; empty for others."""
        fitting = self.resolve(config, folder)
        if getattr(config, self.name) is None and fitting < self.default:
            return f"{self.name}={fitting}, by the positions of the model"
        return ""


SAMPLE = Limit("max_length", 2048, answered=False)
"""Samples of `sft` and `teacher_logprobs`."""
PROMPT = Limit("max_prompt_length", 4096)
"""Prompts of `generate`."""
GRPO_PROMPT = Limit("max_prompt_length", 1024)
DISTILLED = Limit("max_length", 2048)
"""Samples of `distill`, whose prompts the student also answers."""
