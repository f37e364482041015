"""Multi-turn generation: a turn of all conversations is answered before the next one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ratchet.errors import ModelError
from ratchet.models.decoder.conversation import Conversations
from ratchet.models.decoder.decoder import Decoder
from ratchet.models.decoder.sampling import Sampling, generate


@dataclass
class ConversationState:
    """A conversation so far, and its token counts as an API would bill them."""

    name: str
    """The seed of each answer is derived from this name and the number of the turn."""
    system: str
    questions: Sequence[str]
    answers: list[str] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    """Whether the answer of each turn reached `max_new_tokens` without an end token or a stop string."""
    prompt_tokens: int = 0
    """Prompt tokens of all requests, each of which holds the whole conversation so far."""
    new_prompt_tokens: int = 0
    """Prompt tokens that were not part of the previous request or its answer."""
    generated_tokens: int = 0
    length: int = 0
    """Tokens up to the end of the last answer."""

    @property
    def next_name(self) -> str:
        """The name from which the next answer's seed is derived."""
        return f"{self.name}/{len(self.answers)}"

    def add(
        self,
        prompt: Sequence[int],
        ids: Sequence[int],
        conversations: Conversations,
        sampling: Sampling,
    ) -> None:
        """Add the generated tokens of the next answer."""
        answer = conversations.decode(ids)
        ended = any(token in conversations.ends for token in ids) or any(
            stop in answer for stop in sampling.stop
        )
        self.prompt_tokens += len(prompt)
        self.new_prompt_tokens += len(prompt) - self.length
        self.generated_tokens += len(ids)
        self.length = len(prompt) + len(ids)
        self.answers.append(answer)
        self.truncated.append(len(ids) >= sampling.max_new_tokens and not ended)


def tokenize_prompts(
    talks: Sequence[ConversationState],
    conversations: Conversations,
    max_prompt_length: int | None = None,
) -> list[list[int]]:
    """Return the token ids of each conversation up to its next answer. Raises ModelError for a prompt of more than
    `max_prompt_length` tokens: prompts are not truncated."""
    asked = [(talk.system, talk.questions[: len(talk.answers) + 1], talk.answers) for talk in talks]
    prompts = [tokens.ids for tokens in conversations.tokenize_samples(asked)]
    for talk, ids in zip(talks, prompts, strict=True):
        if max_prompt_length is not None and len(ids) > max_prompt_length:
            raise ModelError(
                f"prompt of {talk.name}: {len(ids)} tokens; expected at most {max_prompt_length}; raise"
                " max_prompt_length, or leave it out"
            )
    return prompts


def converse(
    decoder: Decoder,
    talks: Sequence[ConversationState],
    sampling: Sampling,
    *,
    batch_tokens: int = 16_384,
    max_prompt_length: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Add all answers to `talks`. Raises ModelError for a prompt of more than `max_prompt_length` tokens.

    progress(answers, generated tokens) is called after each batch, with the counts of that batch."""
    while going := [talk for talk in talks if len(talk.answers) < len(talk.questions)]:
        prompts = tokenize_prompts(going, decoder.conversations, max_prompt_length)
        names = [talk.next_name for talk in going]
        found = generate(
            decoder, prompts, names, sampling, batch_tokens=batch_tokens, progress=progress
        )
        for talk, prompt, ids in zip(going, prompts, found, strict=True):
            talk.add(prompt, ids, decoder.conversations, sampling)
