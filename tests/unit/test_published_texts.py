"""The texts that the models of the published Eedi runs get: instruction, an example of the same construct, question."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_shapes import save_shape
from published_runs import replace_models
from transformers import AutoTokenizer

from ratchet.data.formats.eedi import LABELS, PROMPT, TASK
from ratchet.data.tables import read_shards
from ratchet.jobs.prompt_settings import (
    list_instructions,
    list_own_examples,
    resolve_encoding_config,
    resolve_reranker_config,
)
from ratchet.jobs.retrieval import embed, prepare
from ratchet.models.embedder.encoding_config import EncodingConfig
from ratchet.models.embedder.tokenization import TextTokenizer
from ratchet.models.reranker.reranker_config import PairTokenizer
from ratchet.orchestrator.job_interface import Context
from ratchet.orchestrator.recipe import Settings, build, find, find_settings, read_settings
from ratchet.orchestrator.step import Source, Step

QUESTIONS = 12


def write_eedi(folder: Path) -> Path:
    """Write questions of six constructs, two of each, with one labelled wrong answer."""
    folder.mkdir()
    rows: list[dict[str, Any]] = []
    for number in range(QUESTIONS):
        row: dict[str, Any] = dict.fromkeys(LABELS, "")
        row |= {"QuestionId": number, "QuestionText": f"What is {number} + {number}?"}
        row |= {"ConstructId": number % 6, "ConstructName": f"Add {number % 6}", "SubjectId": 1}
        row |= {"CorrectAnswer": "A", "MisconceptionBId": number}
        row |= {f"Answer{letter}Text": f"{letter}{number}" for letter in "ABCD"}
        rows.append(row)
    with (folder / "train.csv").open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    names = "".join(f"{number},Adds {number} wrongly\n" for number in range(QUESTIONS))
    (folder / "misconception_mapping.csv").write_text(f"MisconceptionId,MisconceptionName\n{names}")
    return folder


def ask(number: int) -> str:
    return (
        f"Question: What is {number} + {number}?\nHint: Add {number % 6}\nCorrect answer: A{number}"
        f"\nWrong answer: B{number}"
    )


@pytest.fixture
def steps(tmp_path: Path) -> dict[str, Step]:
    model = save_shape(tmp_path / "model", "0.5B")
    lines = [
        *read_settings(find_settings("published/misconceptions-submission")),
        *replace_models("misconceptions-submission", dict.fromkeys(("7B", "14B"), model)),
        f"data={write_eedi(tmp_path / 'eedi')}",
    ]
    made, _, _ = build(find("misconceptions"), Settings.read(lines))
    return {step.name: step for step in made}


def test_embedders_get_instruction_and_examples_of_the_same_construct(
    steps: dict[str, Step], context: Callable[..., Context], tmp_path: Path
) -> None:
    own = context(name="prepared")
    preparing = steps["prepare"]
    (data,) = preparing.inputs["data"]
    assert isinstance(data, Source)
    prepare.run(own, preparing.config, prepare.Inputs((data.path,)))
    train = read_shards(own.out / "train")
    assert len(train) == QUESTIONS, "nothing is held out"
    examples = own.out / prepare.EXAMPLES
    assert len(examples.read_text().splitlines()) == 1

    model = tmp_path / "model"
    mining = steps["zero_shot/embed_train"].config
    mined_by = embed.find_encoding_config(mining, embed.Inputs(model, train, examples=examples))
    trained: Any = steps["iter0/finetune_embedder"].config
    finetuned = resolve_encoding_config("finetune_embedder", trained, model, examples=())
    assert (mined_by.query_max_length, mined_by.passage_max_length) == (1024, 512)
    assert (finetuned.max_length, finetuned.passage_max_length) == (1024, 128)
    for config, settings in ((mined_by, mining), (finetuned, trained)):
        check_texts(config, list_instructions(settings, train), train, model)


def check_texts(config: EncodingConfig, tasks: list[str], train: Any, model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenize = TextTokenizer(tokenizer, config)
    shown = tokenize(train["text"].to_pylist(), "query", list_own_examples(train), tasks)
    for name, ids in zip(train["id"].to_pylist(), shown, strict=True):
        number = int(name.removesuffix("_B"))
        other = (number + 6) % QUESTIONS
        assert tokenizer.decode(ids, skip_special_tokens=True) == (
            f"<instruct>{TASK}\n<query>{ask(other)}\n<response>Adds {other} wrongly\n\n"
            f"<instruct>{TASK}\n<query>{ask(number)}\n<response>"
        )
    long = "x" * 3000
    (passage,) = tokenize([long], "passage")
    assert config.passage_max_length is not None
    assert len(tokenizer.decode(passage, skip_special_tokens=True)) == config.passage_max_length


def test_rerankers_are_asked_about_misconceptions(steps: dict[str, Step], tmp_path: Path) -> None:
    model = tmp_path / "model"
    tokenizer = AutoTokenizer.from_pretrained(model)
    for name in ("iter0/finetune_reranker", "iter1/rerank_mined", "iter1/rerank_hard"):
        config: Any = steps[name].config
        tokenize = PairTokenizer(tokenizer, resolve_reranker_config(config, model))
        ((pair,),) = tokenize.tokenize_pairs([ask(3)], [["Adds 3 wrongly"]])
        text = tokenizer.decode([*pair[0], *pair[1]])
        assert text == f"A: {ask(3)}\nB: Adds 3 wrongly\n{PROMPT}", name
