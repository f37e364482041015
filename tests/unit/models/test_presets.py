"""Presets of published models: token ids as by the model cards' code; the folder's own files take precedence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import EncodingConfig, read_encoding_config
from ratchet.models.embedder.sentence_transformers_layout import write_layout
from ratchet.models.embedder.tokenization import TextTokenizer
from ratchet.models.model_files import UNUSED_FILES
from ratchet.models.presets import EMBEDDERS, RERANKERS, WEB_SEARCH, find_preset
from ratchet.models.reranker import reranker
from ratchet.models.reranker.reranker_config import PairTokenizer, read_reranker_config

# They make models of real architectures.
pytestmark = pytest.mark.slow

QUERIES = ["What is the capital of China?", "Explain gravity \n", "2 x 3 = 5"]
DOCUMENTS = [
    "The capital of China is Beijing.",
    " Gravity is a force (9.81 m/s²)\n\nthat attracts.",
    "",
    "long " * 30,
]
QWEN_PATTERN = (  # of the tokenizers of Qwen2 and Qwen3
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def save_qwen3(folder: Path, *, ends: bool) -> Path:
    """A random Qwen3 with a byte-level tokenizer of its format. ends: it appends <|endoftext|>, as Qwen3-Embedding."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["ye", "yes", "no", "Qu", "ca"]
    vocabulary = {token: i for i, token in enumerate([*letters, *words])}
    merges = [("y", "e"), ("ye", "s"), ("n", "o"), ("Q", "u"), ("c", "a")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.add_special_tokens(SPECIAL)
    splits = [
        pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.ByteLevel()
    end = tokenizer.token_to_id("<|endoftext|>")
    if ends:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A <|endoftext|>",
            pair="$A $B <|endoftext|>",
            special_tokens=[("<|endoftext|>", end)],
        )
    size = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    more = {
        "head_dim": 8,
        "intermediate_size": 64,
        "max_position_embeddings": 400,
        "pad_token_id": end,
    }
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(vocab_size=tokenizer.get_vocab_size(), **size, **more)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder


@pytest.fixture(scope="module")
def qwen3_embedding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_qwen3(tmp_path_factory.mktemp("models") / "Qwen3-Embedding-0.6B", ends=True)


@pytest.fixture(scope="module")
def qwen3_reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_qwen3(tmp_path_factory.mktemp("models") / "Qwen3-Reranker-0.6B", ends=False)


def copy(folder: Path, target: Path, **config: Any) -> Path:
    """Link a model under another name, with other fields in config.json and without a sentence-transformers layout."""
    target.mkdir(parents=True)
    for path in folder.iterdir():
        if path.is_file() and path.name not in (
            "config.json",
            "modules.json",
            "sentence_bert_config.json",
        ):
            (target / path.name).symlink_to(path)
    (target / "config.json").write_text(
        json.dumps(json.loads((folder / "config.json").read_text()) | config)
    )
    return target


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("e5-base-v2", "e5"),
        ("intfloat_multilingual-e5-small", "e5"),
        ("multilingual-e5-large-instruct", "e5-instruct"),
        (
            "models--BAAI--bge-large-en-v1.5/snapshots/d4aa6901d3a41ba39fb536a557fa166f842b0e09",
            "bge-en",
        ),
        ("bge-small-zh", "bge-zh"),
        ("models--Alibaba-NLP--gte-Qwen2-1.5B-instruct/snapshots/abc", "gte-qwen"),
        ("GTE-Large", "gte"),
        ("google_embeddinggemma-300m", "embeddinggemma"),
        ("qwen3-embedding-8b", "qwen3-embedding"),
        ("e5-base-v2-finetuned", None),
        ("bge-reranker-v2-m3", None),
        ("gte-base-en-v1.5", None),
    ],
)
def test_the_name_tells_the_family(tmp_path: Path, name: str, family: str | None) -> None:
    (folder := tmp_path / name).mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    found = find_preset(folder, "embedder")
    assert (found and found.family) == family


def test_the_name_may_stand_in_the_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"_name_or_path": "BAAI/bge-m3"}))
    assert getattr(find_preset(tmp_path, "embedder"), "family", "") == "bge-m3"
    assert find_preset(tmp_path, "reranker") is None, (
        "as of bge-reranker-v2-m3, which was made from it"
    )


def test_every_preset_is_a_whole_config() -> None:
    """A misspelt field or template would be found when a model is used only."""
    for preset in EMBEDDERS:
        assert EncodingConfig(**preset.values).normalize
        assert ("{task}" in EncodingConfig(**preset.values).query_template) == (
            "task" in preset.values
        )
    assert [preset.values["kind"] for preset in RERANKERS] == ["yes_no", "yes_no", "cross_encoder"]


def recipe_e5(queries: list[str], documents: list[str]) -> list[str]:
    return [f"query: {text}" for text in queries] + [f"passage: {text}" for text in documents]


def recipe_instruct(queries: list[str], documents: list[str]) -> list[str]:
    return [f"Instruct: {WEB_SEARCH}\nQuery: {text}" for text in queries] + documents


def recipe_bge(queries: list[str], documents: list[str]) -> list[str]:
    return [
        f"Represent this sentence for searching relevant passages: {text}" for text in queries
    ] + documents


@pytest.mark.parametrize(
    ("name", "recipe", "pooling"),
    [
        ("e5-base-v2", recipe_e5, "mean"),
        ("multilingual-e5-large-instruct", recipe_instruct, "mean"),
        ("bge-base-en-v1.5", recipe_bge, "cls"),
        ("gte-base", lambda queries, documents: queries + documents, "mean"),
    ],
)
def test_encoders_embed_as_their_model_cards_do(
    minilm: Path,
    tmp_path: Path,
    name: str,
    recipe: Callable[[list[str], list[str]], list[str]],
    pooling: str,
) -> None:
    """The code of the cards, with transformers alone, on the weights of MiniLM under the model's name."""
    folder = copy(minilm, tmp_path / name)
    tokenizer, model = (
        auto.from_pretrained(minilm)
        for auto in (transformers.AutoTokenizer, transformers.AutoModel)
    )
    inputs = tokenizer(
        recipe(QUERIES, DOCUMENTS),
        max_length=512,
        padding=True,
        truncation=True,
        return_tensors="pt",
    )
    with torch.no_grad():
        hidden = model.eval()(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    pooled = hidden[:, 0] if pooling == "cls" else (hidden * mask).sum(dim=1) / mask.sum(dim=1)
    theirs = torch.nn.functional.normalize(pooled, dim=1).numpy()
    ours = encoder.load(folder, dtype="float32", device="cpu")
    assert ours.encoding_config.max_length == 512
    mine = np.concatenate([ours.encode(QUERIES, "query"), ours.encode(DOCUMENTS, "passage")])
    np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_qwen3_embeddings_are_tokenized_as_their_readme_does(qwen3_embedding: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(qwen3_embedding, padding_side="left")
    config = read_encoding_config(qwen3_embedding)
    assert (config.pooling, config.max_length, config.task) == ("last_token", 400, WEB_SEARCH), (
        "of 400 positions"
    )
    texts = [f"Instruct: {WEB_SEARCH}\nQuery:{text}" for text in QUERIES] + DOCUMENTS
    theirs = tokenizer(texts, truncation=True, max_length=8192)["input_ids"]
    assert theirs[0][-1] == tokenizer.pad_token_id != tokenizer.eos_token_id
    tokens = TextTokenizer(encoder.load_tokenizer(qwen3_embedding, config), config)
    assert tokens(QUERIES, "query") + tokens(DOCUMENTS, "passage") == theirs


def test_sentence_transformers_embeds_an_exported_preset_alike(
    qwen3_embedding: Path, tmp_path: Path
) -> None:
    """Qwen3 with the files that `merge` writes, read by the other library with the same prompts."""
    from sentence_transformers import SentenceTransformer

    folder = tmp_path / "exported"
    shutil.copytree(qwen3_embedding, folder)
    ours = encoder.load(qwen3_embedding, dtype="float32", device="cpu")
    assert write_layout(ours.encoding_config, ours.dim, folder) == ""
    peer = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    assert peer.prompts["query"] == f"Instruct: {WEB_SEARCH}\nQuery:"
    for role, encode, texts in (
        ("query", peer.encode_query, QUERIES),
        ("passage", peer.encode_document, DOCUMENTS),
    ):
        np.testing.assert_allclose(ours.encode(texts, role), encode(texts), atol=1e-4)  # type: ignore[arg-type]


@pytest.mark.parametrize("appends", [True, False])
def test_e5_mistral_ends_texts_whatever_its_tokenizer_does(
    tiny: dict[str, Path], tmp_path: Path, appends: bool
) -> None:
    folder = copy(tiny["qwen2"], tmp_path / "e5-mistral-7b-instruct")
    if appends:
        (folder / "tokenizer.json").unlink()
        about = json.loads((tiny["qwen2"] / "tokenizer.json").read_text())
        template = {"type": "TemplateProcessing", "pair": [], "special_tokens": {}}
        template["single"] = [
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "[END]", "type_id": 0}},
        ]
        template["special_tokens"] = {"[END]": {"id": "[END]", "ids": [1], "tokens": ["[END]"]}}
        (folder / "tokenizer.json").write_text(json.dumps(about | {"post_processor": template}))
    config = read_encoding_config(folder)
    tokens = TextTokenizer(encoder.load_tokenizer(folder, config), config)
    (row,) = tokens(["w1 w2"], "passage")
    assert row[-1] == 1
    assert row.count(1) == 1


def test_the_folder_has_the_last_word(minilm: Path, tmp_path: Path) -> None:
    """encoding_config.json, then what sentence-transformers' files say, then the preset, then the architecture."""
    folder = tmp_path / "e5-base-v2"
    shutil.copytree(minilm, folder, ignore=shutil.ignore_patterns(*UNUSED_FILES))
    found = read_encoding_config(folder)
    assert found == EncodingConfig("mean", True, 256, "query: {text}", "passage: {text}"), (
        "256 of sentence_bert_config"
    )
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    about = json.loads((folder / "config_sentence_transformers.json").read_text())
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps(about | {"prompts": {"query": "ask "}})
    )
    found = read_encoding_config(folder)
    assert (found.pooling, found.query_template, found.passage_template) == (
        "cls",
        "ask {text}",
        "passage: {text}",
    )
    own = EncodingConfig("last_token", False, 77)
    own.write(folder)
    assert read_encoding_config(folder) == own
    assert read_encoding_config(copy(minilm, tmp_path / "plain")).query_template == "{text}"


def test_the_task_in_a_folders_prompt_can_be_replaced(
    qwen3_embedding: Path, tmp_path: Path
) -> None:
    folder = copy(qwen3_embedding, tmp_path / "Qwen3-Embedding-4B")
    (folder / "modules.json").write_text(
        json.dumps([{"type": "sentence_transformers.models.Transformer", "path": ""}])
    )
    about = folder / "config_sentence_transformers.json"
    about.write_text(
        json.dumps({"prompts": {"query": "Instruct: Find the mistake\nQuery:", "document": ""}})
    )
    found = read_encoding_config(folder)
    assert (found.task, found.query_template) == (
        "Find the mistake",
        "Instruct: {task}\nQuery:{text}",
    )
    about.write_text(json.dumps({"prompts": {"query": "Question: "}}))
    found = read_encoding_config(folder)
    assert found.query_template == "Question: {text}"


JUDGE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct"
    ' provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)


def recipe_qwen3_reranker(
    folder: Path, pairs: list[tuple[str, str]], instruction: str
) -> tuple[list[Any], list[float]]:
    """Token ids and probabilities by the code of the README of QwenLM/Qwen3-Embedding."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prefix = tokenizer.encode(JUDGE, add_special_tokens=False)
    suffix = tokenizer.encode(
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", add_special_tokens=False
    )
    texts = [
        f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
        for query, document in pairs
    ]
    limit = 400 - len(prefix) - len(suffix)
    ids = tokenizer(
        texts, truncation="longest_first", return_attention_mask=False, max_length=limit
    )["input_ids"]
    ids = [prefix + row + suffix for row in ids]
    inputs = tokenizer.pad({"input_ids": ids}, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits[:, -1, :]
    answers = logits[:, [tokenizer.convert_tokens_to_ids(answer) for answer in ("no", "yes")]]
    return ids, torch.log_softmax(answers, dim=1)[:, 1].exp().tolist()


def test_qwen3_rerankers_score_as_their_readme_does(qwen3_reranker: Path) -> None:
    documents = [*DOCUMENTS, "word " * 100]
    pairs = [(query, document) for query in QUERIES for document in documents]
    ids, probabilities = recipe_qwen3_reranker(qwen3_reranker, pairs, WEB_SEARCH)
    config = read_reranker_config(qwen3_reranker)
    tokens = PairTokenizer(transformers.AutoTokenizer.from_pretrained(qwen3_reranker), config)
    rows = tokens.tokenize_pairs(QUERIES, [documents] * len(QUERIES))
    assert [first + second for own in rows for first, second in own] == ids
    ours = reranker.load(qwen3_reranker, dtype="float32", device="cpu")
    assert ours.shares_prefixes
    scores = np.concatenate(ours.score(QUERIES, [documents] * len(QUERIES)))
    np.testing.assert_allclose(1 / (1 + np.exp(-scores)), probabilities, atol=1e-5)


def test_rerankers_have_the_prompt_of_each_query(qwen3_reranker: Path) -> None:
    """With shared prefixes, against the README's code with one instruction after the other."""
    ours = reranker.load(qwen3_reranker, dtype="float32", device="cpu")
    prompts = ["Find the mistake.", "", "Find a longer text."]
    scores = ours.score(QUERIES, [DOCUMENTS] * 3, prompts)
    for query, prompt, own in zip(QUERIES, prompts, scores, strict=True):
        _, theirs = recipe_qwen3_reranker(
            qwen3_reranker, [(query, text) for text in DOCUMENTS], prompt or WEB_SEARCH
        )
        np.testing.assert_allclose(1 / (1 + np.exp(-own)), theirs, atol=1e-5)


def test_a_prompt_behind_the_passage_is_that_of_each_query(
    qwen3_reranker: Path, tmp_path: Path
) -> None:
    """FlagEmbedding's format, where prompts of other lengths leave passages other room."""
    folder = copy(qwen3_reranker, tmp_path / "bge-reranker-v2-gemma")
    given = replace(read_reranker_config(folder), answer="yes", max_length=200)
    assert (given.kind, given.query_template, given.separator) == ("yes_no", "A: {text}", "\n")
    ours = reranker.load(folder, dtype="float32", device="cpu", reranker_config=given)
    prompts = [
        "Yes or no?",
        "",
        "Is this the answer to the query A? Say yes or no, and nothing else.",
    ]
    scores = ours.score(QUERIES, [DOCUMENTS] * 3, prompts)
    for i, prompt in enumerate(prompts):
        own = reranker.load(
            folder,
            dtype="float32",
            device="cpu",
            reranker_config=replace(given, prompt=prompt or given.prompt),
        )
        np.testing.assert_allclose(scores[i], own.score([QUERIES[i]], [DOCUMENTS])[0], atol=1e-5)


def test_a_long_query_keeps_the_end_of_its_template(qwen3_reranker: Path) -> None:
    config = replace(read_reranker_config(qwen3_reranker), query_max_length=120)
    tokenizer = transformers.AutoTokenizer.from_pretrained(qwen3_reranker)
    ((row,),) = PairTokenizer(tokenizer, config).tokenize_pairs(["word " * 100], [["x"]])
    text = tokenizer.decode([*row[0], *row[1]])
    assert len(row[0]) == len(tokenizer(config.prefix)["input_ids"]) + 120
    assert "\n<Document>: x<|im_end|>" in text


def test_a_converted_reranker_is_none_of_the_family(minilm: Path, tmp_path: Path) -> None:
    about = {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    folder = copy(minilm, tmp_path / "Qwen3-Reranker-4B", **about)
    assert read_reranker_config(folder).kind == "cross_encoder"
    assert read_reranker_config(folder).query_template == "{text}"


def test_embedders_have_the_task_of_each_query(qwen3_embedding: Path) -> None:
    ours = encoder.load(qwen3_embedding, dtype="float32", device="cpu")
    tasks = ["Find the mistake.", "", "Find the mistake."]
    plain = replace(ours.encoding_config, query_template="{text}")
    by_hand = encoder.load(
        qwen3_embedding, dtype="float32", device="cpu", encoding_config=plain
    ).encode(
        [
            f"Instruct: {task or WEB_SEARCH}\nQuery:{text}"
            for task, text in zip(tasks, QUERIES, strict=True)
        ],
        "query",
    )
    np.testing.assert_allclose(ours.encode(QUERIES, "query", tasks), by_hand, atol=1e-5)
    assert not np.allclose(ours.encode(QUERIES, "query"), by_hand, atol=1e-3)
    np.testing.assert_array_equal(
        ours.encode(DOCUMENTS, "passage", tasks * 2),
        ours.encode(DOCUMENTS, "passage"),
        "passages have none",
    )


def test_examples_have_the_task_of_their_query(qwen3_embedding: Path, tmp_path: Path) -> None:
    folder = copy(qwen3_embedding, tmp_path / "bge-en-icl")
    config = replace(read_encoding_config(folder), examples=(("1 + 1", "2"),))
    tokens = TextTokenizer(encoder.load_tokenizer(folder, config), config)
    rows = tokens(["a", "b"], "query", tasks=["", "Add."])
    found = [tokens.tokenizer.decode(row, skip_special_tokens=True) for row in rows]
    assert found == [
        f"<instruct>{task}\n<query>1 + 1\n<response>2\n\n<instruct>{task}\n<query>{text}\n<response>"
        for task, text in ((WEB_SEARCH + ".", "a"), ("Add.", "b"))
    ]
