"""Tokenization by an encoding config: templates, few-shot examples, truncation of the text alone.

A query with examples has the format of bge-en-icl (Li et al. 2024, "Making text embedders few-shot learners"):

    <instruct>task
    <query>an example's query
    <response>its answer

    <instruct>task
    <query>the text
    <response>

Only the text itself is truncated, at its end; template and examples are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ratchet.errors import ModelError
from ratchet.models.embedder.encoding_config import EncodingConfig, Example, Role


class TextTokenizer:
    """Tokenizes texts by an encoding config. Raises ModelError if template and examples leave a query no room."""

    def __init__(self, tokenizer: Any, encoding_config: EncodingConfig) -> None:
        self.tokenizer, self.encoding_config = tokenizer, encoding_config
        self._others: dict[str, TextTokenizer] = {}
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        self.encoding_config = replace(encoding_config, examples=self._truncate_examples(encoding_config.examples))
        # Some tokenizers append the token themselves, and count it when they truncate.
        lacks = encoding_config.add_eos and tokenizer("x")["input_ids"][-1:] != [tokenizer.eos_token_id]
        self.end: int | None = tokenizer.eos_token_id if lacks else None
        self.limit = encoding_config.max_length - (self.end is not None)
        if encoding_config.examples or encoding_config.split_template("query")[1]:
            self(["x"], "query")

    def __call__(
        self,
        texts: Sequence[str],
        role: Role,
        examples: Sequence[Sequence[Example]] | None = None,
        tasks: Sequence[str] | None = None,
    ) -> list[list[int]]:
        """Return the token ids of each text with special tokens: at least one, at most `max_length`.

        examples, tasks: those of each query. None, or an empty task: the encoding config's, for all queries.
        """
        if not texts:
            return []
        if tasks is not None and role == "query":
            rows: list[list[int]] = [[] for _ in texts]
            for task in dict.fromkeys(tasks):
                places = [i for i, other in enumerate(tasks) if other == task]
                chosen = None if examples is None else [examples[i] for i in places]
                own = self._with_task(task)([texts[i] for i in places], role, chosen)
                for i, row in zip(places, own, strict=True):
                    rows[i] = row
            return rows
        if role == "query" and self.encoding_config.query_max_length is not None:
            texts = self.truncate(texts, self.encoding_config.query_max_length)
        before, after = self.encoding_config.split_template(role)
        shown = [""] * len(texts)
        if role == "query":
            fixed = self.encoding_config.format_examples(self.encoding_config.examples)
            drawn = [] if examples is None else map(self._truncate_examples, examples)
            shown = [fixed] * len(texts) if examples is None else list(map(self.encoding_config.format_examples, drawn))
        if not after:
            rows = self._tokenize([s + before + text for s, text in zip(shown, texts, strict=True)], self.limit)
        else:
            rows = self._tokenize_in_template(shown, before, texts, after)
        if self.end is not None:
            rows = [row if row and row[-1] == self.end else [*row, self.end] for row in rows]
        # A decoder's tokenizer returns no tokens for an empty text: embed one end-of-sequence (or padding) token.
        alone = self.tokenizer.eos_token_id
        alone = self.tokenizer.pad_token_id if alone is None else alone
        return [row or [alone] for row in rows]

    def _with_task(self, task: str) -> TextTokenizer:
        if not task or task == self.encoding_config.task or not self.encoding_config.takes_task:
            return self
        if task not in self._others:
            self._others[task] = TextTokenizer(self.tokenizer, replace(self.encoding_config, task=task))
        return self._others[task]

    def truncate(self, texts: Sequence[str], tokens: int) -> list[str]:
        """Truncate texts to at most `tokens` tokens."""
        found = self.tokenizer(
            list(texts),
            truncation=True,
            max_length=tokens,
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
        )["offset_mapping"]
        return [
            text if len(offsets) < tokens else text[: offsets[-1][1]]
            for text, offsets in zip(texts, found, strict=True)
        ]

    def _truncate_examples(self, examples: Sequence[Example]) -> tuple[Example, ...]:
        if not examples:
            return ()
        queries = self.truncate([query for query, _ in examples], self.encoding_config.example_query_max_length)
        answers = self.truncate([answer for _, answer in examples], self.encoding_config.example_answer_max_length)
        return tuple(zip(queries, answers, strict=True))

    def _tokenize_in_template(
        self, shown: Sequence[str], before: str, texts: Sequence[str], after: str
    ) -> list[list[int]]:
        rendered = [s + before + text + after for s, text in zip(shown, texts, strict=True)]
        rows, kept = self._tokenize(rendered, None), list(texts)
        while long := [i for i, row in enumerate(rows) if len(row) > self.limit]:
            for i in long:
                (own,) = self._tokenize([kept[i]], None, special=False)
                room = len(own) - (len(rows[i]) - self.limit)
                if room < 1:
                    raise ModelError(
                        f"encoding_config.max_length: {self.encoding_config.max_length} leaves the query no room beside"
                        f" its template and examples, which take {len(rows[i]) - len(own)} tokens; expected room for"
                        " both; raise max_length, or give fewer or shorter examples"
                    )
                (kept[i],) = self.truncate([kept[i]], room)
            again = self._tokenize([shown[i] + before + kept[i] + after for i in long], None)
            for i, row in zip(long, again, strict=True):
                rows[i] = row
        return rows

    def _tokenize(self, texts: Sequence[str], limit: int | None, special: bool = True) -> list[list[int]]:
        options: dict[str, Any] = {"verbose": False} if limit is None else {"truncation": True, "max_length": limit}
        ids = self.tokenizer(list(texts), add_special_tokens=special, return_attention_mask=False, **options)
        return [list(row) for row in ids["input_ids"]]
