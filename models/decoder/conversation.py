"""Tokenization of conversations, with labels on the assistant's tokens.

A conversation is rendered by the tokenizer's chat template and split where the assistant's answers begin and end; each
segment is tokenized separately. Therefore the tokens before an answer are the same in training and in generation, and
a label never begins inside a token.

    segment     <|im_start|>user ... <|im_end|> <|im_start|>assistant | 42 <|im_end|> | \\n<|im_start|>user ...
    trained     no                                                     | yes          | no
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, zip_longest
from typing import Any

from ratchet.errors import ModelError

PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}{{ message.content }}{{ eos_token }}"
    "{% else %}{{ message.content }}\n\n{% endif %}"
    "{% endfor %}"
)
"""Chat template for tokenizers without one: the texts in order, answers closed by the end-of-sequence token. The tokens
that the tokenizer puts in front of every text (Llama, Gemma) stand in front of the conversation."""


@dataclass(frozen=True)
class Tokens:
    """Token ids, and whether each is a label (part of the assistant's answer)."""

    ids: list[int]
    trained: list[bool]

    @property
    def labels(self) -> int:
        """Number of labels."""
        return sum(self.trained)


class Conversations:
    """Renderer and tokenizer of conversations. Raises ModelError for a tokenizer without an end-of-sequence token, and
    for template arguments that change nothing."""

    def __init__(self, tokenizer: Any, template_arguments: Mapping[str, Any] | None = None) -> None:
        if tokenizer.eos_token_id is None:
            raise ModelError(
                f"tokenizer {tokenizer.name_or_path}: no end-of-sequence token; expected one, or answers never end;"
                " set eos_token in tokenizer_config.json"
            )
        if not tokenizer.chat_template:
            tokenizer.chat_template = PLAIN_TEMPLATE
        elif isinstance(tokenizer.chat_template, str):
            # Else Llama 3.2 writes today's date, and the prompts of a run would change at midnight.
            tokenizer.chat_template = tokenizer.chat_template.replace("strftime_now is defined", "false")
        self.start = _find_start_tokens(tokenizer) if tokenizer.chat_template == PLAIN_TEMPLATE else []
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        self.tokenizer, self.arguments = tokenizer, dict(template_arguments or {})
        for name in self.arguments:
            self._check_used(name)
        self.ends = self._find_end_tokens()
        pad, special = tokenizer.pad_token_id, tokenizer.all_special_ids
        # Padding after an answer's end. If possible it ends no answer, so that it differs from the answer's last token.
        self.filler = next((token for token in (pad, *special) if token not in self.ends), pad)

    def tokenize_sample(self, system: str, questions: Sequence[str], answers: Sequence[str]) -> Tokens:
        """Tokenize a conversation. Labels are the answers, each with the token that ends it. With one answer fewer than
        questions, the conversation stops where the next answer begins."""
        return self.tokenize_samples([(system, questions, answers)])[0]

    def tokenize_samples(self, talks: Iterable[tuple[str, Sequence[str], Sequence[str]]]) -> list[Tokens]:
        """Tokenize many (system, questions, answers) as `tokenize_sample` does. Fast tokenizers use all processors."""
        split = [self._split_segments(*talk) for talk in talks]
        texts = [text for segments in split for text, _ in segments]
        ids = iter(self.tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else ())
        return [self._join_segments((next(ids), is_answer) for _, is_answer in segments) for segments in split]

    def _join_segments(self, segments: Iterable[tuple[list[int], bool]]) -> Tokens:
        ids, trained = list(self.start), [False] * len(self.start)
        for found, is_answer in segments:
            labels = 0
            if is_answer:
                if not self.ends.intersection(found):
                    found = [*found, self.tokenizer.eos_token_id]
                labels = next(number for number, token in enumerate(found, 1) if token in self.ends)
            trained += [True] * labels + [False] * (len(found) - labels)
            ids += found
        return Tokens(ids, trained)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode a generated answer, without the token that ended it and what follows."""
        stop = next((at for at, token in enumerate(ids) if token in self.ends), len(ids))
        return self.tokenizer.decode(ids[:stop], skip_special_tokens=True)

    def _check_used(self, name: str) -> None:
        talk = [{"role": role, "content": "a"} for role in ("user", "assistant", "user")]
        given, rendered = self.arguments, []
        for self.arguments in ({key: value for key, value in given.items() if key != name}, given):
            rendered.append([self._render(talk[:end], end != 2) for end in (1, 2, 3)])
        if rendered[0] == rendered[1]:
            raise ModelError(
                f"tokenizer {self.tokenizer.name_or_path}: its chat template renders the same without"
                f" {name}={given[name]!r}; expected an argument that it uses; leave it out of chat_template_kwargs"
            )

    def _find_end_tokens(self) -> frozenset[int]:
        """The tokens that end an answer: the end-of-sequence token, and the one with which the template closes
        answers."""
        (_, _), (answer, _) = self._split_segments("", ["a"], ["b"])
        special = set(self.tokenizer.all_special_ids)
        closing = [token for token in self.tokenizer(answer, add_special_tokens=False)["input_ids"] if token in special]
        return frozenset([self.tokenizer.eos_token_id, *closing[:1]])

    def _split_segments(self, system: str, questions: Sequence[str], answers: Sequence[str]) -> list[tuple[str, bool]]:
        """Return the segments (text, whether it is an answer), alternating."""
        messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
        segments: list[tuple[str, bool]] = []
        done = ""
        texts = [text for turn in zip_longest(questions, answers) for text in turn if text is not None]
        for text, role in zip(texts, cycle(("user", "assistant")), strict=False):
            messages.append({"role": role, "content": text})
            rendered = self._render(messages, role == "user")
            segments.append((self._remove_prefix(rendered, done), role == "assistant"))
            done = rendered
        return segments

    def _render(self, messages: list[dict[str, str]], answering: bool) -> str:
        try:
            options = {"tokenize": False, "add_generation_prompt": answering}
            return self.tokenizer.apply_chat_template(messages, **options, **self.arguments)
        except Exception as error:  # a template can raise anything
            raise ModelError(
                f"tokenizer {self.tokenizer.name_or_path}: its chat template cannot render roles"
                f" {[message['role'] for message in messages]} ({error}); expected it to; give another template"
            ) from None

    def _remove_prefix(self, text: str, before: str) -> str:
        if not text.startswith(before):
            raise ModelError(
                f"tokenizer {self.tokenizer.name_or_path}: its chat template rewrites earlier turns; expected"
                " it to append; use a template that does, or a task with one turn"
            )
        return text[len(before) :]


def _find_start_tokens(tokenizer: Any) -> list[int]:
    """Return the special tokens that a tokenizer puts in front of every text."""
    (text,) = tokenizer("a", add_special_tokens=False)["input_ids"][:1] or [None]
    ids: list[int] = tokenizer("a")["input_ids"]
    return ids[: ids.index(text)] if text in ids else []
