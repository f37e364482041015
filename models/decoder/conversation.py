"""Tokenization of conversations, with labels on the assistant's tokens.

A conversation is rendered by the tokenizer's chat template and split where the assistant's answers begin and end; each
segment is tokenized separately. Therefore the tokens before an answer are the same in training and in generation, and
a label never begins inside a token.

    segment     <|im_start|>user ... <|im_end|> <|im_start|>assistant | 42 <|im_end|> | \\n<|im_start|>user ...
    trained     no                                                     | yes          | no
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import cycle, groupby, zip_longest
from operator import itemgetter
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

DATE = date(2024, 7, 26)
"""The date in prompts, in place of today's: prompts of a run would change at midnight. Llama 3 has it as its own."""
CALL = re.compile(r"""strftime_now\(\s*(['"])([^'"]*)\1\s*\)""")

PROBE = ("Question one?", "Answer 42.", "Question two?")
"""Question, answer and next question, from which a template's end of an answer is found."""


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
    """Renderer and tokenizer of conversations.

    generation_ends: further tokens that end an answer. Raises ModelError for a tokenizer without an end-of-sequence
    token, for template arguments that the template does not name, and for a template whose prompts or ends of answers
    are not those of the conversations that it renders."""

    def __init__(
        self,
        tokenizer: Any,
        template_arguments: Mapping[str, Any] | None = None,
        generation_ends: Iterable[int] = (),
    ) -> None:
        if tokenizer.eos_token_id is None:
            raise ModelError(
                f"tokenizer {tokenizer.name_or_path}: no end-of-sequence token; expected one, or answers never end;"
                " set eos_token in tokenizer_config.json"
            )
        if not tokenizer.chat_template:
            tokenizer.chat_template = PLAIN_TEMPLATE
        tokenizer.chat_template = _fix_date(tokenizer.chat_template)
        self.start: list[int] = []
        if tokenizer.chat_template == PLAIN_TEMPLATE:
            self.start = _find_start_tokens(tokenizer)
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        self.tokenizer = tokenizer
        self.arguments = dict(template_arguments or {})
        for name in self.arguments:
            if name not in tokenizer.chat_template:
                raise self._refuse(
                    f"does not use {name}; expected an argument that it uses; leave it out of chat_template_kwargs"
                )
        self._check_prompt()
        self.end, self.begins_turn = self._find_end()
        """The text of the token that ends an answer, and whether it also begins the next turn (GLM)."""
        known = set(tokenizer.get_added_vocab().values()).intersection(generation_ends)
        self.ends = frozenset(
            [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(self.end), *known]
        )
        """Tokens that end an answer in generation."""
        pad = tokenizer.pad_token_id
        special = tokenizer.all_special_ids
        # Padding after an answer's end. If possible it ends no answer, so that it differs from the answer's last token.
        self.filler = next((token for token in (pad, *special) if token not in self.ends), pad)

    def tokenize_sample(
        self, system: str, questions: Sequence[str], answers: Sequence[str]
    ) -> Tokens:
        """Tokenize a conversation. Labels are the answers, each with the token that ends it. With one answer fewer than
        questions, the conversation stops where the next answer begins."""
        return self.tokenize_samples([(system, questions, answers)])[0]

    def tokenize_samples(
        self, talks: Iterable[tuple[str, Sequence[str], Sequence[str]]], *, exact: bool = False
    ) -> list[Tokens]:
        """Tokenize many (system, questions, answers) as `tokenize_sample` does. Fast tokenizers use all processors.
        exact: raise ModelError for an answer that the template does not render whole."""
        split = [self._split_segments(*talk, exact=exact) for talk in talks]
        texts = []
        for segments in split:
            for text, _ in segments:
                texts.append(text)
        ids = iter(self.tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else ())
        found = []
        for segments in split:
            found.append(self._join_segments((next(ids), is_answer) for _, is_answer in segments))
        return found

    def _join_segments(self, segments: Iterable[tuple[list[int], bool]]) -> Tokens:
        ids = list(self.start)
        trained = [False] * len(self.start)
        for found, is_answer in segments:
            labels = 0
            if is_answer:
                if not self.ends.intersection(found):
                    found = [*found, self.tokenizer.convert_tokens_to_ids(self.end)]
                labels = next(number for number, token in enumerate(found, 1) if token in self.ends)
            trained += [True] * labels + [False] * (len(found) - labels)
            ids += found
        return Tokens(ids, trained)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode a generated answer, without the token that ended it and what follows."""
        stop = next((at for at, token in enumerate(ids) if token in self.ends), len(ids))
        return self.tokenizer.decode(ids[:stop], skip_special_tokens=True)

    def check_turns(self, turns: int, system: bool) -> None:
        """Raise ModelError for a template that cannot render conversations of so many turns, or with a system
        message."""
        question, answer, _ = PROBE
        self.tokenize_sample(
            "Be brief." if system else "", [question] * turns, [answer] * (turns - 1)
        )

    def check_labels(self, turns: int = 1, system: bool = False) -> None:
        """Raise ModelError for a template with which the labels of a sample are not its answers, each with its end.
        turns, system: the number of its turns, and whether it has a system message."""
        question, answer, _ = PROBE
        tokens = self.tokenize_sample(
            "Be brief." if system else "", [question] * turns, [answer] * turns
        )
        pairs = zip(tokens.ids, tokens.trained, strict=True)
        spans = []
        for trained, own in groupby(pairs, key=itemgetter(1)):
            if trained:
                spans.append([token for token, _ in own])
        answer = self.tokenizer.decode(
            self.tokenizer(answer, add_special_tokens=False)["input_ids"]
        )
        wrong = [
            labels
            for labels in spans
            if self.tokenizer.decode(labels[:-1]).strip() != answer.strip()
        ]
        if wrong or len(spans) != turns:
            labels = wrong[0] if wrong else spans[0]
            raise self._refuse(
                f"makes the labels {self.tokenizer.decode(labels)!r} of the answer {answer!r}; expected the answer and"
                " one token that ends it; if the template has an argument for it, such as Qwen3's, set"
                " prepare_tasks.chat_template_kwargs=enable_thinking=false, or give another template"
            )

    def find_end(self, text: str) -> str | None:
        """Return a token of a text that would end it as an answer; None if it has none."""
        tokens: list[str] = self.tokenizer.convert_ids_to_tokens(sorted(self.ends))
        return next((token for token in tokens if token in text), None)

    def _check_prompt(self) -> None:
        question, answer, _ = PROBE
        asked = {"role": "user", "content": question}
        answered = {"role": "assistant", "content": answer}
        prompt = self._render([asked], True)
        sample = self._render([asked, answered], False)
        header, found, _ = self._remove_prefix(sample, prompt).partition(answer)
        if not found:
            raise self._refuse(
                f"does not render the answer {answer!r}; expected its text; give another template"
            )
        if header.strip() and prompt == self._render([asked], False):
            raise self._refuse(
                f"writes {header!r} before an answer, and nothing for add_generation_prompt; expected the same text"
                " there, or answers begin with it; give a template that does"
            )

    def _find_end(self) -> tuple[str, bool]:
        """Return the token with which the template closes answers, or begins the next turn, else the end-of-sequence
        token; and whether it begins the next turn. Raises ModelError for a template that closes answers with text."""
        question, answer, next_question = PROBE
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        closing = self._render(messages, False).rpartition(answer)[2]
        if closing.strip():
            token = self._find_first_token(closing.lstrip())
            if token is None:
                raise self._refuse(
                    f"closes answers with the text {closing!r}; expected a token of its own, such as"
                    f" {self.tokenizer.eos_token!r}; add the token to the tokenizer, or give another template"
                )
            return token, False
        try:
            rendered = self._render([*messages, {"role": "user", "content": next_question}], False)
        except ModelError:  # a template for one turn
            rendered = ""
        token = self._find_first_token(rendered.rpartition(answer)[2].partition(next_question)[0])
        if token is None:
            return (self.tokenizer.eos_token, False)
        return (token, True)

    def _find_first_token(self, text: str) -> str | None:
        """Return the added token, special or not, with which a text begins."""
        return max(
            (token for token in self.tokenizer.get_added_vocab() if text.startswith(token)),
            key=len,
            default=None,
        )

    def _split_segments(
        self, system: str, questions: Sequence[str], answers: Sequence[str], *, exact: bool = False
    ) -> list[tuple[str, bool]]:
        """Return the segments (text, whether it is an answer), alternating."""
        messages: list[dict[str, str]]
        messages = [{"role": "system", "content": system}] if system else []
        segments: list[tuple[str, bool]] = []
        done = ""
        texts = [
            text for turn in zip_longest(questions, answers) for text in turn if text is not None
        ]
        for text, role in zip(texts, cycle(("user", "assistant")), strict=False):
            messages.append({"role": role, "content": text})
            rendered = self._render(messages, role == "user")
            piece = self._remove_prefix(rendered, done)
            if exact and role == "assistant" and text.strip() not in piece:
                raise self._refuse(
                    f"changes the answer {text[:100]!r} to {piece[:100]!r}; expected its whole text, but templates of"
                    " reasoning models drop thoughts; give another template, or answers that it keeps"
                )
            if segments and role == "user" and self.begins_turn and piece.startswith(self.end):
                segments[-1] = (segments[-1][0] + self.end, True)
                piece = piece.removeprefix(self.end)
            segments.append((piece, role == "assistant"))
            done = rendered
        return segments

    def _render(self, messages: list[dict[str, str]], answering: bool) -> str:
        try:
            options = {"tokenize": False, "add_generation_prompt": answering}
            return self.tokenizer.apply_chat_template(messages, **options, **self.arguments)
        except Exception as error:  # a template can raise anything
            raise self._refuse(
                f"cannot render roles {[message['role'] for message in messages]} ({error}); expected it to; give"
                " another template"
            ) from None

    def _remove_prefix(self, text: str, before: str) -> str:
        if not text.startswith(before):
            raise self._refuse(
                "rewrites earlier turns, or the prompt of an answer; expected it to append; use a template that does,"
                " or a task with one turn"
            )
        return text[len(before) :]

    def _refuse(self, problem: str) -> ModelError:
        return ModelError(f"tokenizer {self.tokenizer.name_or_path}: its chat template {problem}")


def _fix_date(template: Any) -> str:
    """Return a chat template with DATE in place of today's date. template: a text, or several by name."""
    if isinstance(template, dict):
        template = template.get("default", "")
    return CALL.sub(lambda call: call[1] + DATE.strftime(call[2]) + call[1], template)


def _find_start_tokens(tokenizer: Any) -> list[int]:
    """Return the special tokens that a tokenizer puts in front of every text."""
    (text,) = tokenizer("a", add_special_tokens=False)["input_ids"][:1] or [None]
    ids: list[int] = tokenizer("a")["input_ids"]
    if text in ids:
        return ids[: ids.index(text)]
    return []
