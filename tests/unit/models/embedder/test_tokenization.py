"""Templates and in-context examples: the tokens that a model reads, and truncation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ratchet.errors import ModelError
from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import EncodingConfig, read_encoding_config
from ratchet.models.embedder.tokenization import TextTokenizer

ICL = EncodingConfig(
    "last_token",
    max_length=60,
    query_template="w{task}w{text}ww",
    passage_template="{text}",
    padding_side="left",
    add_eos=True,
    task="99",
    example_template="w{task}w{text}ww{answer}",
    example_query_max_length=6,
    example_answer_max_length=6,
    query_max_length=20,
)
"""For the tiny decoder, whose tokens are the characters w and 0 to 9 (and nothing for a line's end)."""


@pytest.fixture
def tokenizer(tiny: dict[str, Path]) -> Any:
    return transformers.AutoTokenizer.from_pretrained(tiny["qwen2"])


def text_of(tokenizer: Any, row: list[int]) -> str:
    return "".join(tokenizer.convert_ids_to_tokens(row)).replace("[END]", "")


def test_query_stands_behind_its_examples(tokenizer: Any) -> None:
    tokens = TextTokenizer(tokenizer, replace(ICL, examples=(("1", "2"), ("3", "4"))))
    (row,) = tokens(["5"], "query")
    assert text_of(tokenizer, row) == "w99w1ww2" + "w99w3ww4" + "w99w5ww"
    assert row[-1] == tokenizer.eos_token_id
    assert text_of(tokenizer, tokens(["5"], "passage")[0]) == "5"
    own = tokens(["5", "6"], "query", [[], [("7", "8" * 50)]])
    assert [text_of(tokenizer, one) for one in own] == ["w99w5ww", "w99w7ww" + "8" * 6 + "w99w6ww"]


def test_what_is_cut_is_the_text_never_what_stands_around_it(tokenizer: Any) -> None:
    tokens = TextTokenizer(tokenizer, ICL)
    (row,) = tokens(["5" * 200], "query")
    assert text_of(tokenizer, row) == "w99w" + "5" * 20 + "ww"
    tokens = TextTokenizer(tokenizer, replace(ICL, query_max_length=None, examples=(("1", "2"),)))
    rows = tokens(["5" * 200, "6"], "query")
    assert [len(one) for one in rows] == [60, 16]
    assert text_of(tokenizer, rows[0]) == "w99w1ww2" + "w99w" + "5" * 45 + "ww"
    assert len(tokens(["5" * 200], "passage")[0]) == 60


@pytest.mark.parametrize("text", ["\U0001f984" * 10, "a" + "\u6570" * 12])
@pytest.mark.parametrize("limit", range(8, 17))
def test_cut_inside_a_character_ends(text: str, limit: int) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())  # a byte is a token
    splits = Tokenizer(
        models.BPE({name: i for i, name in enumerate(["[PAD]", "[END]", *alphabet])}, [])
    )
    splits.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    splits.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=splits, pad_token="[PAD]", eos_token="[END]"
    )
    tokens = TextTokenizer(
        tokenizer, EncodingConfig("last_token", max_length=limit, query_template="q{text} r:")
    )
    (row,) = tokens([text], "query")
    assert limit - 4 < len(row) <= limit
    assert tokenizer.decode(row) in [f"q{text[:cut]} r:" for cut in range(len(text))]


@pytest.mark.parametrize("template", ["{text}{task}", "w{task}w{text}{task}", "{task}{text}"])
@pytest.mark.parametrize("max_length", [12, 60])
@pytest.mark.parametrize("examples", [(), (("1", "2"),)])
def test_tokens_do_not_depend_on_the_batch(
    tokenizer: Any, template: str, max_length: int, examples: Any
) -> None:
    """Some have a task of their own, which stands behind the text or not, and some are cut."""
    config = EncodingConfig(
        "last_token", max_length=max_length, query_template=template, add_eos=True
    )
    if examples:
        config = replace(config, example_template="{text}{answer}", examples=examples)
    tokens = TextTokenizer(tokenizer, config)
    texts, tasks = ["12", "3", "4" * 30, "5" * 30, "", "6"], ["", "77", "", "88", "99", ""]
    alone = [
        tokens([text], "query", tasks=[task])[0] for text, task in zip(texts, tasks, strict=True)
    ]
    for order in (range(6), (1, 0, 3, 2, 5, 4), (4, 2, 0, 1, 3, 5)):
        found = tokens([texts[i] for i in order], "query", tasks=[tasks[i] for i in order])
        assert found == [alone[i] for i in order]
    assert text_of(tokenizer, tokens(["3"], "query", tasks=["77"])[0]).count("7") >= 2


def test_examples_that_leave_no_room_are_an_error(tokenizer: Any) -> None:
    long = (("1" * 6, "2" * 6),) * 4
    with pytest.raises(
        ModelError, match="max_length: 60 leaves the query no room beside its template and examples"
    ):
        TextTokenizer(tokenizer, replace(ICL, examples=long))
    tokens = TextTokenizer(tokenizer, ICL)
    shown = text_of(tokenizer, tokens(["5"], "query", [long])[0])
    assert shown.count("2" * 6) == 1, "half of the room is for examples"
    with pytest.raises(ModelError, match="example_template: empty, for queries with few-shot"):
        TextTokenizer(tokenizer, replace(ICL, example_template=""))(["5"], "query", [long])


def test_vectors_depend_on_the_config_only(
    tiny: dict[str, Path], tmp_path: Path, texts: list[str]
) -> None:
    agreed = replace(ICL, examples=(("1", "2"), ("3", "4")))
    agreed.write(tmp_path)
    assert read_encoding_config(tmp_path) == agreed
    first = encoder.load(tiny["qwen2"], dtype="float32", device="cpu", encoding_config=agreed)
    second = encoder.load(
        tiny["qwen2"], dtype="float32", device="cpu", encoding_config=read_encoding_config(tmp_path)
    )
    found = first.encode(texts, "query")
    np.testing.assert_array_equal(found, second.encode(texts, "query"))
    plain = encoder.load(tiny["qwen2"], dtype="float32", device="cpu", encoding_config=ICL)
    assert np.abs(found - plain.encode(texts, "query")).max() > 1e-3
    np.testing.assert_array_equal(first.encode(texts, "passage"), plain.encode(texts, "passage"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"example_template": "", "examples": (("1", "2"),)},
            r"example_template: '' given, with no {text} in it",
        )
    ],
)
def test_encoding_configs_that_cannot_work_are_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        replace(ICL, **change)
