"""Conversations as token ids, and which of them are the model's own: what it is trained on, and where it is to stop.

A conversation is rendered by the tokenizer's chat template and cut into segments at the places where the model begins
and ends to speak; each segment is tokenised by itself. So the tokens before an answer are the same in training and in
generation, and a label never begins inside a token.

    segment     <|im_start|>user ... <|im_end|> <|im_start|>assistant | 42 <|im_end|> | \\n<|im_start|>user ...
    trained     no                                                     | yes          | no
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from models.errors import ModelError

PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}{{ message.content }}{{ eos_token }}"
    "{% else %}{{ message.content }}\n\n{% endif %}"
    "{% endfor %}"
)
"""For tokenizers without one: the texts one after the other, an answer closed by the end-of-sequence token."""


@dataclass(frozen=True)
class Tokens:
    """Token ids, and of each whether it is the model's own (a label)."""

    ids: list[int]
    trained: list[bool]

    @property
    def labels(self) -> int:
        """How many are."""
        return sum(self.trained)


class Conversations:
    """Renders by one tokenizer. Raises ModelError for one without an end-of-sequence token."""

    def __init__(self, tokenizer: Any) -> None:
        if tokenizer.eos_token_id is None:
            raise ModelError(
                f"tokenizer {tokenizer.name_or_path}: no end-of-sequence token; expected one, or answers never end;"
                " set eos_token in tokenizer_config.json"
            )
        if not tokenizer.chat_template:
            tokenizer.chat_template = PLAIN_TEMPLATE
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        self.tokenizer = tokenizer
        self.ends = self._ends()

    def prompt(self, system: str, questions: Sequence[str], answers: Sequence[str]) -> list[int]:
        """Token ids up to where the model answers the last question; answers: to all questions but that one."""
        ids: list[int] = []
        for segment, _ in self._segments(system, questions, answers):
            ids += self._ids(segment)
        return ids

    def example(self, system: str, questions: Sequence[str], answers: Sequence[str]) -> Tokens:
        """A whole conversation. Every answer is trained on up to and with the token that ends it."""
        ids: list[int] = []
        trained: list[bool] = []
        for segment, own in self._segments(system, questions, answers):
            found = self._ids(segment)
            if own:
                stop = next((at for at, token in enumerate(found) if token in self.ends), None)
                if stop is None:
                    found, stop = [*found, self.tokenizer.eos_token_id], len(found)
                trained += [True] * (stop + 1) + [False] * (len(found) - stop - 1)
            else:
                trained += [False] * len(found)
            ids += found
        return Tokens(ids, trained)

    def text(self, ids: Sequence[int]) -> str:
        """What was generated, without the token that ended it and what stands behind."""
        stop = next((at for at, token in enumerate(ids) if token in self.ends), len(ids))
        return self.tokenizer.decode(ids[:stop], skip_special_tokens=True)

    def _ends(self) -> frozenset[int]:
        """The tokens that end an answer: the tokenizer's own, and the one that the template closes answers with."""
        (_, _), (answer, _) = self._segments("", ["a"], ["b"])
        special = set(self.tokenizer.all_special_ids)
        closing = next((token for token in self._ids(answer) if token in special), None)
        return frozenset({self.tokenizer.eos_token_id} | ({closing} if closing is not None else set()))

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _segments(self, system: str, questions: Sequence[str], answers: Sequence[str]) -> list[tuple[str, bool]]:
        """(text, whether it is the model's), in turns."""
        messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
        segments: list[tuple[str, bool]] = []
        done = ""
        for number, question in enumerate(questions):
            messages.append({"role": "user", "content": question})
            asked = self._rendered(messages, True)
            segments.append((self._rest(asked, done), False))
            done = asked
            if number < len(answers):
                messages.append({"role": "assistant", "content": answers[number]})
                said = self._rendered(messages, False)
                segments.append((self._rest(said, done), True))
                done = said
        return segments

    def _rendered(self, messages: list[dict[str, str]], answering: bool) -> str:
        try:
            return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=answering)
        except Exception as error:  # the template is a program of the model's makers, which raises what it likes
            raise ModelError(
                f"tokenizer {self.tokenizer.name_or_path}: its chat template cannot render roles"
                f" {[message['role'] for message in messages]} ({error}); expected it to; give another template"
            ) from None

    def _rest(self, text: str, before: str) -> str:
        if not text.startswith(before):
            raise ModelError(
                f"tokenizer {self.tokenizer.name_or_path}: its chat template writes what was said anew when a"
                " conversation goes on; expected it to append; give a template that does, or a task of one turn"
            )
        return text[len(before) :]
