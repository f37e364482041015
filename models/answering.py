"""Whole conversations: a turn of all of them is answered before the next is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from models.conversation import Conversations
from models.decoder import Decoder
from models.errors import ModelError
from models.sampling import Sampling, generate


@dataclass
class Talk:
    """A conversation as far as it is, and its tokens as they would be paid for."""

    name: str
    """What its randomness follows from, with the turn's number."""
    system: str
    questions: Sequence[str]
    answers: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    """Of all requests: each holds the whole conversation so far."""
    new_prompt_tokens: int = 0
    """The same without what stood in the request before, or was its answer."""
    generated_tokens: int = 0
    length: int = 0
    """Tokens up to the end of the last answer."""

    @property
    def next_name(self) -> str:
        """What the next answer's randomness follows from."""
        return f"{self.name}/{len(self.answers)}"

    def prompt(self, conversations: Conversations, max_prompt: int | None = None) -> list[int]:
        """Token ids up to where the next answer begins. Raises ModelError for more than `max_prompt`: none is cut."""
        asked = self.questions[: len(self.answers) + 1]
        ids = conversations.prompt(self.system, asked, self.answers)
        if max_prompt is not None and len(ids) > max_prompt:
            raise ModelError(
                f"prompt of {self.name}: {len(ids)} tokens; expected at most {max_prompt}; raise max_prompt, or leave"
                " it out"
            )
        return ids

    def add(self, prompt: Sequence[int], ids: Sequence[int], answer: str) -> None:
        self.prompt_tokens += len(prompt)
        self.new_prompt_tokens += len(prompt) - self.length
        self.generated_tokens += len(ids)
        self.length = len(prompt) + len(ids)
        self.answers.append(answer)


def converse(
    decoder: Decoder,
    talks: Sequence[Talk],
    sampling: Sampling,
    *,
    batch_tokens: int = 16_384,
    max_prompt: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Fills each talk's answers. Raises ModelError for a prompt of more than `max_prompt` tokens: none is cut.

    progress(answers done, tokens generated) is called per batch.
    """
    answers = tokens = 0

    def tell(more_answers: int, more_tokens: int) -> None:
        if progress:
            progress(answers + more_answers, tokens + more_tokens)

    while going := [talk for talk in talks if len(talk.answers) < len(talk.questions)]:
        prompts = [talk.prompt(decoder.conversations, max_prompt) for talk in going]
        names = [talk.next_name for talk in going]
        found = generate(decoder, prompts, names, sampling, batch_tokens=batch_tokens, progress=tell)
        for talk, prompt, ids in zip(going, prompts, found, strict=True):
            talk.add(prompt, ids, decoder.conversations.text(ids))
        answers, tokens = answers + len(going), tokens + sum(map(len, found))
