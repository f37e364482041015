"""Recipes are found, their parameters and steps' settings are set, and every mistake is named with the nearest name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ratchet.errors import RecipeError
from ratchet.orchestrator.recipe import Recipe, Settings, build, find, names, read_settings
from ratchet.orchestrator.step import Row, Summary, reachable, step


def steps_of(*lines: str, recipe: str = "quickstart"):  # type: ignore[no-untyped-def]
    steps, _, parameters = build(find(recipe), Settings.read(lines))
    return {s.name: s for s in steps}, parameters


def test_both_recipes_are_listed_with_a_sentence_each() -> None:
    assert {"quickstart", "misconceptions"} <= set(names())
    assert all(find(name).doc.splitlines()[0].endswith(".") for name in names())


def test_every_parameter_is_explained_in_the_docstring() -> None:
    for name in names():
        recipe = find(name)
        heads = re.findall(r"^((?:\w+, )*\w+)  +\S", recipe.doc, re.MULTILINE)
        explained = {word for head in heads for word in head.split(", ")}
        assert set(recipe.parameters) <= explained, name


def test_parents_come_before_children() -> None:
    steps, _ = steps_of()
    seen: set[str] = set()
    for name, s in steps.items():
        assert {parent.name for parent in s.parents} <= seen
        seen.add(name)


def test_a_parameter_of_the_recipe_changes_what_is_built() -> None:
    steps, parameters = steps_of("iterations=3")
    assert parameters["iterations"] == 3
    assert "iter2/finetune_embedder" in steps
    assert "iter3/finetune_embedder" not in steps


def test_one_grammar_reaches_steps_by_pattern_and_by_job() -> None:
    lines = (
        "iter1/mine.window=2,10",
        "finetune_embedder.learning_rate=0.5",
        "iter*/embed_corpus.workers=4",
    )
    steps, _ = steps_of("iterations=2", *lines)
    assert steps["iter1/mine"].config.window == (2, 10)
    assert steps["iter0/mine"].config.window != (2, 10)
    assert {steps[f"iter{i}/finetune_embedder"].config.learning_rate for i in (0, 1)} == {0.5}
    assert steps["iter0/embed_corpus"].resources.workers == 4
    assert steps["zero_shot/embed_corpus"].resources.workers is None


def test_a_changed_step_is_the_parent_that_its_children_see() -> None:
    steps, _ = steps_of("iter0/mine.num_negatives=3")
    parent = next(p for p in steps["iter0/finetune_embedder"].parents if p.name == "iter0/mine")
    assert steps[parent.name].config.num_negatives == 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("iteratons=2", "did you mean 'iterations'?"),
        ("iterations=two", "iterations=two"),
        ("iterations", "expected name=value"),
        ("finetune_embeder.epochs=2", "did you mean 'finetune_embedder'?"),
        ("finetune_embedder.learning_rat=2", "did you mean 'learning_rate'?"),
        ("mine.window=2", "window"),
        ("mine.num_negatives=1.5", "num_negatives"),
    ],
)
def test_each_mistake_names_the_line_and_the_nearest_name(line: str, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        steps_of(line)
    assert said in str(caught.value)
    assert line.split("=")[0] in str(caught.value)


def test_a_block_of_settings_may_stand_for_several_jobs(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("finetune_embedder: &same {epochs: 2}\nfinetune_reranker: *same\n")
    assert read_settings(path) == ["finetune_embedder.epochs=2", "finetune_reranker.epochs=2"]


def test_a_secret_is_no_setting() -> None:
    token = "hf_" + "a" * 34
    with pytest.raises(RecipeError, match=r"--set prepare\.note: looks like a secret") as refused:
        Settings.read([f"prepare.note={token}"])
    assert token not in str(refused.value)


def test_an_unknown_recipe_suggests_a_known_one() -> None:
    with pytest.raises(RecipeError, match="did you mean 'quickstart'"):
        find("quikstart")


def test_a_required_parameter_is_asked_for() -> None:
    with pytest.raises(RecipeError, match="--set data="):
        steps_of(recipe="theorems")


def test_two_steps_of_one_name_are_refused() -> None:
    from ratchet.jobs.retrieval import prepare

    one, two = (step("same", prepare.JOB, questions=n) for n in (10, 20))
    with pytest.raises(RecipeError, match="two different steps"):
        reachable([one, two])


def test_a_step_with_an_unknown_keyword_is_refused() -> None:
    from ratchet.jobs.retrieval import prepare

    with pytest.raises(RecipeError, match="did you mean 'questions'"):
        step("p", prepare.JOB, question=10)


def test_a_recipe_is_found_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    file = tmp_path / "own_recipe_by_file.py"
    file.write_text(
        "from ratchet.jobs.retrieval import prepare\nfrom ratchet.orchestrator.step import Row, Summary, step\n"
        "def own_recipe_by_file(*, questions: int = 5):\n"
        '    """Mine."""\n'
        "    s = step('p', prepare.JOB, questions=questions)\n"
        "    return Summary([Row('r', {'n': s.metric('queries')})])\n"
    )
    steps, summary, _ = build(find(str(file)), Settings.read(["questions=7"]))
    assert [s.config.questions for s in steps] == [7]
    assert isinstance(summary, Summary)
    assert isinstance(summary.rows[0], Row)


def test_two_steps_of_one_name_are_refused_wherever_they_are() -> None:
    from ratchet.jobs.retrieval import embed, prepare
    from ratchet.orchestrator.step import reachable, step

    data = step("prepare", prepare.JOB)
    queries, passages = (
        step("embed", embed.JOB, model=data, texts=data["corpus"], role=role)
        for role in ("query", "passage")
    )
    for goals in ([queries, passages], [step("one", embed.JOB, model=queries, texts=passages)]):
        with pytest.raises(RecipeError, match="step embed: two different steps have this name"):
            reachable(goals)
    other = step("other", embed.JOB, model=queries, texts=data["corpus"])
    with pytest.raises(RecipeError, match="step embed: two different steps"):
        reachable([other, step("last", embed.JOB, model=other, texts=passages)])
    assert [s.name for s in reachable([other])] == ["prepare", "embed", "other"]


@pytest.mark.slow
def test_several_seeds_are_one_table_of_means() -> None:
    lines = [
        "iterations=1",
        "reranker=false",
        "seed=7",
        "iter0/mine.num_negatives=3",
        "prepare.seed=1",
    ]
    _, alone, _ = build(find("quickstart"), Settings.read(lines))
    steps, summary, _ = build(find("quickstart"), Settings.read(lines, seeds=3))
    by_name = {step.name: step for step in steps}
    for seed in (7, 8, 9):
        assert by_name[f"seed{seed}/iter0/mine"].config.num_negatives == 3
        assert by_name[f"seed{seed}/iter0/finetune_embedder"].config.seed == seed
        assert by_name[f"seed{seed}/prepare"].config.seed == 1
    assert [row.label for row in summary.rows] == [row.label for row in alone.rows]
    for row, one in zip(summary.rows, alone.rows, strict=True):
        assert list(row.columns) == list(one.columns)
        for title, metric in one.metrics:
            names = [cell.step.name for cell in row.columns[title]]  # type: ignore[union-attr]
            assert names == [f"seed{seed}/{metric.step.name}" for seed in (7, 8, 9)]
    with pytest.raises(RecipeError, match="has no parameter seed"):
        build(Recipe("one", lambda *, a=1: Summary([])), Settings.read([], seeds=2))
