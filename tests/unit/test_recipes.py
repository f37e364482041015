"""Recipes that are built and not run: their steps, and steps that they share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from model_shapes import save_shape
from published_runs import write_data
from store_contents import made
from tiny_models import save_chat_model

from ratchet.errors import InputError, ModelError, RecipeError
from ratchet.models.model_files import MINILM, resolve
from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.finished_run import FinishedRun
from ratchet.orchestrator.recipe import Settings, build, find
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.step import Output, Step, Summary
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.sweeps.plan import find_objective, reads_test_split
from ratchet.recipes.predict import find_last, find_systems

# They plan whole recipes.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        (
            "countdown",
            {},
            {"tasks", "base", "start/generate", "checkpoint-3000/evaluate", "checkpoints"},
        ),
        ("countdown", {"base": "BASE", "checkpoints": ""}, {"sft", "best/evaluate"}),
        (
            "countdown",
            {"base": "BASE", "teacher": "BASE"},
            {"teacher/logprobs", "teacher/test/evaluate"},
        ),
        (
            "gsm8k",
            {"base": "BASE", "data": "x", "teacher": "BASE", "teacher_completions": "4"},
            {"teacher/rejection_sample", "sft"},
        ),
        (
            "countdown",
            {"base": "BASE", "teacher": "BASE", "distill_steps": "5,10", "grpo_steps": "5"},
            {"distill", "checkpoint-10/evaluate", "checkpoints", "best/evaluate", "grpo"},
        ),
        (
            "gsm8k",
            {
                "base": "BASE",
                "data": "x",
                "teacher": "BASE",
                "teacher_completions": "4",
                "distill_steps": "5",
            },
            {"teacher/rejection_sample", "distill", "checkpoints"},
        ),
        (
            "countdown",
            {"grpo_steps": "5,10"},
            {"checkpoints", "grpo/checkpoint-10/evaluate", "grpo/checkpoints"},
        ),
        (
            "gsm8k",
            {"base": "BASE", "data": "x", "evaluate_as": "same,gsm8k-boxed", "grpo_steps": "5"},
            {"grpo", "grpo/best/evaluate", "gsm8k-boxed/grpo/best/evaluate", "grpo/checkpoints"},
        ),
        ("squad", {"base": "BASE", "data": "x"}, {"batch/trained/evaluate", "sequential/sft"}),
        (
            "squad",
            {"base": "BASE", "data": "x", "max_train": "20,50"},
            {"batch-20/untrained/evaluate", "batch-50/sft"},
        ),
        (
            "gsm8k",
            {"base": "BASE", "data": "x", "evaluate_as": "gsm8k-boxed"},
            {"gsm8k-boxed/trained/evaluate"},
        ),
        ("countdown", {"base": "BASE", "baselines": "BASE"}, {"baseline-0/evaluate"}),
        ("chat", {"base": "BASE", "data": "x"}, {"prepare", "sft"}),
        (
            "chat",
            {"base": "BASE", "data": "x", "verifier": "exact"},
            {"start/evaluate", "trained/evaluate"},
        ),
    ],
)
def test_recipes_that_answer_can_be_built(
    tmp_path: Path, name: str, settings: dict[str, str], expected: set[str]
) -> None:
    from ratchet.orchestrator.recipe import Settings, build, find

    given = {key: str(tmp_path) if value == "BASE" else value for key, value in settings.items()}
    steps, summary, _ = build(find(name), Settings(given))
    assert expected <= {step.name for step in steps}
    assert all(row.columns for row in summary.rows)


@pytest.mark.parametrize(
    ("lines", "is_held_out"),
    [
        ([], True),
        (["validation_fraction=0"], False),
        (["validation_fraction=0", "valid=VALID"], True),
    ],
)
def test_theorems_can_train_on_all_papers(
    tmp_path: Path, lines: list[str], is_held_out: bool
) -> None:
    file = tmp_path / "papers.jsonl"
    file.touch()
    given = [line.replace("VALID", str(file)) for line in lines]
    given += [f"base={tmp_path}", f"data={file}"]
    steps, summary, _ = build(find("theorems"), Settings.read(given))
    (finetuned,) = (step for step in steps if step.job.name == "finetune_embedder_pairs")
    assert (finetuned.inputs["valid"] is not None) == is_held_out
    assert summary.comparisons == [("zero-shot", "finetuned")]


def test_strategies_of_squad_are_compared_as_in_its_logbook(tmp_path: Path) -> None:
    lines = [f"base={tmp_path}", "data=x", "max_train=20,50"]
    _, summary, _ = build(find("squad"), Settings.read(lines))
    batch = ["baseline_batch", "sft_lora_batch on 20", "sft_lora_batch on 50"]
    sequential = [label.replace("batch", "sequential") for label in batch]
    assert [row.label for row in summary.rows] == batch + sequential
    expected = set(combinations(batch, 2)) | set(combinations(sequential, 2))
    expected |= set(zip(batch[1:], sequential[1:], strict=True))
    assert set(summary.comparisons) == expected
    columns = "EM F1 Lenient Q/Ctx PromptTok GenTok PromptTok_API GenTok_API Latency"
    assert all(" ".join(row.columns) == columns for row in summary.rows)


def test_only_another_answer_format_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = (
        {"question": f"{i} + 1?", "answer": f"<<{i}+1={i + 1}>>\n#### {i + 1}"} for i in range(20)
    )
    file = tmp_path / "train.jsonl"
    file.write_text("\n".join(map(json.dumps, problems)))
    save_chat_model(tmp_path / "base", ["1 + 2?"])
    said = {}
    for formats in ("same", "same,gsm8k-boxed", "gsm8k", "gsm8k-boxed"):
        words = [
            "plan",
            "gsm8k",
            "--store",
            str(tmp_path / "store"),
            "--set",
            "task=gsm8k-annotated",
        ]
        for line in (f"base={tmp_path / 'base'}", f"data={file}", f"evaluate_as={formats}"):
            words += ["--set", line]
        assert main(words) == 0
        said[formats] = [
            line for line in capsys.readouterr().err.split("\n") if "evaluate_as" in line
        ]
    (warning,) = said.pop("gsm8k-boxed")
    assert (
        "warning: evaluate_as: gsm8k-boxed, and the model is trained as gsm8k-annotated" in warning
    )
    assert not any(said.values())
    lines = [f"base={tmp_path / 'base'}", f"data={file}", "evaluate_as=same,gsm8k-boxed"]
    _, summary, _ = build(find("gsm8k"), Settings.read(lines))
    labels = ["untrained", "trained", "untrained, as gsm8k-boxed", "trained, as gsm8k-boxed"]
    assert [row.label for row in summary.rows] == labels
    assert summary.comparisons == [(labels[0], labels[1]), (labels[2], labels[3])]


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("prepare.seed=7", True),
        ("prepare.test_fraction=0.5", True),
        ("prepare_tasks.seed=7", False),
        ("seed=7", False),
        ("prepare.max_test=5", False),
    ],
)
def test_other_formats_are_evaluated_on_the_same_test_problems(
    line: str, refused: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another split would have problems for the test that are trained on."""
    model = save_shape(tmp_path / "model", "0.5B")
    given = [*write_data(tmp_path)["gsm8k"], f"base={model}", "evaluate_as=same,gsm8k-boxed", line]
    words = [word for one in given for word in ("--set", one)]
    status = main(["plan", "gsm8k", *words, "--store", str(tmp_path / "store")])
    said = "expected the same split, else test samples are trained on" in capsys.readouterr().err
    assert (status, said) == (2 if refused else 0, refused)


@pytest.mark.parametrize(("name", "parameter"), [("embed", "texts"), ("search", "documents")])
def test_columns_of_texts_are_named_behind_the_path(
    name: str, parameter: str, tmp_path: Path
) -> None:
    file = tmp_path / "docs.csv"
    file.write_text("sku,body\na1,hello\na2,there\n")
    given = {
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        parameter: f"{file}?id=sku&text=body",
    }
    steps, _, _ = build(find(name), Settings(given))
    prepared = next(step for step in steps if step.name == "prepare")
    assert prepared.config.reading == "id=sku&text=body"


@pytest.mark.parametrize("name", ["countdown", "quickstart"])
def test_a_recipe_that_makes_its_data_can_be_planned(name: str, tmp_path: Path) -> None:
    assert main(["plan", name, "--store", str(tmp_path / "store")]) == 0


@pytest.fixture
def data(tmp_path: Path) -> str:
    file = tmp_path / "train.jsonl"
    file.write_text(
        "".join(f'{{"query": "q{i}", "pos": ["p{i}"], "neg": []}}\n' for i in range(40))
    )
    return f"data={file}"


def build_retriever(*lines: str) -> tuple[list[Step], Summary]:
    steps, summary, _ = build(find("retriever"), Settings.read(lines))
    return steps, summary


def test_folds_have_steps_of_their_own_and_one_row_per_system(data: str) -> None:
    steps, summary = build_retriever(data, "folds=3", "iterations=1", "reranker=embedder")
    plain, _ = build_retriever(data, "iterations=1", "reranker=embedder")
    names = [step.name for step in steps]
    expected = []
    for i in range(3):
        for step in plain:
            # Only the models of the first fold are results of the run; the others are merged when they are loaded.
            if i == 0 or step.name != "iter0/merge_reranker":
                expected.append(f"fold{i}/{step.name}")
    assert sorted(names) == sorted(expected)
    prepared = [step.config for step in steps if step.job.name == "prepare"]
    assert [(config.folds, config.fold) for config in prepared] == [(3, 0), (3, 1), (3, 2)]
    zero_shot = ["zero-shot", "nearest training queries", "zero-shot, fused"]
    trained = ["iteration 0", "iteration 0, reranked", "iteration 0, fused"]
    assert [row.label for row in summary.rows] == ["BM25", *zero_shot, *trained]
    for row in summary.rows:
        for title in row.columns:
            found = [metric.step.name for name, metric in row.metrics if name == title]
            assert [name.partition("/")[0] for name in found] == ["fold0", "fold1", "fold2"]
            assert len({name.partition("/")[2] for name in found}) == 1


@pytest.mark.parametrize("method", ["lora", "full"])
def test_predictions_find_the_last_iteration_of_a_run(
    data: str, method: str, tmp_path: Path
) -> None:
    steps, _ = build_retriever(data, f"method={method}", "reranker=embedder")
    step_ids = {step.name: str(number) for number, step in enumerate(steps)}
    store = Store.open(str(tmp_path / "store"))
    assert find_last(FinishedRun("run", "retriever", store, step_ids)) == "iter1"
    del step_ids["iter1/embed_corpus"]
    step_ids.pop("iter1/merge_embedder", "")
    assert find_last(FinishedRun("run", "retriever", store, step_ids)) == "iter0"


def test_the_table_shows_what_is_held_out(data: str) -> None:
    _, whole = build_retriever(data, "reranker=embedder")
    shown = {"MAP@25", "R@25", "seen MAP@25", "unseen MAP@25"}
    assert set(whole.rows[0].columns) == shown
    assert set(whole.rows[-1].columns) == shown
    assert set(whole.rows[-2].columns) == {*shown, "loss"}

    steps, summary = build_retriever(data, "test_fraction=0", "reranker=embedder")
    assert not any("test" in step.name for step in steps)
    assert {f"{title} of valid" for title in shown} == set(summary.rows[0].columns)
    assert {
        metric.step.name
        for row in summary.rows
        for _, metric in row.metrics
        if row.label == "zero-shot"
    } == {"zero_shot/evaluate_valid"}

    nothing = ("test_fraction=0", "validation_fraction=0")
    steps, summary = build_retriever(data, *nothing, "reranker=embedder", "distillation=none")
    assert [row.label for row in summary.rows] == [
        f"iteration {i}{end}" for i in range(2) for end in ("", ", reranked")
    ]
    assert {title for row in summary.rows for title in row.columns} == {"loss"}
    assert not any("evaluate" in step.name for step in steps)
    by_name = {step.name: step for step in steps}
    assert {"iter1/merge_embedder", "iter1/merge_reranker"} <= set(by_name), "the models are made"
    assert by_name["iter1/finetune_embedder"].inputs["valid"] is None
    assert by_name["iter1/finetune_reranker"].inputs["ranking"] is None


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            ["prepare.test_fraction=0"],
            r"input 'queries' is 'test' of step prepare, .*set the parameter of the recipe",
        ),
        (
            ["prepare.validation_fraction=0"],
            r"is 'valid' of step prepare, .*writes corpus, train, test only",
        ),
        (["test_fraction=1"], r"test_fraction=1: '1' given; expected < 1"),
        (["split_by=documents"], r"did you mean 'document'"),
    ],
)
def test_splits_that_steps_need_are_not_left_out(data: str, lines: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        build_retriever(data, "folds=1", *lines)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_the_loop_continues_from_the_chosen_epoch(data: str, method: str) -> None:
    """Only the steps after the choice have the choice in their fingerprints: training has not."""
    lines = [data, "iterations=2", "reranker=embedder", "keep=all", f"method={method}"]
    steps, _ = build_retriever(*lines, "iter0/choose_embedder.checkpoint=3")
    by_name = {step.name: step for step in steps}
    part = "adapter" if method == "lora" else "model"
    for kind in ("embedder", "reranker"):
        chosen = by_name[f"iter0/choose_{kind}"]
        assert str(chosen.inputs["training"]) == f"iter0/finetune_{kind}"
        later = by_name[f"iter1/finetune_{kind}"].inputs["current_best"]
        assert str(later) == f"iter0/choose_{kind}[{part}]"
    gate = by_name["iter1/rerank_mined"].inputs["teacher_gate"]
    assert str(gate) == "iter0/choose_reranker[teacher_gate]"
    assert by_name["iter0/choose_embedder"].config.checkpoint == 3
    plain, _ = build_retriever(*lines)
    trained = next(step for step in plain if step.name == "iter0/finetune_embedder")
    assert trained.config == by_name["iter0/finetune_embedder"].config
    assert trained.config.keep == "all"


@pytest.mark.parametrize("method", ["lora", "full"])
def test_large_models_learn_at_a_tenth_of_the_rate(data: str, method: str, tmp_path: Path) -> None:
    """Also a model that a step merges or finetunes, and a note of the plan says so."""
    large = str(save_shape(tmp_path / "large", "1.5B"))
    small = str(save_shape(tmp_path / "small", "0.5B"))
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    about = {"peft_type": "LORA", "base_model_name_or_path": large}
    (adapter / "adapter_config.json").write_text(json.dumps(about))
    small_rate = {"lora": 1e-3, "full": 2e-4}[method]
    said = f"its hidden size is 1024 or more, so the default learning_rate is {small_rate / 10:g},"
    given = {
        (large, "none"): {"embedder": small_rate / 10},
        (small, large): {"embedder": small_rate, "reranker": small_rate / 10},
        (str(adapter), "embedder"): {"embedder": small_rate / 10, "reranker": small_rate / 10},
        (small, "embedder"): {"embedder": small_rate, "reranker": small_rate},
    }
    for (base, reranker), rates in given.items():
        lines = [f"base={base}", f"reranker={reranker}", f"method={method}", "iterations=2"]
        lines.append("keep=all")
        steps, summary = build_retriever(data, *lines)
        found = {step.name: step.config.learning_rate for step in steps if "/finetune" in step.name}
        for name, rate in rates.items():
            for i in range(2):
                assert found.pop(f"iter{i}/finetune_{name}") == rate
            told = [note for note in summary.notes if note.startswith(f"{name}: {said}")]
            assert len(told) == (rate < small_rate), summary.notes
        assert not found
        assert len(summary.notes) <= len(rates)
    assert not build_retriever(data, f"base={large}", "iterations=0")[1].notes
    _, summary = build_retriever(data, f"base={large}", f"method={method}", "folds=2")
    assert len(summary.notes) == 1, "also with folds of the whole loop"


def test_examples_are_drawn_or_given(data: str, tmp_path: Path) -> None:
    steps, _ = build_retriever(data, "iterations=1", "num_examples=2")
    by_name = {step.name: step for step in steps}
    for name in ("zero_shot/embed_train", "iter0/finetune_embedder"):
        assert str(by_name[name].inputs["examples"]) == "prepare[examples.jsonl]"
    assert by_name["iter0/finetune_embedder"].config.num_examples == 2
    assert by_name["iter0/embed_train"].inputs["examples"] is None, "the model has them"
    file = tmp_path / "examples.jsonl"
    file.write_text('{"query": "q", "answer": "a"}\n')
    with pytest.raises(InputError, match=r"examples: .* given, with num_examples=2; expected one"):
        build_retriever(data, "num_examples=2", f"examples={file}")


@pytest.mark.parametrize(
    ("lines", "refused"),
    [
        ([], True),
        (["finetune_reranker.teacher_gate=open"], False),
        (["keep=all"], True),
        (["distillation=none"], False),
        (["iterations=1"], False),
    ],
)
def test_a_teacher_that_cannot_be_tested_is_refused_by_the_plan(
    data: str, lines: list[str], refused: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [data, "validation_fraction=0", "reranker=embedder", *lines]
    words = [word for line in given for word in ("--set", line)]
    status = main(["plan", "retriever", *words, "--store", str(tmp_path / "store")])
    said = "a reranker without held-out queries given" in capsys.readouterr().err
    assert (status, said) == (2 if refused else 0, refused)


def test_a_teacher_of_the_data_needs_no_held_out_queries(data: str) -> None:
    steps, _ = build_retriever(
        data, "validation_fraction=0", "reranker=embedder", "mining=given_scored"
    )
    configs = {step.name: step.config for step in steps}
    assert configs["iter0/finetune_embedder"].num_negatives == 15
    steps, _ = build_retriever(data, "reranker=embedder")
    configs = {step.name: step.config for step in steps}
    assert configs["iter1/finetune_embedder"].distillation == "kl_div"
    assert configs["iter1/finetune_embedder"].num_negatives == 4, (
        "the loop's own reranker may teach nothing"
    )


def test_a_given_teacher_scores_from_the_first_iteration_on(data: str) -> None:
    steps, _ = build_retriever(
        data, "teacher=sentence-transformers/all-MiniLM-L6-v2", "validation_fraction=0"
    )
    by_name = {step.name: step for step in steps}
    for i in range(2):
        scored = by_name[f"iter{i}/rerank_mined"]
        assert (str(scored.inputs["model"]), scored.inputs["teacher_gate"]) == (
            str(by_name["iter0/rerank_mined"].inputs["model"]),
            None,
        )
        config = by_name[f"iter{i}/finetune_embedder"].config
        assert (config.distillation, config.num_negatives) == ("kl_div", 15)
    for other in ("distillation=none", "mining=given_scored"):
        with pytest.raises(InputError, match=f"with {other}, which does not use it"):
            build_retriever(data, "teacher=sentence-transformers/all-MiniLM-L6-v2", other)


def test_a_teacher_may_be_behind_an_api(data: str) -> None:
    url = "http://localhost:8000/v1/rerank"
    steps, _ = build_retriever(
        data, f"teacher={url}", "rerank_api.model=m", "validation_fraction=0"
    )
    by_name = {step.name: step for step in steps}
    for i in range(2):
        scored = by_name[f"iter{i}/rerank_mined"]
        assert scored.job.name == "rerank_api"
        assert (scored.config.url, scored.config.model) == (url, "m")
        finetuned = by_name[f"iter{i}/finetune_embedder"]
        assert str(finetuned.inputs["mined"]) == f"iter{i}/rerank_mined"
    with pytest.raises(ModelError, match="model 'ftp://x': no such folder"):
        build_retriever(data, "teacher=ftp://x")


@pytest.mark.parametrize(("method", "made"), [("lora", "merge"), ("full", "finetune")])
def test_predictions_are_those_of_the_last_embedder(data: str, method: str, made: str) -> None:
    """The steps of a recipe stand for those of a finished run."""
    steps, _ = build_retriever(data, "iterations=1", f"method={method}", "reranker=embedder")
    by_name = {step.name: step for step in steps}
    run: Any = SimpleNamespace(get=by_name.get, step=by_name.__getitem__, step_ids=by_name)
    corpus = by_name["prepare"]["corpus"]
    found = find_systems(run, "iter0", "model", by_name["prepare"], corpus)
    (_, ranked), (_, reranked) = found["model"], found["model_reranked"]
    assert str(ranked.inputs["corpus_embeddings"]) == "iter0/embed_corpus"
    assert (
        str(ranked.inputs["query_embeddings"].step.inputs["model"])
        == f"iter0/{made}_embedder[model]"
    )
    assert str(reranked.inputs["scored"].step.inputs["model"]) == f"iter0/{made}_reranker[model]"
    held_out, tested = find_systems(run, "iter0", "model", None, corpus)["model"]
    assert (tested.name, held_out and held_out.name) == ("iter0/evaluate", "iter0/evaluate_valid")


READING = "template=%7Btitle%7D&instruction=Find"


def test_new_queries_of_a_loop_are_read_as_its_data(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(
        "".join(f'{{"title": "q{i}", "positive": "p{i}"}}\n' for i in range(40))
    )
    (tmp_path / "new.jsonl").write_text('{"title": "new"}\n')
    given = (f"data={tmp_path / 'train.jsonl'}?{READING}", f"predict={tmp_path / 'new.jsonl'}")
    steps, _ = build_retriever(*given, "iterations=1")
    assert [step.config.reading for step in steps if step.name == "predict/prepare_queries"] == [
        READING
    ]


def test_new_queries_of_a_finished_run_are_read_as_its_data(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    run_log = RunLog.begin(store, "retriever", {})
    commits = {
        name: made(store, name, "text")
        for name in ("prepare", "iter0/embed_corpus", "iter0/merge_embedder")
    }
    settings: dict[str, Any] = {"prepare": {"reading": [READING]}}
    rows = [
        {
            "name": name,
            "step_id": one.step_id,
            "object": one.manifest,
            "config": settings.get(name, {}),
        }
        for name, one in commits.items()
    ]
    run_log.write("plan.json", {"recipe": "retriever", "steps": rows})
    (tmp_path / "new.jsonl").write_text('{"title": "new"}\n')
    lines = (f"run={run_log.run_id}", f"queries={tmp_path / 'new.jsonl'}")
    steps, _, _ = build(find("predict"), Settings.read(lines), store)
    assert [step.config.reading for step in steps if step.name == "predict/prepare_queries"] == [
        READING
    ]


def test_the_reranked_row_is_that_of_both_scores(data: str) -> None:
    steps, summary = build_retriever(
        data, "reranker=embedder", "iterations=1", "bm25=false", "knn=false"
    )
    by_name = {step.name: step for step in steps}
    shown = {title: metric.step.name for title, metric in summary.rows[-1].metrics}
    assert shown["MAP@25"] == "iter0/evaluate_blended"
    blended = by_name["iter0/blend"]
    assert [str(one) for one in blended.inputs["valid_rankings"]] == [
        "iter0/evaluate_valid[ranking]",
        "iter0/evaluate_reranked_valid[ranking]",
    ]
    assert str(by_name["iter0/evaluate_blended"].inputs["scored"]) == "iter0/blend[ranking]"


@pytest.mark.parametrize("reranker", ["none", "embedder"])
def test_last_models_are_fused(data: str, reranker: str) -> None:
    steps, summary = build_retriever(
        data, f"reranker={reranker}", "iterations=2", f"predict={data[5:]}"
    )
    by_name = {step.name: step for step in steps}
    fused = by_name["iter1/blend_all"]
    models = ["iter1/evaluate", *(["iter1/evaluate_reranked"] if reranker == "embedder" else [])]
    systems = [*models, "bm25/evaluate", "iter1/evaluate_knn"]
    assert [str(one) for one in fused.inputs["rankings"]] == [f"{one}[ranking]" for one in systems]
    assert [str(one) for one in fused.inputs["valid_rankings"]] == [
        f"{one}_valid[ranking]" for one in systems
    ]
    assert summary.rows[-1].label == "iteration 1, fused"
    assert set(by_name["fuse"].config.names) >= {"model", "model_knn", "bm25"}
    assert "iter0/blend_all" not in by_name


def test_knn_uses_one_models_vectors(data: str) -> None:
    steps, _ = build_retriever(data, "iterations=2", f"predict={data[5:]}")
    by_name = {step.name: step for step in steps}
    for name, asked, model in (
        ("zero_shot/evaluate_knn", "zero_shot/embed_test", "zero_shot"),
        ("iter1/evaluate_knn", "iter1/embed_test", "iter1"),
        ("iter1/evaluate_knn_valid", "iter1/embed_valid", "iter1"),
        ("model/rank_knn", "model/embed_queries", "iter1"),
    ):
        inputs = {field: str(value) for field, value in by_name[name].inputs.items()}
        assert inputs["query_embeddings"] == asked
        assert (inputs["train_embeddings"], inputs["train"]) == (
            f"{model}/embed_train",
            "prepare[train]",
        )


@pytest.mark.parametrize("lines", [("bm25=false", "knn=false"), ("validation_fraction=0",)])
def test_nothing_to_fuse(data: str, lines: Sequence[str]) -> None:
    steps, summary = build_retriever(data, "iterations=1", *lines)
    assert not any("blend" in step.name for step in steps)
    labels = {row.label for row in summary.rows}
    assert labels - {"BM25", "nearest training queries"} == {"zero-shot", "iteration 0"}
    assert ("BM25" in labels) == ("bm25=false" not in lines)


def test_training_queries_are_not_needed_to_evaluate_only(data: str) -> None:
    steps, summary = build_retriever(data, "iterations=0")
    assert [row.label for row in summary.rows] == ["BM25", "zero-shot", "zero-shot, fused"]
    assert not any("train" in step.name for step in steps)
    steps, summary = build_retriever(data, "iterations=0", "knn=true")
    labels = ["BM25", "zero-shot", "nearest training queries", "zero-shot, fused"]
    assert [row.label for row in summary.rows] == labels
    fused = next(step for step in steps if step.name == "zero_shot/blend_all")
    assert "zero_shot/evaluate_knn[ranking]" in [str(one) for one in fused.inputs["rankings"]]


def test_sweep_needs_held_out_queries(data: str) -> None:
    steps, summary = build_retriever(data, "validation_fraction=0", "test_fraction=0")
    touched = {step.name for step in steps if step.job.name == "finetune_embedder"}
    with pytest.raises(
        RecipeError, match="--metric map@25: no step that depends on the space reports it"
    ):
        find_objective("map@25", steps, summary, touched)


@pytest.mark.parametrize(
    "metric", ["map@25", "r@25", "zero_shot/evaluate.map@25", "zero_shot/evaluate_blended_all.mrr"]
)
def test_a_sweep_never_selects_by_the_test_split(data: str, metric: str) -> None:
    steps, summary = build_retriever(data, "iterations=0")
    touched = {step.name for step in steps if step.job.name == "embed"}
    with pytest.raises(
        RecipeError, match=r"on the test split; expected .*; give zero_shot/evaluate_valid\."
    ):
        find_objective(metric, steps, summary, touched)
    assert (
        find_objective("zero_shot/evaluate_valid.map@25", steps, summary, touched).step
        == "zero_shot/evaluate_valid"
    )


@pytest.mark.parametrize("name", ["countdown", "quickstart"])
def test_sweep_never_selects_by_test(name: str) -> None:
    steps, summary, _ = build(find(name), Settings({}))
    touched = {step.name for step in steps}
    columns = {metric.name for row in summary.rows for _, metric in row.metrics}
    for column in columns:
        try:
            objective = find_objective(column, steps, summary, touched)
        except RecipeError:
            continue
        chosen = next(step for step in steps if step.name == objective.step)
        assert objective.trained or not reads_test_split(chosen), column


def test_misconceptions_has_the_parameters_of_retriever(data: str) -> None:
    ours, theirs = find("misconceptions"), find("retriever")
    assert ours.parameters == theirs.parameters
    assert ours.doc.endswith(theirs.doc.partition("\n\n")[2].partition("\n\n")[2])
    assert ours.doc.splitlines()[0].startswith("Iterate mining and finetuning on Eedi's questions")
    assert all(f"\n{name}  " in ours.doc for name in ours.parameters)
    steps, _, parameters = build(ours, Settings.read([data, "iterations=1", "split_by=document"]))
    assert (parameters["iterations"], parameters["split_by"]) == (1, "document")
    assert steps[0].config.split_by == "document"


GENERATED = ("prepare", "generate", "clean", "embed_queries", "rank", "filter")


def test_generated_queries_are_trained_on_and_never_held_out(data: str, tmp_path: Path) -> None:
    plain, _ = build_retriever(data, "iterations=1", "reranker=embedder")
    steps, _ = build_retriever(data, "iterations=1", "reranker=embedder", f"generator={tmp_path}")
    by_name = {step.name: step for step in steps}
    assert by_name.keys() - {step.name for step in plain} == {
        f"synthetic/{name}" for name in GENERATED
    }
    union = by_name["synthetic/filter"]
    for step in steps:
        given = [reference for _, reference in step.references() if isinstance(reference, Output)]
        if step.job.name == "mine" or step.name.endswith(
            ("/embed_train", "/evaluate_knn", "/evaluate_knn_valid")
        ):
            assert union in [output.step for output in given], step.name
        elif not step.name.startswith("synthetic/"):
            assert union not in [output.step for output in given], step.name
        if not step.name.startswith("synthetic/"):
            assert "train" not in [output.part for output in given], step.name
    assert by_name["synthetic/generate"].config.num_completions == 4
    assert (
        by_name["synthetic/rank"].inputs["corpus_embeddings"].step
        is by_name["zero_shot/embed_corpus"]
    )  # type: ignore[union-attr]
    assert union.inputs.get("reranked") is None


def test_a_teacher_judges_generated_queries_in_each_fold(data: str, tmp_path: Path) -> None:
    given = (
        "iterations=1",
        f"generator={tmp_path}",
        "queries_per_document=2",
        f"teacher={tmp_path}",
        "folds=2",
    )
    steps, _ = build_retriever(data, *given)
    by_name = {step.name: step for step in steps}
    for fold in ("fold0", "fold1"):
        assert {
            f"{fold}/synthetic/{name}" for name in (*GENERATED, "rerank", "rank_reranked")
        } <= set(by_name)
        reranked = by_name[f"{fold}/synthetic/filter"].inputs["reranked"]
        assert str(reranked) == f"{fold}/synthetic/rank_reranked[ranking]"
        assert by_name[f"{fold}/synthetic/generate"].config.num_completions == 2


def test_generated_queries_need_mined_negatives(data: str, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"generator: .* given, with mining=given; expected mining=each, since gen"
    ):
        build_retriever(data, f"generator={tmp_path}", "mining=given")


def write_pairs(path: Path, count: int) -> str:
    rows = [json.dumps({"query": f"question {i}", "positive": f"answer {i}"}) for i in range(count)]
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def test_few_queries_are_cross_validated_and_all_are_trained_on(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path / "pairs.jsonl", 40)
    steps, summary = build_retriever(f"data={pairs}")
    by_name = {step.name: step for step in steps}
    assert [row.label for row in summary.rows] == [
        *("BM25", "zero-shot", "zero-shot, fused", "iteration 0", "iteration 0, fused")
    ]
    assert {row.label for row in summary.rows if row.detail} == {"BM25", "zero-shot, fused"}
    finetuned = by_name["iter0/finetune_embedder"]
    assert finetuned.config.folds == by_name["iter0/blend_all"].config.folds == 3
    assert finetuned.inputs["valid"] is None
    ranking = by_name["iter0/evaluate_folds_train"].inputs["scored"]
    assert (ranking.step, ranking.part) == (finetuned, "ranking")
    assert by_name["prepare"].outputs == ("corpus", "train")
    (note,) = summary.notes
    assert note.startswith("40 groups of queries, which show a metric to ± 0.16 or better: a cross")


@pytest.mark.parametrize(
    "line",
    [
        *(
            "folds=1",
            "iterations=2",
            "iterations=0",
            "test_fraction=0.2",
            "validation_fraction=0.1",
        ),
        *(
            "keep=last",
            "keep=all",
            "knn=true",
            "reranker=embedder",
            "split_by=document",
            "split_by=query",
        ),
        *("num_examples=1", "predict=PAIRS", "valid=OTHERS", "test=OTHERS"),
    ],
)
def test_other_wishes_for_few_queries_are_followed(tmp_path: Path, line: str) -> None:
    pairs = write_pairs(tmp_path / "pairs.jsonl", 40)
    (tmp_path / "other").mkdir()
    (tmp_path / "others.jsonl").write_text(
        Path(pairs).read_text().replace("question", "query").replace("answer", "reply")
    )
    line = line.replace("PAIRS", pairs).replace("OTHERS", str(tmp_path / "others.jsonl"))
    steps, summary = build_retriever(f"data={pairs}", line)
    assert not any(getattr(step.config, "folds", None) == 3 for step in steps)
    assert {"test", "valid"} & set(steps[0].outputs) or line == "iterations=0"
    assert not summary.notes


def test_bases_are_compared_on_the_same_splits(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path / "pairs.jsonl", 300)
    models = []
    for name in ("one", "two"):
        (tmp_path / name).symlink_to(resolve(MINILM))
        models.append(str(tmp_path / name))
    found = find("compare")
    lines = [f"models={','.join(models)}", f"data={pairs}"]
    steps, summary, _ = build(found, Settings.read(lines))
    labels = [row.label for row in summary.rows]
    dense = [f"{name}, {kind}" for name in ("one", "two") for kind in ("zero-shot", "finetuned")]
    assert labels == ["BM25", *dense, *(f"{one}, fused" for one in dense)]
    for row in summary.rows[1:5]:
        assert {"MAP@25", "ms per query", "MB"} <= set(row.columns)
    assert set(summary.best) == {"one", "two"}
    assert sum(step.job.name == "prepare" for step in steps) == 1
    with pytest.raises(InputError, match="expected models with different names"):
        build(found, Settings.read([f"models={models[0]},{models[0]}", f"data={pairs}"]))


@pytest.mark.parametrize(
    ("given", "line", "part"),
    [
        ("iterations=1", "prepare.test_fraction=0.3", "test"),
        ("folds=1", "prepare.num_examples=2", "examples.jsonl"),
        ("folds=1", "finetune_embedder.folds=3", "ranking"),
    ],
)
def test_a_setting_adds_no_output_that_nothing_reads(
    data: str, given: str, line: str, part: str
) -> None:
    with pytest.raises(InputError, match=f"would also write {part}, which this recipe does not"):
        build_retriever(data, given, line)
