"""How a reranker reads a query and a passage: the contract that is kept with the model, and token ids by it.

Queries and passages are tokenised apart and joined as ids, so each text is tokenised once, whatever the number of pairs
that it is in:

    yes_no         [BOS] query [separator] passage [separator] prompt       and the answer is the next token
    cross_encoder  what the tokenizer puts around a pair, such as [CLS] query [SEP] passage [SEP]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from models.contract import FILE, Role
from models.errors import ModelError

PROMPT = (
    "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a"
    " prediction of either 'Yes' or 'No'."
)
"""FlagEmbedding's, which its published rerankers were trained with."""


@dataclass(frozen=True)
class PairContract:
    """The prompt contract of a reranker."""

    kind: Literal["yes_no", "cross_encoder"]
    """A decoder's logit of the answer, or the one output of a sequence classifier."""
    max_length: int = 512
    """Tokens of a pair, all included; the passage is cut at its end so that it fits."""
    query_max_length: int | None = None
    """Tokens of the query, cut at its end; None: half of max_length, at most what leaves the passage a quarter."""
    query_template: str = "{text}"
    passage_template: str = "{text}"
    separator: str = ""
    prompt: str = ""
    answer: str = "Yes"
    """One token, whose logit is the score."""
    against: str = ""
    """If given, such as `No`, its logit is taken off."""

    def __post_init__(self) -> None:
        if self.kind not in ("yes_no", "cross_encoder"):
            raise ModelError(f"contract.kind: '{self.kind}' given; expected yes_no or cross_encoder")
        if self.max_length < 8:
            raise ModelError(f"contract.max_length: {self.max_length} given; expected 8 or more tokens for a pair")
        if self.query_max_length is not None and not 0 < self.query_max_length < self.max_length:
            raise ModelError(
                f"contract.query_max_length: {self.query_max_length} given; expected 1 up to below max_length,"
                f" which is {self.max_length}"
            )
        for name in ("query_template", "passage_template"):
            if "{text}" not in getattr(self, name):
                raise ModelError(f"contract.{name}: '{getattr(self, name)}' given; expected a template with {{text}}")

    def shortened(self, max_length: int | None, query_max_length: int | None = None) -> PairContract:
        """With other length limits, where given."""
        return replace(
            self,
            max_length=max_length or self.max_length,
            query_max_length=query_max_length or (None if max_length else self.query_max_length),
        )

    def write(self, folder: Path) -> None:
        """Writes `ratchet_contract.json`."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=2, sort_keys=True) + "\n")


YES_NO = PairContract("yes_no", 512, None, "A: {text}", "B: {text}", "\n", PROMPT)
"""Decoders, as FlagEmbedding asks them."""


def read(folder: Path) -> PairContract:
    """A model folder's contract: its own file, else by architecture (decoders answer Yes or No, encoders classify)."""
    own = folder / FILE
    if own.is_file():
        values = json.loads(own.read_text())
        known = {field.name for field in fields(PairContract)}
        if isinstance(values, dict) and not set(values) - known and "kind" in values:
            return PairContract(**values)
        if not isinstance(values, dict) or "pooling" not in values:
            raise ModelError(f"{own}: not a contract; expected the fields {', '.join(sorted(known))}")
        # An embedder's folder: a reranker can be made of its base, read by its architecture.
    config = json.loads((folder / "config.json").read_text())
    architectures = " ".join(config.get("architectures") or [])
    if "CausalLM" in architectures:
        return YES_NO
    length = min(512, int(config.get("max_position_embeddings") or 512))
    if str(config.get("model_type", "")) in ("roberta", "xlm-roberta", "camembert"):
        length -= 2  # their positions begin at 2
    return PairContract("cross_encoder", length)


class PairTokenizer:
    """Texts to token ids by a contract. Raises ModelError where the prompt leaves a passage no room, and for an answer
    that is not one token."""

    def __init__(self, tokenizer: Any, contract: PairContract) -> None:
        self.tokenizer, self.contract = tokenizer, contract
        if contract.kind == "yes_no":
            start = tokenizer.bos_token_id
            # Tokenizers without a BOS of their own often give the padding token that name.
            self.before = [start] if start is not None and start != tokenizer.pad_token_id else []
            self.between = self._ids(contract.separator)
            self.after = [*self.between, *self._ids(contract.prompt)]
            self.types: tuple[int, int] | None = None
            self.answers = [self._answer(text) for text in (contract.answer, contract.against) if text]
        else:
            self.before, self.between, self.after, self.types = _frame(tokenizer)
            self.answers = []
        self.room = contract.max_length - len(self.before) - len(self.between) - len(self.after)
        self.query_limit = contract.query_max_length or min(contract.max_length // 2, self.room * 3 // 4)
        if self.query_limit < 1 or self.room - self.query_limit < 1:
            raise ModelError(
                f"contract: max_length {contract.max_length} leaves {max(0, self.room)} tokens for query and passage,"
                f" {max(0, self.query_limit)} of them the query's; expected room for both; raise max_length"
            )

    def texts(self, texts: Sequence[str], role: Role) -> list[list[int]]:
        """Token ids of queries or passages alone, cut to what a pair can hold of them."""
        if not texts:
            return []
        template = self.contract.query_template if role == "query" else self.contract.passage_template
        rendered = list(texts) if template == "{text}" else [template.replace("{text}", text) for text in texts]
        limit = self.query_limit if role == "query" else self.room
        ids = self.tokenizer(
            rendered, truncation=True, max_length=limit, add_special_tokens=False, return_attention_mask=False
        )["input_ids"]
        return [list(row) for row in ids]

    def parts(self, query: Sequence[int], passage: Sequence[int]) -> tuple[list[int], list[int]]:
        """A pair's ids: what it has in common with the query's other pairs, and the rest."""
        return [*self.before, *query, *self.between], [*passage[: self.room - len(query)], *self.after]

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []

    def _answer(self, text: str) -> int:
        ids = self._ids(text)
        if len(ids) != 1:
            raise ModelError(
                f"contract: the answer '{text}' is {len(ids)} tokens to this tokenizer; expected one; give an answer"
                " that is one token (contract.answer), or use a cross-encoder"
            )
        return ids[0]


def _frame(tokenizer: Any) -> tuple[list[int], list[int], list[int], tuple[int, int] | None]:
    """What a tokenizer puts before, between and after a pair, and the two token types."""
    probe = tokenizer("a", "a", add_special_tokens=True)
    ids, whose = probe["input_ids"], probe.sequence_ids(0)
    first, second = ([i for i, owner in enumerate(whose) if owner == side] for side in (0, 1))
    types = probe.get("token_type_ids")
    return (
        list(ids[: first[0]]),
        list(ids[first[-1] + 1 : second[0]]),
        list(ids[second[-1] + 1 :]),
        None if types is None else (types[first[0]], types[second[0]]),
    )
