"""System prompts, stop strings and arguments of chat templates: set once, and the same in all jobs that ask models."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import transformers
from countdown_files import FAST, make_countdown_files

from ratchet.data.tables import read_shards
from ratchet.data.tasks.task import SAMPLES, row_to_sample
from ratchet.errors import DataError, InputError, ModelError
from ratchet.jobs.answers import (
    answering,
    generate,
    prepare_tasks,
    rejection_sample,
    sft,
    sft_training,
    teacher_logprobs,
)
from ratchet.jobs.answers import rejection_sample as sampling
from ratchet.jobs.answers import teacher_logprobs as teaching
from ratchet.jobs.answers.chat_options import read_chat
from ratchet.jobs.training.worker import WorkerInfo
from ratchet.orchestrator.job_interface import Context, Resources, Result
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.recipe import Settings, build, find
from ratchet.orchestrator.store import Store

# They make models of real architectures.
pytestmark = pytest.mark.slow

THINKING = (  # the rules of Qwen3's template: a last answer has an empty block of thoughts, and so has the prompt
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
SYSTEM = "Answer briefly.\nNothing else."


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Countdown with all three settings in asked/, without them in prepared/, and thinking/: a model like Qwen3."""
    folder = make_countdown_files(tmp_path_factory.mktemp("countdown"))
    config = prepare_tasks.Config(
        "countdown",
        shard_rows=10,
        system=SYSTEM.replace("\n", "\\n"),
        stop=("\\n\\n\\n",),
        chat_template_kwargs=("enable_thinking=false",),
    )
    inputs = prepare_tasks.Inputs(folder / "tasks/tasks")
    predicted = prepare_tasks.check(config, inputs, {})
    result = prepare_tasks.JOB.run(make_context(folder / "asked"), config, inputs)
    assert predicted.metrics["chat"] == result.metrics["chat"]
    shutil.copytree(folder / "base", folder / "thinking")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "base")
    tokenizer.chat_template = THINKING
    tokenizer.save_pretrained(folder / "thinking")
    return folder


def make_context(out: Path) -> Context:
    out.mkdir(parents=True)
    (work := out.with_name(f"{out.name}-work")).mkdir()
    return Context(out.name, "0" * 64, 1, out, work, Resources(1, 2.0, 0.0))


def test_system_prompt_of_samples(made: Path) -> None:
    assert read_chat(made / "asked/test") == ({"enable_thinking": False}, ("</answer>", "\n\n\n"))
    assert read_chat(made / "prepared/test") == ({}, ())
    before, after = (
        read_shards(made / name / "test", SAMPLES.names).to_pylist()
        for name in ("prepared", "asked")
    )
    assert after == [row | {"system": SYSTEM} for row in before]


def test_all_jobs_ask_with_the_same_tokens(made: Path, tmp_path: Path) -> None:
    """Against `apply_chat_template`, with the argument."""
    model, samples = made / "thinking", made / "asked/train"
    shard = samples / "shard-00000.parquet"
    sample = row_to_sample(pq.read_table(shard).slice(0, 1).to_pylist()[0])
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    talk = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": sample.turns[0][0]}]
    options = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
    asked = tokenizer.apply_chat_template(talk, **options)
    assert asked.endswith("</think>\n\n")
    expected = tokenizer(asked, add_special_tokens=False)["input_ids"]

    given = generate.Inputs(model, samples)
    worker = answering.Worker(generate.Config(dtype="float32"), given, 4096, "cpu")
    assert (
        worker.decoder.conversations.tokenize_sample(sample.system, [sample.turns[0][0]], []).ids
        == expected
    )
    assert worker.sampling.stop == ("</answer>", "\n\n\n")
    ids, parameters = answering.ShardClient(generate.Config(), given).requests(shard)[0]
    assert (ids.tolist(), parameters["stop"]) == (expected, ["</answer>", "\n\n\n"]), "of vLLM"

    inputs = sft.Inputs(model, samples, made / "asked/valid")
    task = sft_training.SftTask(WorkerInfo(0, 1, "cpu"), FAST, inputs, Resources(1, 1.0, 0.0))
    own = task.train[0]
    assert own.ids[: own.trained.index(True)] == expected
    assert task.stop == ("</answer>", "\n\n\n")

    teacher = teaching.Worker(
        teacher_logprobs.Config(dtype="float32"),
        teacher_logprobs.Inputs(model, samples, model),
        4096,
        "cpu",
    )
    taught = teacher.decoder.conversations.tokenize_sample(
        sample.system, [sample.turns[0][0]], [sample.turns[0][1]]
    )
    assert taught == own


def test_answers_of_a_teacher_are_asked_alike(made: Path, tmp_path: Path) -> None:
    samples = made / "asked/valid"
    completions = tmp_path / "completions"
    shutil.copytree(samples, completions)
    for path in completions.glob("*.parquet"):
        rows = pq.read_table(path)
        rows = rows.append_column("truncated", [[[[False]]] * len(rows)])
        pq.write_table(
            rows.append_column("answers", [[[own] for own in rows["targets"].to_pylist()]]), path
        )
    context = make_context(tmp_path / "kept")
    sampling.run(context, rejection_sample.Config(), rejection_sample.Inputs(completions, samples))
    assert read_chat(context.out) == read_chat(samples)


@pytest.mark.parametrize("model", ["base", "thinking"])
@pytest.mark.parametrize("argument", ["enable_thinkins=false"])
def test_unused_template_argument_is_refused(made: Path, model: str, argument: str) -> None:
    """A misspelt one, and any where the template takes none."""
    config = prepare_tasks.Config("countdown", chat_template_kwargs=(argument,))
    known = prepare_tasks.check(config, prepare_tasks.Inputs(made / "tasks/tasks"), {})
    for job, inputs, field in (
        (generate, generate.Inputs(made / model, None), "samples"),  # type: ignore[arg-type]
        (sft, sft.Inputs(made / model, None, None), "valid"),  # type: ignore[arg-type]
        (teacher_logprobs, teacher_logprobs.Inputs(made / model, None, made / model), "samples"),  # type: ignore[arg-type]
    ):
        assert job.JOB.check is not None
        with pytest.raises(ModelError, match="does not use enable_thinkins"):
            job.JOB.check(job.Config(), inputs, {field: known})
        if (job, model) == (
            sft,
            "thinking",
        ):  # else the model would learn to write the empty block of thoughts
            with pytest.raises(
                ModelError,
                match=r"makes the labels '<think>.*chat_template_kwargs=enable_thinking=false",
            ):
                job.JOB.check(job.Config(), inputs, {field: Result()})
        else:
            assert job.JOB.check(job.Config(), inputs, {field: Result()}) == Result()


def test_arguments_are_checked_with_the_model(made: Path) -> None:
    generate.JOB.check(
        generate.Config(), generate.Inputs(made / "thinking", made / "asked/test"), {}
    )  # type: ignore[misc]
    with pytest.raises(ModelError, match="does not use enable_thinking"):
        generate.JOB.check(
            generate.Config(), generate.Inputs(made / "base", made / "asked/test"), {}
        )  # type: ignore[misc]


def test_a_plan_refuses_them(made: Path, tmp_path: Path) -> None:
    def check(model: str) -> None:
        lines = [f"base={made / model}", "prepare_tasks.chat_template_kwargs=enable_thinking=false"]
        Plan(
            build(find("countdown"), Settings.read(lines))[0], Store.open(str(tmp_path / model))
        ).check()

    check("thinking")
    with pytest.raises(ModelError, match="leave it out of chat_template_kwargs"):
        check("base")


def test_bad_settings_are_named_with_what_was_given(made: Path) -> None:
    inputs = prepare_tasks.Inputs(made / "tasks/tasks")
    config = prepare_tasks.Config("countdown")
    for argument in ("enable_thinking", "enable_thinking=no"):
        with pytest.raises(
            InputError, match=f"chat_template_kwargs: '{argument}' given; expected name=value"
        ):
            prepare_tasks.check(
                dataclasses.replace(config, chat_template_kwargs=(argument,)), inputs, {}
            )
    with pytest.raises(
        DataError, match=r"tasks.jsonl:1: its target goes on after the stop string '</think>'"
    ):
        prepare_tasks.check(dataclasses.replace(config, stop=("</think>",)), inputs, {})


def test_the_file_is_read_as_json(made: Path) -> None:
    found = json.loads((made / "asked/train/chat.json").read_text())
    assert found == {
        "template_arguments": {"enable_thinking": False},
        "stop": ["</answer>", "\n\n\n"],
    }
    assert not (made / "prepared/train/chat.json").exists()


RULES: dict[str, str] = {
    "no system message": "{% if message.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}",
    "one turn": "{% if loop.index > 2 and message.role == 'user' %}{{ raise_exception('one turn') }}{% endif %}",
    "earlier answers shortened": "{% if not loop.last and message.role == 'assistant' %}(cut){% endif %}",
}
"""What a template does before a message."""
LOOP = "{% for message in messages %}"


def prepare(rows: list[list[tuple[str, str]]], folder: Path) -> tuple[Result, Path]:
    """Prepare conversations of (role, content). Return (the predicted result, the folder of the splits)."""
    lines = [{"messages": [{"role": role, "content": text} for role, text in row]} for row in rows]
    (folder / "chat.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = prepare_tasks.Config("chat", test_fraction=0.3, validation_fraction=0.3)
    inputs = prepare_tasks.Inputs(folder / "chat.jsonl")
    planned = prepare_tasks.check(config, inputs, {})
    result = prepare_tasks.JOB.run(make_context(folder / "made"), config, inputs)
    shapes = [
        {name: one.metrics.get(name) for name in ("turns", "system", "special_tokens")}
        for one in (planned, result)
    ]
    assert shapes[0] == shapes[1]
    return planned, folder / "made"


@pytest.mark.parametrize("kind", RULES)
def test_a_plan_renders_conversations_like_those_of_the_data(
    kind: str, made: Path, tmp_path: Path
) -> None:
    shutil.copytree(made / "base", base := tmp_path / "base")
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = tokenizer.chat_template.replace(LOOP, LOOP + RULES[kind], 1)
    tokenizer.save_pretrained(base)
    first = ("system", "Be brief.") if kind == "no system message" else ("user", "Hello")
    second = [] if kind == "no system message" else [("assistant", "Hi")]
    rows = [[first, *second, ("user", f"Question {i}"), ("assistant", str(i))] for i in range(9)]
    planned, out = prepare(rows, tmp_path)
    for model in (made / "base", base):
        calls: list[tuple[Any, Any, dict[str, Result]]] = [
            (generate, generate.Inputs(model, None), {"samples": planned}),  # type: ignore[arg-type]
            (generate, generate.Inputs(model, out / "train"), {}),
            (sft, sft.Inputs(model, None, None), {"train": planned, "valid": planned}),  # type: ignore[arg-type]
            (sft, sft.Inputs(model, out / "train", out / "valid"), {}),
        ]
        for job, inputs, parents in calls:
            if model == base:
                with pytest.raises(ModelError, match="its chat template"):
                    job.check(job.Config(), inputs, parents)
            else:
                job.check(job.Config(), inputs, parents)


def test_answers_with_the_end_of_an_answer_in_them_are_refused(made: Path, tmp_path: Path) -> None:
    rows = [[("user", str(i)), ("assistant", f"{i}<|im_end|> and more")] for i in range(9)]
    planned, out = prepare(rows, tmp_path)
    assert planned.metrics["special_tokens"] == "<|im_end|>"
    given = sft.Inputs(made / "base", out / "train", out / "valid")
    later = sft.Inputs(made / "base", None, None)  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match=r"the data: '<\|im_end\|>' in an answer, which ends answers of the model"
    ):
        sft.check(sft.Config(), later, {"train": planned, "valid": planned})
    with pytest.raises(InputError, match=r"made/train: sample .*'<\|im_end\|>' in an answer"):
        sft.check(sft.Config(), given, {})
    one = Resources(workers=1, cpus=1.0, gpus=0.0)
    with pytest.raises(InputError, match=r"made/train: sample .*'<\|im_end\|>' in an answer"):
        sft_training.SftTask(WorkerInfo(0, 1, "cpu"), sft.Config(learning_rate=1e-4), given, one)


def test_answers_whose_thoughts_the_template_drops_are_refused(made: Path, tmp_path: Path) -> None:
    """As the templates of DeepSeek-R1 and Qwen3 do."""
    shutil.copytree(made / "base", base := tmp_path / "base")
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    dropping = "{{ message.content.split('</think>')[-1] }}"
    tokenizer.chat_template = tokenizer.chat_template.replace("{{ message.content }}", dropping, 1)
    tokenizer.save_pretrained(base)
    rows = [
        [("user", str(i)), ("assistant", f"<think>\nHm {i}.\n</think>\n\n{i}")] for i in range(9)
    ]
    planned, out = prepare(rows, tmp_path)
    known = {"train": planned, "valid": planned}
    sft.check(sft.Config(), sft.Inputs(made / "base", None, None), known)  # type: ignore[arg-type]
    sft.check(sft.Config(), sft.Inputs(made / "base", out / "train", out / "valid"), {})
    with pytest.raises(ModelError, match="changes the answer '<think>"):
        sft.check(sft.Config(), sft.Inputs(base, None, None), known)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="changes the answer '<think>"):
        sft.check(sft.Config(), sft.Inputs(base, out / "train", out / "valid"), {})
