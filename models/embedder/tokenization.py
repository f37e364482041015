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

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ratchet.errors import ModelError
from ratchet.models.embedder.encoding_config import EncodingConfig, Example, Role

Examples = Sequence[Sequence[Example]]


class TextTokenizer:
    """Tokenizer of texts by an encoding config. Raises ModelError if template and examples leave a query no room."""

    def __init__(self, tokenizer: Any, encoding_config: EncodingConfig) -> None:
        self.tokenizer = tokenizer
        self.encoding_config = encoding_config
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        self.encoding_config = replace(
            encoding_config, examples=self._truncate_examples(encoding_config.examples)
        )
        # Some tokenizers append the token themselves, and count it when they truncate.
        lacks = encoding_config.add_eos and tokenizer("x")["input_ids"][-1:] != [
            tokenizer.eos_token_id
        ]
        self.end: int | None = tokenizer.eos_token_id if lacks else None
        self.limit = encoding_config.max_length - (self.end is not None)
        if encoding_config.examples or encoding_config.split_template("query")[1]:
            self(["x"], "query")

    def __call__(
        self,
        texts: Sequence[str],
        role: Role,
        examples: Examples | None = None,
        tasks: Sequence[str] | None = None,
    ) -> list[list[int]]:
        """Return the token ids of each text with special tokens: at least one, at most `max_length`.

        examples, tasks: one entry per query. None, or an empty task: those of the encoding config. Of `examples`, those
        are left out with which a query's examples would take more than half of `max_length`.
        """
        if not texts:
            return []
        own = self.encoding_config
        longest = own.query_max_length if role == "query" else own.passage_max_length
        if longest is not None:
            texts = self.truncate(texts, longest)
        if not (tasks and role == "query"):
            tasks = [own.task] * len(texts)
        config_of = {}
        for task in dict.fromkeys(tasks):
            config_of[task] = replace(own, task=task or own.task)
        heads, tails = map(
            list, zip(*(config_of[task].split_template(role) for task in tasks), strict=True)
        )
        if role == "query":
            if examples is None:
                drawn = [own.examples] * len(texts)
            else:
                drawn = self._fit_examples(examples)
            if any(drawn) and not own.example_template:
                raise ModelError(
                    "encoding_config.example_template: empty, for queries with few-shot examples; expected a template"
                    " with {text} and {answer}; set it, or give a file as examples"
                )
            shown = []
            for task, each in zip(tasks, drawn, strict=True):
                shown.append(config_of[task].format_examples(each))
            heads = list(map(operator.add, shown, heads))
        template = own.query_template if role == "query" else own.passage_template
        if template.endswith("{text}"):
            rows = self._tokenize(list(map(operator.add, heads, texts)), self.limit)
        else:
            rows = self._tokenize_in_template(heads, texts, tails)
        if self.end is not None:
            rows = [row if row and row[-1] == self.end else [*row, self.end] for row in rows]
        # A decoder's tokenizer returns no tokens for an empty text: embed one end-of-sequence (or padding) token.
        alone = self.tokenizer.eos_token_id
        if alone is None:
            alone = self.tokenizer.pad_token_id
        return [row or [alone] for row in rows]

    def truncate(self, texts: Sequence[str], tokens: int) -> list[str]:
        """Truncate texts to at most `tokens` tokens."""
        options = {"truncation": True, "max_length": tokens, "add_special_tokens": False}
        found = self.tokenizer(
            list(texts), **options, return_offsets_mapping=True, return_attention_mask=False
        )
        pairs = zip(texts, found["offset_mapping"], strict=True)
        made = []
        for text, offsets in pairs:
            made.append(text if len(offsets) < tokens else text[: offsets[-1][1]])
        return made

    def _truncate_examples(self, examples: Sequence[Example]) -> tuple[Example, ...]:
        if not examples:
            return ()
        queries = self.truncate(
            [query for query, _ in examples], self.encoding_config.example_query_max_length
        )
        answers = self.truncate(
            [answer for _, answer in examples], self.encoding_config.example_answer_max_length
        )
        return tuple(zip(queries, answers, strict=True))

    def _fit_examples(self, drawn: Examples) -> list[tuple[Example, ...]]:
        """Return the truncated examples of each query: the first ones, as many as take at most half of `max_length`."""
        flat = self._truncate_examples([example for own in drawn for example in own])
        shown = [self.encoding_config.format_examples([example]) for example in flat]
        lengths = [len(row) for row in self._tokenize(shown, None, special=False)] if shown else []
        room = self.encoding_config.max_length // 2
        found = []
        start = 0
        for own in drawn:
            end = start + len(own)
            kept = start
            while kept < end and sum(lengths[start : kept + 1]) <= room:
                kept += 1
            found.append(flat[start:kept])
            start = end
        return found

    def _tokenize_in_template(
        self, heads: Sequence[str], texts: Sequence[str], tails: Sequence[str]
    ) -> list[list[int]]:
        rendered = []
        for head, text, tail in zip(heads, texts, tails, strict=True):
            rendered.append(head + text + tail)
        rows = self._tokenize(rendered, None)
        kept = list(texts)
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
                (shorter,) = self.truncate([kept[i]], room)
                # A cut inside a character of several tokens keeps the whole character.
                if len(shorter) < len(kept[i]):
                    kept[i] = shorter
                else:
                    kept[i] = kept[i][:-1]
            again = self._tokenize([heads[i] + kept[i] + tails[i] for i in long], None)
            for i, row in zip(long, again, strict=True):
                rows[i] = row
        return rows

    def _tokenize(
        self, texts: Sequence[str], limit: int | None, special: bool = True
    ) -> list[list[int]]:
        options: dict[str, Any]
        if limit is None:
            options = {"verbose": False}
        else:
            options = {"truncation": True, "max_length": limit}
        ids = self.tokenizer(
            list(texts), add_special_tokens=special, return_attention_mask=False, **options
        )
        return [list(row) for row in ids["input_ids"]]
