"""Mistakes in the choice of a model: adapters, single files, other kinds of models, damaged folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import mistakes
import pytest
from mistakes import MODEL, Mistake

TASKS = "".join(
    json.dumps({"question": f"{i} + 1?", "answer": f"#### {i + 1}"}) + "\n" for i in range(40)
)
JSONL = "".join(
    json.dumps({"query": f"q {i}", "pos": [f"right {i}"], "neg": [f"wrong {i}"]}) + "\n"
    for i in range(60)
)


def retriever(
    name: str, base: str, answer: str, files: Mapping[str, str | bytes] = MODEL
) -> Mistake:
    data = {"data.jsonl": JSONL}
    return Mistake(
        name, f"plan retriever --set data=data.jsonl --set base={base}", answer, {**data, **files}
    )


def gsm8k(name: str, answer: str, files: Mapping[str, str | bytes]) -> Mistake:
    command = "plan gsm8k --set data=train.jsonl --set base=base"
    return Mistake(name, command, answer, {"train.jsonl": TASKS, **files})


def config(**values: object) -> dict[str, str | bytes]:
    """The files of a model with another config.json."""
    return {**MODEL, "base/config.json": json.dumps(values)}


ADAPTER = json.dumps({"base_model_name_or_path": "BAAI/bge-small-en", "r": 8})
PATHS = [
    retriever("gguf_file", "m.gguf", r"model m\.gguf: this is a file", {"m.gguf": "GGUF"}),
    retriever(
        "weights_file", "base/model.safetensors", r"model base/model\.safetensors: this is a file"
    ),
    retriever("bin_file", "w.bin", r"model w\.bin: this is a file", {"w.bin": "x"}),
    retriever("config_file", "base/config.json", r"model base/config\.json: this is a file"),
    retriever("text_file", "m.txt", r"model m\.txt: this is a file", {"m.txt": ""}),
    retriever("missing", "nowhere", r"model 'nowhere': no such folder"),
    retriever("missing_path", "./nowhere", r"model '\./nowhere': no such folder"),
    retriever("empty_name", "''", r"model '': no such folder"),
    retriever(
        "unknown_home", "~nobody-at-all/model", r"model '~nobody-at-all/model': no such folder"
    ),
    retriever("three_parts", "a/b/c", r"model 'a/b/c': no such folder"),
    retriever(
        "not_fetched",
        "nobody/nothing-at-all",
        r"model 'nobody/nothing-at-all': neither a folder, .*",
    ),
]
FOLDERS = [
    retriever(
        "adapter",
        "lora",
        r"model 'BAAI/bge-small-en': neither a folder, .*",
        {"lora/adapter_config.json": ADAPTER},
    ),
    retriever(
        "adapter_of_unknown",
        "lora",
        r"lora/adapter_config\.json: no base_model_name_or_path",
        {"lora/adapter_config.json": "{}"},
    ),
    retriever(
        "adapter_damaged",
        "lora",
        r"lora/adapter_config\.json: not JSON .*",
        {"lora/adapter_config.json": "{"},
    ),
    Mistake(
        "generator is an encoder",
        "plan retriever --set data=data.jsonl --set base=base --set generator=base",
        r"model base: this is an encoder \(BertModel\)",
        {"data.jsonl": JSONL, **MODEL},
    ),
    retriever(
        "no template",
        "base --set generator=base --set prepare_query_generation.prompt_template=Ask",
        r"prepare_query_generation\.prompt_template: 'Ask' given, with no {document} in it",
    ),
    retriever("empty_folder", "e", r"model e: no config\.json", {"e/": ""}),
    retriever(
        "folder_above",
        "up",
        r"model up: no config\.json; .*did you mean 'up/base'\?",
        {f"up/{name}": content for name, content in MODEL.items()},
    ),
    retriever(
        "config_truncated",
        "base",
        r"base/config\.json: not JSON \(.*\)",
        {**MODEL, "base/config.json": '{"architectures": ["Be'},
    ),
    retriever(
        "config_empty",
        "base",
        r"base/config\.json: not JSON \(.*\)",
        {**MODEL, "base/config.json": ""},
    ),
    retriever(
        "config_list",
        "base",
        r"base/config\.json: a list given",
        {**MODEL, "base/config.json": "[]"},
    ),
    retriever(
        "config_utf16",
        "base",
        r"base/config\.json: not JSON \(.*\)",
        {**MODEL, "base/config.json": "{}".encode("utf-16")},
    ),
    retriever(
        "config_nested",
        "base",
        r"base/config\.json: not JSON \(.*\)",
        {**MODEL, "base/config.json": "[" * 100_000},
    ),
    retriever(
        "no_tokenizer",
        "base",
        r"model base: no tokenizer",
        {name: content for name, content in MODEL.items() if "tokenizer" not in name},
    ),
    retriever(
        "no_weights",
        "base",
        r"model base: no weights \(model\.safetensors is missing\)",
        {name: content for name, content in MODEL.items() if "safetensors" not in name},
    ),
    retriever(
        "cut_weights",
        "base",
        r"model base: model\.safetensors is cut short, .*",
        {**MODEL, "base/model.safetensors": b"version https://git-lfs"},
    ),
    retriever(
        "index_damaged",
        "base",
        r"base/model\.safetensors\.index\.json: cannot be read .*",
        {**MODEL, "base/model.safetensors.index.json": "{"},
    ),
]
KINDS = [
    retriever(
        "images",
        "base",
        r"model base: this is a model of images or sound \(CLIPModel\)",
        config(architectures=["CLIPModel"], model_type="clip"),
    ),
    retriever(
        "no_model_type",
        "base",
        r"model base: transformers cannot open its config or tokenizer .*",
        config(architectures=["BertModel"]),
    ),
    retriever(
        "unknown_model_type",
        "base",
        r"model base: transformers cannot open its config or tokenizer .*",
        config(architectures=["BerttModel"], model_type="bertt"),
    ),
    retriever(
        "tokenizer_cut",
        "base",
        r"base/tokenizer\.json: not JSON \(.*\)",
        {**MODEL, "base/tokenizer.json": "{"},
    ),
    retriever(
        "tokenizer_list",
        "base",
        r"base/tokenizer\.json: a list given",
        {**MODEL, "base/tokenizer.json": "[]"},
    ),
    retriever(
        "custom_code",
        "base",
        r"model base: needs its own code \(.*x--modeling\.Own.*\)",
        config(architectures=["Own"], auto_map={"AutoModel": "x--modeling.Own"}),
    ),
    retriever(
        "custom_code_file",
        "base",
        r"model base: needs its own code \(.*modeling_own\.Own.*\)",
        {
            **config(model_type="own", auto_map={"AutoModel": "modeling_own.Own"}),
            "base/modeling_own.py": "",
        },
    ),
    retriever(
        "custom_code_not_fetched",
        "base",
        r"model base: needs its own code \(.*a/b--modeling_own\.Own.*\)",
        config(
            architectures=["BertModel"],
            model_type="bert",
            auto_map={"AutoModel": "a/b--modeling_own.Own"},
        ),
    ),
    retriever(
        "reranker_as_embedder",
        "base",
        r"model base: this is a reranker \(BertForSequenceClassification\)",
        config(architectures=["BertForSequenceClassification"], model_type="bert"),
    ),
    retriever(
        "t5_as_embedder",
        "base",
        r"model base: this is an encoder-decoder \(T5ForConditionalGeneration\)",
        config(architectures=["T5ForConditionalGeneration"], model_type="t5"),
    ),
    gsm8k("encoder_as_decoder", r"model base: this is an encoder \(BertModel\)", {**MODEL}),
    gsm8k(
        "masked_as_decoder",
        r"model base: this is an encoder \(RobertaForMaskedLM\)",
        config(architectures=["RobertaForMaskedLM"], model_type="roberta"),
    ),
    gsm8k(
        "reranker_as_decoder",
        r"model base: this is a reranker \(.*\)",
        config(architectures=["Qwen2ForSequenceClassification"], model_type="qwen2"),
    ),
    gsm8k(
        "t5_as_decoder",
        r"model base: this is an encoder-decoder \(.*\)",
        config(architectures=["T5ForConditionalGeneration"], model_type="t5"),
    ),
    gsm8k(
        "adapter_as_decoder",
        r"model 'BAAI/bge-small-en': neither a folder, .*",
        {"base/adapter_config.json": ADAPTER},
    ),
]
RERANKERS = [
    Mistake(
        f"reranker_{name}",
        f"plan retriever --set data=data.jsonl --set base=base --set reranker={name}",
        rf"reranker: model '{name}': no such folder",
        {"data.jsonl": JSONL, **MODEL},
    )
    for name, hint in (
        ("embeder", r"; did you mean 'embedder'\?"),
        ("non", r"; did you mean 'none'\?"),
        ("true", ""),
    )
]


@mistakes.parametrize(PATHS, FOLDERS, KINDS, RERANKERS)
def test_the_answer(
    mistake: Mistake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    mistakes.check(mistake, tmp_path, monkeypatch, capsys)
