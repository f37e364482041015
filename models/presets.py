"""Prompts, pooling, end tokens and lengths of published models, by the names of their families.

A published folder seldom says all that its model card does. A preset fills in what the folder leaves out. Comments name
the sources: the model card on the hub, FlagEmbedding's inference code, or the package mteb 2.26. Models that need their
own code (Jina's, gte-*-en-v1.5, gte-Qwen as published) are refused before a preset matters.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ratchet.models.model_kind import read_optional


@dataclass(frozen=True)
class Preset:
    """Settings of a family of models, from its model card."""

    family: str
    names: str
    """Regular expression of the models' names on the hub, without the owner; case-insensitive."""
    values: Mapping[str, Any]
    """Fields of the encoding config or the reranker config."""


WEB_SEARCH = "Given a web search query, retrieve relevant passages that answer the query"
INSTRUCT = {"query_template": "Instruct: {task}\nQuery: {text}", "task": WEB_SEARCH}
MEAN = {"pooling": "mean", "padding_side": "right", "max_length": 512}
CLS = MEAN | {"pooling": "cls"}
LAST = {"pooling": "last_token", "padding_side": "left", "add_eos": True, "max_length": 8192}
E5 = {"query_template": "query: {text}", "passage_template": "passage: {text}"}
BGE_EN = {"query_template": "Represent this sentence for searching relevant passages: {text}"}
BGE_ZH = {"query_template": "为这个句子生成表示以用于检索相关文章：{text}"}
ICL_TEMPLATE = "<instruct>{task}\n<query>{text}\n<response>"
"""The template of bge-en-icl. An example is followed by its answer."""
ICL = {
    "query_template": ICL_TEMPLATE,
    "example_template": ICL_TEMPLATE + "{answer}",
    "query_max_length": 512,
}
GEMMA = {
    "query_template": "task: {task} | query: {text}",
    "passage_template": "title: none | text: {text}",
    "task": "search result",
    "max_length": 2048,
}
QWEN3_QUERY = {"query_template": "Instruct: {task}\nQuery:{text}", "add_eos": False}

EMBEDDERS = (
    # Model card of e5-base-v2; mteb e5_models.py for the other sizes.
    Preset("e5", "(multilingual-)?e5-(small|base|large)(-v2)?", MEAN | E5),
    Preset("e5-instruct", "multilingual-e5-large-instruct", MEAN | INSTRUCT),  # model card
    # Model card; mteb e5_instruct.py: </s> ends every text, which its tokenizer.json omits.
    Preset("e5-mistral", "e5-mistral-7b-instruct", LAST | INSTRUCT | {"max_length": 4096}),
    # Model card of bge-base-en-v1.5 for all sizes and both languages; FlagEmbedding (CLS).
    Preset("bge-en", r"bge-(small|base|large)-en(-v1\.5)?", CLS | BGE_EN),
    Preset("bge-zh", r"bge-(small|base|large)-zh(-v1\.5)?", CLS | BGE_ZH),
    Preset("bge-m3", "bge-m3", CLS | {"max_length": 8192}),
    # Model card and FlagEmbedding's icl.py: </s> ends every text.
    Preset("bge-en-icl", "bge-en-icl", LAST | ICL | {"task": WEB_SEARCH + "."}),
    # Model card. Attention is bidirectional by its config.json.
    Preset("embeddinggemma", "embeddinggemma-300m(-.*)?", MEAN | GEMMA),
    # FlagEmbedding (pooling); mteb gte_models.py (lengths).
    Preset("gte", "gte-(small|base|large)", MEAN),
    Preset("gte-zh", "gte-(small|base|large)-zh", CLS),
    Preset("gte-multilingual", "gte-multilingual-base", CLS | {"max_length": 8192}),
    # Model card; mteb gte_models.py (end token).
    Preset("gte-qwen", r"gte-Qwen(1\.5|2)-(1\.5|7)B-instruct", LAST | INSTRUCT),
    # README of QwenLM/Qwen3-Embedding: no space after "Query:". Its issue 122: the tokenizer appends <|endoftext|>,
    # which is not the eos_token.
    Preset("qwen3-embedding", r"Qwen3-Embedding-(0\.6|4|8)B", LAST | INSTRUCT | QWEN3_QUERY),
)

PROMPT = (
    "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a"
    " prediction of either 'Yes' or 'No'."
)
"""The prompt of FlagEmbedding's published rerankers."""
YES_NO: dict[str, Any] = {
    "query_template": "A: {text}",
    "passage_template": "B: {text}",
    "separator": "\n",
}
YES_NO |= {"kind": "yes_no", "prompt": PROMPT}
QWEN3: dict[str, Any] = {
    "kind": "yes_no",
    "prefix": "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the"
    ' Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
    "query_template": "<Instruct>: {prompt}\n<Query>: {text}\n",
    "passage_template": "<Document>: {text}",
    "suffix": "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
}
QWEN3 |= {"prompt": WEB_SEARCH, "answer": "yes", "against": "no", "max_length": 8192}

RERANKERS = (
    # README of QwenLM/Qwen3-Embedding. The score is the logit of its probability of "yes".
    Preset("qwen3-reranker", r"Qwen3-Reranker-(0\.6|4|8)B", QWEN3),
    # FlagEmbedding's examples/inference/reranker/README.md.
    Preset("bge-reranker-v2-gemma", "bge-reranker-v2-gemma", YES_NO | {"max_length": 1024}),
    Preset(
        "bge-reranker",
        "bge-reranker-(base|large|v2-m3)",
        {"kind": "cross_encoder", "max_length": 512},
    ),
)


def find_preset(folder: Path, kind: Literal["embedder", "reranker"]) -> Preset | None:
    """Return the preset of a published model, by the name of its folder, its hub id in a path of the hub's cache, or
    `_name_or_path` in its config.json; None for other models."""
    names = [
        folder.name,
        *(part.name for part in folder.parents if part.name.startswith("models--")),
    ]
    config = read_optional(folder / "config.json")
    for name in [*names, str(config.get("_name_or_path", ""))]:
        plain = re.split(r"[/\\]|--", name.rstrip("/\\"))[-1]
        for preset in EMBEDDERS if kind == "embedder" else RERANKERS:
            # A copy is often called owner_name.
            if re.fullmatch(rf"(\w+_)?({preset.names})", plain, re.IGNORECASE):
                return preset
    return None
