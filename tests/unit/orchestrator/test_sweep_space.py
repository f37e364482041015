"""Search spaces, objectives and the comparison with the defaults, without Ray."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_models import EMBEDDER, make_run

from ratchet.errors import InputError, RecipeError
from ratchet.orchestrator.finished_run import find_model_output
from ratchet.orchestrator.job_interface import Job, Parents, Result
from ratchet.orchestrator.recipe import Recipe, Settings, build, find, read_settings
from ratchet.orchestrator.reporting.sweep_data import SweepReport, Trial
from ratchet.orchestrator.step import Row, Source, Step, Summary, list_goals, reachable, step
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.sweeps.command import compare_with_defaults, write_winner
from ratchet.orchestrator.sweeps.plan import (
    Objective,
    SweepPlan,
    find_objective,
    plan_sweep,
    select_needed_steps,
)
from ratchet.orchestrator.sweeps.space import Space
from ratchet.orchestrator.sweeps.trial import TrialSpec

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


def space(folder: Path, text: str) -> Space:
    path = folder / "space.yaml"
    path.write_text(text)
    return Space.read(path)


def test_a_space_holds_distributions_and_plain_values(tmp_path: Path) -> None:
    found = space(
        tmp_path,
        'a.x: loguniform(1e-5, 1e-3)\na.k: randint(2, 4)\n# why\nb.window: grid("2,100", "2,200")\nkind: constant\n'
        "b.loss: choice(kl_div, none, 0.5)\n",
    )
    assert [(d.name, d.kind, d.values) for d in found.dimensions] == [
        ("a.x", "loguniform", ("1e-5", "1e-3")),
        ("a.k", "randint", ("2", "4")),
        ("b.window", "grid", ("2,100", "2,200")),
        ("b.loss", "choice", ("kl_div", "none", "0.5")),
    ]
    assert found.fixed == ["kind=constant"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: loguniform(0, 1)", "numbers above 0"),
        ("a: uniform(2, 1)", "low below high"),
        ("a: uniform(1)", r"uniform\(low, high\)"),
        ("a: randint(1, 2.5)", "whole numbers"),
        ("a: uniform(x, y)", "expected uniform"),
        ("a: normal(0, 1)", "expected one of loguniform"),
        ("a: choice()", "at least one value"),
        ("a: 1\na: 2", ":2: a is also given at .*:1;"),
        ("a:\n  - b", "nested block"),
        ("- a", "no mapping given"),
        ("a: [", "expected lines"),
    ],
)
def test_a_line_that_says_nothing_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(RecipeError, match=says) as raised:
        space(tmp_path, text)
    assert "space.yaml" in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"nowhere\.yaml: no such file"):
        Space.read(tmp_path / "nowhere.yaml")


def test_more_trials_begin_with_the_same_ones(tmp_path: Path) -> None:
    found = space(tmp_path, "a: loguniform(1e-5, 1e-3)\nb: choice(1, 2, 3)\n")
    assert found.draw_points(16, 0)[:6] == found.draw_points(6, 0)
    assert found.draw_points(6, 1) != found.draw_points(6, 0)
    assert found.draw_points(6, 0)[0] == {}, "the recipe's defaults come first"


def test_another_line_leaves_the_others_values(tmp_path: Path) -> None:
    one = space(tmp_path, "a: uniform(0, 1)\n").draw_points(5, 3)
    two = space(tmp_path, "b: uniform(0, 1)\na: uniform(0, 1)\n").draw_points(5, 3)
    assert [point.get("a") for point in one] == [point.get("a") for point in two]


def test_grids_give_every_combination_once(tmp_path: Path) -> None:
    found = space(tmp_path, "a: grid(1, 2)\nb: grid(x, y, z)\n").draw_points(100, 0)
    assert len(found) == 7
    assert [tuple(point.values()) for point in found[1:]] == [(a, b) for a in "12" for b in "xyz"]


def test_each_round_of_the_grids_draws_the_rest_anew(tmp_path: Path) -> None:
    found = space(tmp_path, "a: grid(1, 2)\nb: uniform(0, 1)\n").draw_points(5, 0)
    assert [point["a"] for point in found[1:]] == ["1", "2", "1", "2"]
    assert len({point["b"] for point in found[1:]}) == 4


@given(st.floats(1e-6, 1.0), st.floats(1.01, 1e4), st.integers(0, 10**6))
def test_draws_stay_within_their_range(low: float, factor: float, trial: int) -> None:
    from ratchet.orchestrator.sweeps.space import Dimension

    high = low * factor
    for kind in ("loguniform", "uniform"):
        value = float(Dimension("a", kind, (str(low), str(high)), "", "").draw(0, trial))  # type: ignore[arg-type]
        assert low * (1 - 1e-5) <= value <= high * (1 + 1e-5)


def test_a_loguniform_draw_is_even_over_magnitudes(tmp_path: Path) -> None:
    found = space(tmp_path, "a: loguniform(1e-4, 1)\n").draw_points(400, 0)
    below = sum(float(point["a"]) < 1e-2 for point in found[1:])
    assert 160 < below < 240


@dataclass(frozen=True)
class Config:
    rate: float = 0.1
    metric: str = "map@25"


@dataclass(frozen=True)
class Plain:
    size: int = 1


@dataclass(frozen=True)
class Inputs:
    before: Path | None = None


def check(config: Config, inputs: Inputs, parents: Parents) -> None:
    if config.rate >= 1:
        raise InputError(f"train.rate: {config.rate} given; expected below 1; lower it")


def find_direction(metric: str) -> int:
    return {"map@25": 1, "r@5": 1, "mean_rank": -1}.get(metric, 0)


TRAIN = Job(
    "train",
    config=Config,
    inputs=Inputs,
    run=lambda *_: Result(),
    check=check,
    direction=find_direction,
)
PLAIN = Job("plain", config=Plain, inputs=Inputs, run=lambda *_: Result(), direction=find_direction)


def built() -> tuple[list[Step], Summary]:
    a = step("a", PLAIN)
    first = step("one/train", TRAIN, before=a)
    other = step("one/rank", TRAIN, before=first, metric="map@25")
    evaluated = step("one/evaluate", PLAIN, before=other)
    summary = Summary(
        [
            Row(
                "one",
                {"MAP@25": evaluated.metric("map@25"), "R@5": evaluated.metric("r@5")},
                [evaluated],
            )
        ]
    )
    return reachable(list_goals(summary)), summary


def found(metric: str, touched: set[str]) -> Objective:
    steps, summary = built()
    return find_objective(metric, steps, summary, touched)


def test_changed_step_decides() -> None:
    assert found("map@25", {"one/train"}) == Objective(
        "one/train", "valid/map@25", "map@25", True, True
    )


def test_else_the_one_after_what_the_space_changes() -> None:
    assert found("map@25", {"a"}).step == "one/rank"


def test_a_step_can_be_named() -> None:
    assert found("one/rank.map@25", {"one/train"}).step == "one/rank"
    evaluated = found("one/evaluate.map@25", {"one/train"})
    assert (evaluated.step, evaluated.name, evaluated.trained) == ("one/evaluate", "map@25", False)


def test_table_metric_decides_without_training() -> None:
    assert found("r@5", {"one/train"}) == Objective("one/evaluate", "r@5", "r@5", False, True)


def test_the_job_tells_the_direction() -> None:
    assert found("one/evaluate.r@5", {"one/train"}).maximize
    assert not found("one/evaluate.mean_rank", {"one/train"}).maximize
    with pytest.raises(RecipeError, match=r"job plain does not say whether .* 'rows' is better"):
        found("one/evaluate.rows", {"one/train"})


@pytest.mark.parametrize("metric", ["map@26", "two/train.map@25"])
def test_an_unknown_metric_is_named_with_the_nearest(metric: str) -> None:
    with pytest.raises(RecipeError, match="did you mean"):
        found(metric, {"one/train"})


def test_what_the_space_does_not_reach_cannot_decide() -> None:
    with pytest.raises(RecipeError, match="changes nothing"):
        found("one/train.map@25", {"one/evaluate"})


def test_only_what_the_objective_needs_is_run() -> None:
    steps, _ = built()
    assert [step.name for step in select_needed_steps(steps, "one/train")] == ["a", "one/train"]


def asked(folder: Path, text: str, metric: str = "map@25") -> Any:
    path = folder / "tried.yaml"
    path.write_text(text)
    given = ["questions=80", "iterations=2", "reranker=true"]
    return plan_sweep(
        "quickstart", given, path, metric, Store.open(folder / "store"), "ratchet sweep"
    )


def test_steps_after_the_deciding_one_do_not_run(tmp_path: Path) -> None:
    found = asked(tmp_path, "finetune_embedder.learning_rate: loguniform(1e-4, 1e-3)\n")
    assert found.objective.step == "iter1/finetune_embedder"
    assert "iter1/evaluate" not in {step.name for step in found.steps}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "finetune_embedder.lerning_rate: uniform(0, 1)",
            r"tried.yaml:1: .*did you mean 'learning_rate'",
        ),
        (
            "\nfinetune_embedder.temperature: uniform(0, 1)",
            r"tried.yaml:2: .*temperature=0: '0' given; expected > 0",
        ),
        ("finetune_embedder.epochs: choice(1, many)", "tried.yaml:1: .*many"),
        (
            "questions: choice(80, 90)\nfinetune_reranker.lora_r: choice(1, 2)",
            "tried.yaml:2: .* changes nothing",
        ),
        ("iterations: 2", "no distribution given"),
        (
            "finetune_embedder.lora_alhpa: 3\nfinetune_embedder.lora_r: choice(2, 4)",
            "did you mean 'lora_alpha'",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises((RecipeError, InputError), match=says):
        asked(tmp_path, text, "iter0/finetune_embedder.map@25" if "questions" in text else "map@25")


@pytest.mark.parametrize("name", ["embedder", "reranker"])
def test_the_spaces_that_come_with_it_fit_their_recipes(tmp_path: Path, name: str) -> None:
    found = asked(tmp_path, (ROOT / "tune_spaces" / f"{name}.yaml").read_text())
    assert found.objective.step == f"iter1/finetune_{name}"


@pytest.mark.parametrize(("name", "recipe"), [("sft", "gsm8k"), ("theorems", "theorems")])
def test_spaces_name_real_settings(name: str, recipe: str) -> None:
    found = Space.read(ROOT / "tune_spaces" / f"{name}.yaml")
    given = ["data=x", "base=sentence-transformers/all-MiniLM-L6-v2", *found.fixed]
    for dimension in found.dimensions:
        for value in dimension.values:
            build(find(recipe), Settings.read([*given, f"{dimension.name}={value}"]))


def plan_toy(
    folder: Path, text: str, recipe: Callable[..., Summary], metric: str = "map@25", *lines: str
) -> SweepPlan:
    """Plan a sweep over a recipe that is a function here."""
    path = folder / "toy.yaml"
    path.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ratchet.orchestrator.recipe.find", lambda name: Recipe(name, recipe))
        return plan_sweep(
            "toy", lines, path, metric, Store.open(folder / "store"), "ratchet sweep toy"
        )


def test_data_and_models_may_be_swept(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)

    def toy(*, data: str) -> Summary:
        trained = step("train", TRAIN, before=Source(tmp_path / data))
        return Summary([Row("one", {"MAP@25": trained.metric("map@25")}, [trained])])

    found = plan_toy(tmp_path, "data: choice(one, two)\n", toy, "map@25", "data=one")
    assert found.objective.step == "train"


def test_command_settings_take_precedence(tmp_path: Path) -> None:
    def toy() -> Summary:
        trained = step("train", TRAIN, before=step("first", PLAIN))
        return Summary([Row("one", {"MAP@25": trained.metric("map@25")}, [trained])])

    text = "train.rate: choice(0.2, 0.3)\nfirst.size: 7\n"
    assert plan_toy(tmp_path, text, toy).steps[0].config.size == 7
    assert plan_toy(tmp_path, text, toy, "map@25", "first.size=9").steps[0].config.size == 9
    found, winner = (
        plan_toy(tmp_path, text, toy, "map@25", "fir*.size=8", "first.size=9"),
        Trial({}, "finished", 0.5),
    )
    written = Settings.read(read_settings(write_winner(found, winner)))
    assert build(found.recipe, written)[0][0].config.size == 9


def test_models_of_runs_may_be_given(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")

    def toy(*, base: str) -> Summary:
        trained = step("train", TRAIN, before=find_model_output(base))
        return Summary([Row("one", {"MAP@25": trained.metric("map@25")}, [trained])])

    def make_model() -> str:
        return make_run(store, {"merge": EMBEDDER}, {"embedder": "merge"}).run_id

    def plan(name: str) -> SweepPlan:
        return plan_toy(tmp_path, "train.rate: choice(0.2, 0.3)\n", toy, "map@25", f"base={name}")

    before = plan(f"{make_model()}:embedder")
    assert [step.name for step in before.steps][1:] == ["train"]
    spec = TrialSpec(before, tmp_path, 1, store.where, None, ())
    made = spec.build({"train.rate": "0.3"}, 0, store)
    assert [step.name for step in made] == [step.name for step in before.steps]
    assert made[0].finished == before.steps[0].finished


def trial(*values: float, **settings: str) -> Trial:
    return Trial(settings, "finished", sum(values) / len(values), values)


def test_the_winner_is_the_best_that_finished() -> None:
    def find_winner(trials: list[Trial], maximize: bool) -> Trial | None:
        texts: dict[str, Any] = dict.fromkeys(("recipe", "sweep_id", "metric", "command"), "")
        return SweepReport(
            maximize=maximize, space={}, fixed=(), trials=trials, started=0, seconds=0, **texts
        ).best

    default, better = trial(0.4), trial(0.5, x="1")
    stopped = Trial({"x": "2"}, "stopped", 0.9)
    assert find_winner([default, better, stopped], True) == better
    assert find_winner([default, better, stopped], False) == default
    assert find_winner([trial(0.4), trial(0.4, x="1")], True) == default, (
        "of equals the defaults stay"
    )
    assert find_winner([stopped], True) is None
    assert find_winner([], True) is None


def test_a_gain_within_the_seeds_noise_is_called_so() -> None:
    assert "within noise" in compare_with_defaults(
        trial(0.5, 0.4, 0.6, x="1"), trial(0.49, 0.4, 0.55), "map@25"
    )
    assert "more than noise" in compare_with_defaults(
        trial(0.6, 0.601, 0.602, x="1"), trial(0.5, 0.501, 0.499), "map@25"
    )
    assert "--seeds 3" in compare_with_defaults(trial(0.6, x="1"), trial(0.5), "map@25")
    assert "nothing was better" in compare_with_defaults(trial(0.5), trial(0.5), "map@25")
    assert "did not finish" in compare_with_defaults(trial(0.5), None, "map@25")


def test_a_trial_that_ends_late_does_not_end_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from ratchet.orchestrator.sweeps import trial as trials

    late = threading.Event()

    def run(thread: Any) -> dict[str, Any]:
        number = int(thread.settings["number"])
        if number == 0:
            late.wait(10)  # it commits, and cannot be interrupted
        return {"value": number}

    class Spec:
        working_folder = "."
        progress_actor = None

        def get_settings(self, config: dict[str, Any]) -> dict[str, str]:
            return {"number": str(config["number"])}

    monkeypatch.setattr(trials, "STOP_TIMEOUT", 0.0)
    monkeypatch.setattr(trials.TrialRun, "_run_seeds", run)
    actor = trials.TrialActor.__new__(trials.TrialActor)
    actor.setup({"number": 0}, Spec())  # type: ignore[arg-type]
    first, thread = actor.trial, actor.thread
    actor.reset_config({"number": 1})
    late.set()
    thread.join()
    assert actor.step() == {"value": 1, "done": True}
    assert first.reports.get() == {"value": 0, "done": True}
