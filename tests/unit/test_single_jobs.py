"""Jobs as recipes of one step: names, parameters, wrong values, help and JSON Schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ratchet.errors import InputError
from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.job_interface.settings import describe_settings
from ratchet.orchestrator.recipe import Settings, build, find, job_names
from ratchet.orchestrator.step import Output, Source


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["jobs/evaluate"],
            "recipe 'jobs/evaluate': unknown; expected one of jobs/.*; did you mean 'jobs/evaluate_",
        ),
        (
            ["jobs/prepare", "--set", "sed=1"],
            "recipe prepare has no parameter 'sed'; .*; did you mean 'seed'",
        ),
        (["jobs/prepare", "--set", "seed=x"], "--set seed=x: 'x' given; expected a valid integer"),
        (["jobs/prepare", "--set", "seed"], "--set seed: expected name=value"),
        (["jobs/prepare", "--set", "data=/nowhere"], "/nowhere"),
        (["jobs/prepare", "--set", "test_fraction=2"], "test_fraction=2: '2' given; expected < 1"),
        (
            ["jobs/embed", "--set", "texts=."],
            "recipe embed: model not given; expected a value; add --set model=",
        ),
        (
            ["jobs/embed", "--set", "texts=.", "--set", "model=nobody/nothing"],
            "'nobody/nothing': neither a folder",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    given: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *given, "--store", str(tmp_path / "store")]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert re.search(said, error), error


OWN = """from dataclasses import dataclass
from pathlib import Path
from ratchet.orchestrator.job_interface import Job, Result
@dataclass(frozen=True)
class Config:
    size: int = 3
@dataclass(frozen=True)
class Inputs:
    model: Path | None = None
    parts: tuple[Path, ...] = ()
def run(context, config, inputs):
    return Result({"size": config.size})
JOB = Job("own", version=1, config=Config, inputs=Inputs, run=run)
"""


def test_an_own_job_is_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "own_single_job.py"
    file.write_text(OWN)
    (made,), summary, parameters = build(
        find(str(file)), Settings.read(["size=5", f"parts={file},{tmp_path}"])
    )
    assert parameters == {"model": None, "parts": (str(file), str(tmp_path)), "size": 5}
    assert (made.name, made.config.size, made.inputs["model"]) == ("own", 5, None)
    assert made.inputs["parts"] == (
        Source(file, label=str(file)),
        Source(tmp_path, label=str(tmp_path)),
    )
    (result,) = summary.results.values()
    assert isinstance(result, Output)
    assert result.step is made


def test_a_recipe_without_a_result_has_nothing_to_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    assert main(["run", "quickstart", "--store", str(store), "--out", str(tmp_path / "made")]) == 2
    assert (
        "quickstart has no result to copy; expected a job, or a recipe that"
        in capsys.readouterr().err
    )
    assert not list(store.glob("runs/*"))


@pytest.mark.slow
def test_every_job_is_a_recipe_whose_parameters_are_described(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert {"jobs/embed", "jobs/evaluate_retrieval", "jobs/mine", "jobs/prepare"} <= set(
        job_names()
    )
    assert not {"jobs/splits", "jobs/config", "jobs/shard_map"} & set(job_names())
    for name in job_names():
        assert main(["recipes", name]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        for one in describe_settings(find(name).function):
            assert one.help, name
            assert one.help in shown


def test_options_that_are_not_given_leave_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Settings] = []

    def run_recipe(name: str, settings: Settings, *_: Any, **options: Any) -> None:
        found.append(settings)
        raise InputError("enough")

    monkeypatch.setattr("ratchet.orchestrator.cli.commands.run_recipe", run_recipe)
    (tmp_path / "own.yaml").write_text("adapter: false\nname: me/model\nlicense: mit\n")
    command, file = (
        ["export", "MODEL", "out", "--store", str(tmp_path / "store")],
        str(tmp_path / "own.yaml"),
    )
    for options in ([], ["--settings", file], ["--settings", file, "--adapter"]):
        assert main([*command, *options, "--license", "apache-2.0"]) == 2
    plain, own, more = (settings.parameters for settings in found)
    assert plain == {"model": "MODEL", "name": "out", "license": "apache-2.0"}
    assert own == plain | {"name": "me/model", "adapter": "false"}
    assert more == own | {"adapter": "true"}
