"""Texts to token ids as an embedder's contract has them: template, in-context examples, and a cut that spares both.

A query with examples reads, as bge-en-icl takes it (Li et al. 2024, "Making text embedders few-shot learners"):

    <instruct>task
    <query>an example's query
    <response>its answer

    <instruct>task
    <query>the text
    <response>

What is too long is cut where it hurts least: the text itself, at its end, never what stands around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from models.contract import Contract, Example, Role
from models.errors import ModelError


class TextTokenizer:
    """Raises ModelError where template and fixed examples leave a query no room."""

    def __init__(self, tokenizer: Any, contract: Contract) -> None:
        self.tokenizer, self.contract = tokenizer, contract
        self.end: int | None = tokenizer.eos_token_id if contract.add_eos else None
        self.limit = contract.max_length - (self.end is not None)
        if contract.examples or contract.template("query")[1]:
            self(["x"], "query")

    def __call__(
        self, texts: Sequence[str], role: Role, examples: Sequence[Sequence[Example]] | None = None
    ) -> list[list[int]]:
        """Token ids of each text, special tokens included, never longer than the contract says, never empty.

        examples: each query's own; None: the contract's, for all.
        """
        if not texts:
            return []
        if role == "query" and self.contract.query_max_length is not None:
            texts = self.cut(texts, self.contract.query_max_length)
        before, after = self.contract.template(role)
        shown = [""] * len(texts)
        if role == "query":
            fixed = self.contract.shown(self.contract.examples)
            shown = [fixed] * len(texts) if examples is None else [self._shown(own) for own in examples]
        if not after:
            rows = self._ids([s + before + text for s, text in zip(shown, texts, strict=True)], self.limit)
        else:
            rows = self._around(shown, before, texts, after)
        if self.end is not None:
            rows = [row if row and row[-1] == self.end else [*row, self.end] for row in rows]
        # A decoder's tokenizer gives nothing for an empty text; its vector is then that of one end (or padding) token.
        alone = self.tokenizer.eos_token_id
        alone = self.tokenizer.pad_token_id if alone is None else alone
        return [row or [alone] for row in rows]

    def cut(self, texts: Sequence[str], tokens: int) -> list[str]:
        """The texts' beginnings, of at most so many tokens."""
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

    def _shown(self, examples: Sequence[Example]) -> str:
        """Examples as they stand before a query, each side cut to the contract's length."""
        limit = self.contract.example_max_length
        flat = self.cut([side for example in examples for side in example], limit) if examples else []
        return self.contract.shown(list(zip(flat[::2], flat[1::2], strict=True)))

    def _around(self, shown: Sequence[str], before: str, texts: Sequence[str], after: str) -> list[list[int]]:
        rendered = [s + before + text + after for s, text in zip(shown, texts, strict=True)]
        rows, kept = self._ids(rendered, None), list(texts)
        while long := [i for i, row in enumerate(rows) if len(row) > self.limit]:
            for i in long:
                (own,) = self._ids([kept[i]], None, special=False)
                room = len(own) - (len(rows[i]) - self.limit)
                if room < 1:
                    raise ModelError(
                        f"contract: max_length {self.contract.max_length} leaves the query no room beside its template"
                        f" and examples, which take {len(rows[i]) - len(own)} tokens; expected room for both; raise"
                        " max_length, or give fewer or shorter examples"
                    )
                (kept[i],) = self.cut([kept[i]], room)
            again = self._ids([shown[i] + before + kept[i] + after for i in long], None)
            for i, row in zip(long, again, strict=True):
                rows[i] = row
        return rows

    def _ids(self, texts: Sequence[str], limit: int | None, special: bool = True) -> list[list[int]]:
        options: dict[str, Any] = {"verbose": False} if limit is None else {"truncation": True, "max_length": limit}
        ids = self.tokenizer(list(texts), add_special_tokens=special, return_attention_mask=False, **options)
        return [list(row) for row in ids["input_ids"]]
