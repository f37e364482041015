"""Settings that replace fields of encoding configs and reranker configs, where a model is used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratchet.data.formats.examples import read_examples
from ratchet.errors import DataError, InputError, ModelError
from ratchet.jobs.prompt_settings import (
    ICL_TEMPLATE,
    EncodingSettings,
    RerankerSettings,
    resolve_encoding_config,
    resolve_reranker_config,
)
from ratchet.jobs.retrieval import embed, finetune_embedder, finetune_reranker, rerank
from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import EncodingConfig, read_encoding_config
from ratchet.models.model_files import MINILM, resolve
from ratchet.models.reranker.reranker_config import YES_NO
from ratchet.orchestrator.recipe import Settings, build, find
from ratchet.orchestrator.step import Source, Step, step

TASK = "Find the mistake."


@pytest.fixture(scope="module")
def minilm() -> Path:
    return resolve(MINILM)


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("examples") / "examples.jsonl"
    rows = [
        {"query": "1 + 1 = 3", "answer": "Counts on."},
        {"query": "2 x 3 = 5", "response": "Adds."},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_without_settings_the_config_is_that_of_the_folder(minilm: Path) -> None:
    assert resolve_encoding_config("embed", EncodingSettings(), minilm) == read_encoding_config(
        minilm
    )


@pytest.mark.slow
def test_vectors_are_those_of_texts_in_the_template(minilm: Path, chosen: Path) -> None:
    """What `embed` is told by settings, against the same texts written out by hand."""
    settings = EncodingSettings(
        task=TASK,
        query_template="Instruct: {task}\\nQuery: {text}",
        example_template="Instruct: {task}\\nQuery: {text}\\nAnswer: {answer}",
        pooling="cls",
        normalize=False,
        max_length=90,
    )
    found = resolve_encoding_config("embed", settings, minilm, None, read_examples(chosen))
    plain = EncodingConfig("cls", False, 90)
    one, other = (
        encoder.load(minilm, dtype="float32", device="cpu", encoding_config=each)
        for each in (found, plain)
    )
    shown = "".join(
        f"Instruct: {TASK}\nQuery: {query}\nAnswer: {answer}\n\n"
        for query, answer in (("1 + 1 = 3", "Counts on."), ("2 x 3 = 5", "Adds."))
    )
    texts = ["3 - 5 = 2", "What is 7 x 8?"]
    by_hand = other.encode([f"{shown}Instruct: {TASK}\nQuery: {text}" for text in texts], "passage")
    np.testing.assert_allclose(one.encode(texts, "query"), by_hand, atol=1e-5)
    assert not np.allclose(one.encode(texts, "passage"), by_hand, atol=1e-2)


def test_examples_default_to_bge_en_icl(minilm: Path, chosen: Path) -> None:
    found = resolve_encoding_config(
        "embed", EncodingSettings(task=TASK), minilm, None, read_examples(chosen)
    )
    assert (found.query_template, found.example_template) == (
        ICL_TEMPLATE,
        ICL_TEMPLATE + "{answer}",
    )
    own = EncodingSettings(task=TASK, query_template="{task}: {text} ")
    found = resolve_encoding_config("embed", own, minilm, None, read_examples(chosen))
    assert (found.query_template, found.example_template) == (
        "{task}: {text} ",
        "{task}: {text} {answer}",
    )


def test_limits_of_examples(minilm: Path) -> None:
    settings = EncodingSettings(example_query_max_length=3, example_answer_max_length=1)
    given = resolve_encoding_config(
        "embed", settings, minilm, None, [("one two three four five", "six seven")]
    )
    loaded = encoder.load(minilm, dtype="float32", device="cpu", encoding_config=given)
    assert loaded.encoding_config.examples == (("one two three", "six"),), (
        "what is saved is what is read"
    )


def build_steps(*settings: str) -> dict[str, Step]:
    lines = [f"data={Path(__file__)}", "iterations=1", *settings]
    return {one.name: one for one in build(find("retriever"), Settings.read(lines))[0]}


def test_step_settings_in_a_sweep() -> None:
    steps = build_steps(
        "zero_shot/embed_*.query_template=query: {text}",
        "finetune_embedder.passage_template=passage: {text}",
    )
    assert steps["zero_shot/embed_test"].config.query_template == "query: {text}"
    assert steps["iter0/embed_test"].config.query_template is None, (
        "a merged model brings its template along"
    )
    assert steps["iter0/finetune_embedder"].config.passage_template == "passage: {text}"


def test_examples_go_to_the_first_miner_and_to_the_finetunes(chosen: Path) -> None:
    given = {
        name
        for name, one in build_steps(f"examples={chosen}").items()
        if one.inputs.get("examples")
    }
    assert given == {
        *(f"zero_shot/embed_{split}" for split in ("train", "valid", "test")),
        "iter0/finetune_embedder",
    }


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            EncodingSettings(task=TASK),
            r"embed\.task: 'Find the mistake\.' given, but no template has \{task\}",
        ),
        (
            EncodingSettings(query_template="query: {txt}"),
            r"query_template: .* unknown placeholder \{txt\}",
        ),
        (
            EncodingSettings(query_template="{text} {tsak}"),
            r"query_template: .* unknown placeholder \{tsak\}",
        ),
    ],
)
def test_what_does_nothing_is_refused_when_planned(
    minilm: Path, settings: EncodingSettings, said: str
) -> None:
    config = replace(
        embed.Config(role="query"), **{k: v for k, v in vars(settings).items() if v is not None}
    )
    with pytest.raises((InputError, ModelError), match=said):
        embed.check(config, embed.Inputs(minilm, minilm), {})


def test_task_may_be_given_for_the_corpus(minilm: Path) -> None:
    """By one line for all steps of a model: `zero_shot/embed_*.task=...`."""
    embed.check(embed.Config(role="passage", task=TASK), embed.Inputs(minilm, minilm), {})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"query": "a"}', r":1: no field 'answer'"),
        ('{"query": "a", "answer": 3}', r":1: field 'answer' is int"),
        ('{"query": " ", "answer": "b"}', r":1: an empty query or answer"),
        ("", "only blank lines"),
    ],
)
def test_bad_examples_are_named_with_their_line(
    minilm: Path, tmp_path: Path, line: str, said: str
) -> None:
    file = tmp_path / "examples.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(DataError, match=said):
        embed.check(embed.Config(), embed.Inputs(minilm, minilm, examples=file), {})


def decoder_folder(folder: Path) -> Path:
    shape = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    (folder / "config.json").write_text(json.dumps(shape))
    return folder


def test_the_reranker_config_is_replaced_field_by_field(tmp_path: Path, minilm: Path) -> None:
    base = decoder_folder(tmp_path)
    assert resolve_reranker_config(RerankerSettings(), base) == YES_NO
    settings = RerankerSettings(
        prompt="Does B explain A?\\n", against="No", query_template="Q {text}", max_length=64
    )
    expected = replace(
        YES_NO, prompt="Does B explain A?\n", against="No", query_template="Q {text}", max_length=64
    )
    assert resolve_reranker_config(settings, base) == expected
    with pytest.raises(ModelError, match="prompt given, for a cross-encoder"):
        resolve_reranker_config(RerankerSettings(prompt="x"), minilm)


def test_one_base_is_an_embedder_and_a_reranker_at_once(tmp_path: Path) -> None:
    """Neither needs a file in the folder, and the file of one does not change the other."""
    base = decoder_folder(tmp_path)
    embeds = resolve_encoding_config("embed", EncodingSettings(query_template="q {text}"), base)
    reranks = resolve_reranker_config(RerankerSettings(prompt="p"), base)
    embeds.write(base)
    assert resolve_reranker_config(RerankerSettings(prompt="p"), base) == reranks
    reranks.write(base)
    assert resolve_encoding_config("embed", EncodingSettings(), base) == embeds
    assert resolve_reranker_config(RerankerSettings(), base) == reranks


@pytest.mark.parametrize("job", [embed, rerank, finetune_embedder, finetune_reranker])
def test_settings_are_identity(job: Any, tmp_path: Path) -> None:
    inputs = {name: Source(tmp_path) for name in job.Inputs.__dataclass_fields__}
    one, other = (
        step("s", job.JOB, **inputs, query_template=text) for text in ("a {text}", "b {text}")
    )
    assert one.config != other.config
