"""The reranker config (prompt and truncation, stored with the model) and tokenization of pairs by it.

Queries and passages are tokenized separately and joined as ids, so that each text is tokenized once:

    yes_no         [BOS] [prefix] query [separator] passage [separator] prompt [suffix]    the answer is the next token
    cross_encoder  the tokenizer's own format of a pair, such as [CLS] query [SEP] passage [SEP]
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict

from ratchet.errors import ModelError
from ratchet.models import presets
from ratchet.models.embedder.encoding_config import MAX_LENGTH, Role, check_template
from ratchet.models.model_files import RERANKER_CONFIG_FILE, count_learned_positions
from ratchet.models.model_kind import (
    count_positions,
    describe_kind,
    read_config,
    read_dataclass,
    write_json,
)


@dataclass(frozen=True)
class RerankerConfig:
    """Prompt and truncation of a reranker."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: Literal["yes_no", "cross_encoder"]
    """`yes_no`: the score is a decoder's logit of the answer; `cross_encoder`: the output of a sequence classifier."""
    max_length: int = 512
    """Tokens of a pair, with prompt and special tokens. The passage is truncated at its end."""
    query_max_length: int | None = None
    """Tokens of the query, truncated at its end. None: half of max_length, at most 3/4 of the room for both texts."""
    query_template: str = "{text}"
    """Contains `{text}`, and `{prompt}` if the prompt belongs there instead of after the passage."""
    passage_template: str = "{text}"
    separator: str = ""
    prompt: str = ""
    """The question or the instruction after a pair, for decoders."""
    answer: str = "Yes"
    """One token, whose logit is the score."""
    against: str = ""
    """One token, such as `No`, whose logit is subtracted. Empty: none."""
    prefix: str = ""
    """Text in front of the query, for decoders."""
    suffix: str = ""
    """Text between the prompt and the answer, for decoders."""

    def __post_init__(self) -> None:
        check_template(
            "reranker_config.query_template", self.query_template, ("text",), ("prompt",)
        )
        check_template("reranker_config.passage_template", self.passage_template, ("text",))
        if self.query_max_length is not None and not 0 < self.query_max_length < self.max_length:
            raise ModelError(
                f"reranker_config.query_max_length: {self.query_max_length} given; expected 1 up to below max_length,"
                f" which is {self.max_length}"
            )

    @property
    def model_kind(self) -> Literal["causal", "classifier"]:
        """The kind of model, as in `ratchet.models.meta.footprint`."""
        return "causal" if self.kind == "yes_no" else "classifier"

    def write(self, folder: Path) -> None:
        """Write `reranker_config.json`."""
        write_json(folder / RERANKER_CONFIG_FILE, asdict(self))


YES_NO = RerankerConfig(**presets.YES_NO)
"""FlagEmbedding's format for decoders."""


def read_reranker_config(folder: Path) -> RerankerConfig:
    """Read the reranker config of a model folder: `reranker_config.json`, else the preset of the model's family, else
    by architecture (decoders answer Yes or No, encoders are cross-encoders). Raises ModelError for an invalid file."""
    own = folder / RERANKER_CONFIG_FILE
    if own.is_file():
        return read_dataclass(own, RerankerConfig)
    check_outputs(folder)
    config = read_config(folder)
    positions = count_learned_positions(folder) or count_positions(config)
    if describe_kind(config) == "a decoder":
        plain = YES_NO
    else:
        plain = RerankerConfig("cross_encoder", min(512, positions or 512))
    preset = presets.find_preset(folder, "reranker")
    if preset is None or preset.values["kind"] != plain.kind:  # converted to another kind of model
        return plain
    longest = min(preset.values["max_length"], positions or MAX_LENGTH)
    return RerankerConfig(**{**preset.values, "max_length": longest})


def check_outputs(folder: Path) -> None:
    """Raise ModelError for a sequence classifier of several outputs."""
    config = read_config(folder)
    outputs = len(config.get("id2label") or range(config.get("num_labels", 2)))  # 2 is not written
    if describe_kind(config) == "a reranker" and outputs != 1:
        raise ModelError(
            f"model {folder}: a classifier of {outputs} classes; expected one output; give another model"
        )


class PairTokenizer:
    """Tokenizer of pairs by a reranker config. Raises ModelError if the prompt leaves a passage no room, or the answer
    is not one token."""

    def __init__(self, tokenizer: Any, reranker_config: RerankerConfig) -> None:
        self.tokenizer = tokenizer
        self.reranker_config = reranker_config
        self._others: dict[str, PairTokenizer] = {}
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        if reranker_config.kind == "yes_no":
            start = tokenizer.bos_token_id
            # Tokenizers without a BOS token often name the padding token so.
            self.before = []
            if start is not None and start != tokenizer.pad_token_id:
                self.before.append(start)
            self.before += self._ids(reranker_config.prefix)
            self.between = self._ids(reranker_config.separator)
            self.after = []
            if "{prompt}" not in reranker_config.query_template:
                self.after += self.between + self._ids(reranker_config.prompt)
            self.after += self._ids(reranker_config.suffix)
            self.types: tuple[int, int] | None = None
            self.answers = [
                self._answer(text)
                for text in (reranker_config.answer, reranker_config.against)
                if text
            ]
        else:
            self.before, self.between, self.after, self.types = _pair_frame(tokenizer)
            self.answers = []
        self.room = (
            reranker_config.max_length - len(self.before) - len(self.between) - len(self.after)
        )
        self.query_limit = reranker_config.query_max_length or min(
            reranker_config.max_length // 2, self.room * 3 // 4
        )
        if self.query_limit < 1 or self.room - self.query_limit < 1:
            raise ModelError(
                f"reranker_config: max_length {reranker_config.max_length} leaves {max(0, self.room)} tokens for query"
                f" and passage, {max(0, self.query_limit)} of them the query's; expected room for both; raise"
                " max_length"
            )

    def tokenize(self, texts: Sequence[str], role: Role) -> list[list[int]]:
        """Return token ids of queries or passages alone, truncated to what a pair can hold."""
        if not texts:
            return []
        own = self.reranker_config
        template = own.query_template if role == "query" else own.passage_template
        head, tail = (part.replace("{prompt}", own.prompt) for part in template.split("{text}", 1))
        # Another prompt may leave a passage more room; `split_pair` cuts it.
        limit = self.query_limit if role == "query" else own.max_length
        options = {
            "truncation": True,
            "max_length": limit + bool(tail),
            "add_special_tokens": False,
        }
        found = self.tokenizer(
            [head + text + tail for text in texts], **options, return_attention_mask=False
        )
        ids = found["input_ids"]
        end = self._ids(tail)[:limit] if any(len(row) > limit for row in ids) else []
        made = []
        for row in ids:
            made.append(list(row) if len(row) <= limit else [*row[: limit - len(end)], *end])
        return made

    def with_prompt(self, prompt: str) -> "PairTokenizer":
        """Return the tokenizer of pairs with another prompt. An empty prompt, and any prompt of a cross-encoder, change
        nothing."""
        if (
            not prompt
            or prompt == self.reranker_config.prompt
            or self.reranker_config.kind == "cross_encoder"
        ):
            return self
        if prompt not in self._others:
            self._others[prompt] = PairTokenizer(
                self.tokenizer, replace(self.reranker_config, prompt=prompt)
            )
        return self._others[prompt]

    def tokenize_pairs(
        self,
        queries: Sequence[str],
        passages: Sequence[Sequence[str]],
        prompts: Sequence[str] | None = None,
    ) -> Iterator[list[tuple[list[int], list[int]]]]:
        """Yield the pairs of each query, as `split_pair` returns them. Each distinct passage is tokenized once.

        prompts: one per query, see `with_prompt`. None: that of the reranker config."""
        distinct = list(dict.fromkeys(text for own in passages for text in own))
        ids_of = dict(zip(distinct, self.tokenize(distinct, "passage"), strict=True))
        for query, own, prompt in zip(
            queries, passages, prompts or [""] * len(queries), strict=True
        ):
            tokens = self.with_prompt(prompt)
            (ids,) = tokens.tokenize([query], "query")
            yield [tokens.split_pair(ids, ids_of[text]) for text in own]

    def split_pair(
        self, query: Sequence[int], passage: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Return a pair's ids in two parts: the prefix that all pairs of the query share, and the rest."""
        return [*self.before, *query, *self.between], [
            *passage[: self.room - len(query)],
            *self.after,
        ]

    def _ids(self, text: str) -> list[int]:
        if text:
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return []

    def _answer(self, text: str) -> int:
        ids = self._ids(text)
        if len(ids) != 1:
            raise ModelError(
                f"reranker_config: the answer '{text}' is {len(ids)} tokens to this tokenizer; expected one; give an"
                " answer that is one token (reranker_config.answer), or use a cross-encoder"
            )
        return ids[0]


def _pair_frame(tokenizer: Any) -> tuple[list[int], list[int], list[int], tuple[int, int] | None]:
    """Return the ids that a tokenizer puts before, between and after a pair, and the two token types."""
    own = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    pair = tokenizer("a", "a", add_special_tokens=True)
    ids = list(pair["input_ids"])
    types = pair.get("token_type_ids")
    starts = [i for i in range(len(ids)) if own and ids[i : i + len(own)] == own]
    if len(starts) != 2:
        raise ModelError(
            f"the tokenizer of the cross-encoder: token ids {own} of the text 'a', and {ids} of a pair of it; expected"
            " the former twice in the latter; use the tokenizer that the model was trained with"
        )
    (first, second), size = starts, len(own)
    return (
        ids[:first],
        ids[first + size : second],
        ids[second + size :],
        types and (types[first], types[second]),
    )
