"""Mistakes in users' recipes and jobs. The answers name the line of the user's file."""

from __future__ import annotations

import re
from pathlib import Path

import mistakes
import pytest
from mistakes import Mistake

JOB = """from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from annotated_types import Ge
from ratchet.orchestrator.job_interface import Job, Resources, Result
from ratchet.orchestrator.step import Row, Source, Summary, step
@dataclass(frozen=True)
class Config:
    size: Annotated[int, Ge(1)] = 8
    rate: float = 0.5
    kind: Literal["fast", "slow"] = "fast"
    windows: tuple[int, int] = (1, 2)
@dataclass(frozen=True)
class Inputs:
    before: Path | None = None
def run(context, config, inputs):
    return Result({"total": 1})
def check(config, inputs, parents):
    pass
def metrics(config):
    return ["total", f"total@{config.size}"]
JOB = Job("count", version=1, config=Config, inputs=Inputs, run=run, check=check, outputs=("parts", "best-*"),
          metrics=metrics)
"""
LINE = JOB.count("\n") + 2
"""The line of the recipe's body."""


def recipe(
    name: str, body: str, answer: str, *, head: str = JOB, parameters: str = "", settings: str = ""
) -> Mistake:
    """A recipe with one line. In `answer`, HERE is that line and JOBLINE one of the head."""
    module = "own_" + re.sub(r"\W", "_", name)
    content = f"{head}def {module}({parameters}):\n    {body}\n"
    answer = answer.replace("HERE", rf"{module}\.py:{LINE}").replace(
        "JOBLINE", rf"{module}\.py:\d+"
    )
    return Mistake(
        name,
        f"plan {module}.py {settings}",
        answer.replace("NAME", module),
        {f"{module}.py": content},
    )


def job(name: str, old: str, new: str, answer: str) -> Mistake:
    """A job in which a text is replaced by another one."""
    assert old in JOB, old
    body = 'return Summary([], goals=[step("a", JOB)])'
    return recipe(f"job_{name}", body, answer, head=JOB.replace(old, new))


END = "; return Summary([], goals=[a])"
STEPS = [
    recipe(
        "setting_text_for_int",
        'a = step("a", JOB, size="abc")' + END,
        r"HERE: step a: count\.size: 'abc' given",
    ),
    recipe(
        "setting_true_for_int",
        'a = step("a", JOB, size=True)' + END,
        r"HERE: step a: count\.size: True given",
    ),
    recipe(
        "source_text",
        'a = step("a", JOB, before=Source("data"))' + END,
        r"HERE: Source: 'data' given",
    ),
    recipe(
        "metric_of_own_job",
        'from ratchet.jobs.retrieval import prepare; a = step("a", prepare.JOB);'
        ' return Summary([Row("x", {"m": a.metric("querys")}, [a])])',
        r"row 'x', column 'm': step a reports no 'querys'",
    ),
    recipe(
        "setting_bound", 'a = step("a", JOB, size=0)' + END, r"HERE: step a: count\.size: 0 given"
    ),
    recipe(
        "setting_fraction",
        'a = step("a", JOB, size=1.5)' + END,
        r"HERE: step a: count\.size: 1\.5 given",
    ),
    recipe(
        "setting_list",
        'a = step("a", JOB, size=[1])' + END,
        r"HERE: step a: count\.size: \[1\] given",
    ),
    recipe(
        "setting_nan",
        'a = step("a", JOB, rate=float("nan"))' + END,
        r"HERE: step a: count\.rate: nan .*finite.*",
    ),
    recipe(
        "setting_inf",
        'a = step("a", JOB, rate=float("inf"))' + END,
        r"HERE: step a: count\.rate: inf .*finite.*",
    ),
    recipe(
        "setting_rate_text",
        'a = step("a", JOB, rate="high")' + END,
        r"HERE: step a: count\.rate: 'high' given",
    ),
    recipe(
        "setting_literal",
        'a = step("a", JOB, kind="fats")' + END,
        r"HERE: step a: count\.kind: 'fats' given; .*did you mean 'fast'\?",
    ),
    recipe(
        "setting_tuple_short",
        'a = step("a", JOB, windows=(1,))' + END,
        r"HERE: step a: count\.windows: .*",
    ),
    recipe(
        "setting_tuple_text",
        'a = step("a", JOB, windows=("x", 2))' + END,
        r"HERE: step a: count\.windows: .*",
    ),
    recipe(
        "setting_unknown",
        'a = step("a", JOB, sise=3)' + END,
        r"HERE: step a: 'sise' given; .*did you mean 'size'\?",
    ),
    recipe(
        "setting_step",
        'b = step("b", JOB); a = step("a", JOB, size=b)' + END,
        r"HERE: step a: a step's output .*",
    ),
    recipe(
        "input_number",
        'a = step("a", JOB, before=3)' + END,
        r"HERE: step a: 3 given as input 'before'",
    ),
    recipe(
        "input_text",
        'a = step("a", JOB, before="x")' + END,
        r"HERE: step a: 'x' given as input 'before'",
    ),
    recipe(
        "input_path",
        'a = step("a", JOB, before=Path("x"))' + END,
        r"HERE: step a: a \w*Path given as input .*",
    ),
    recipe(
        "input_list",
        'a = step("a", JOB, before=[3])' + END,
        r"HERE: step a: 3 given as input 'before'",
    ),
    recipe(
        "input_job",
        'a = step("a", JOB, before=JOB)' + END,
        r"HERE: step a: a Job given as input 'before'",
    ),
    recipe("name_number", "a = step(3, JOB)" + END, r"HERE: step: 3 given"),
    recipe("name_job", 'a = step(JOB, "a")' + END, r"HERE: step: a Job given"),
    recipe("name_empty", 'a = step("", JOB)' + END, r"HERE: step: '' given"),
    recipe(
        "name_parents", 'a = step("../../x y", JOB)' + END, r"HERE: step: '\.\./\.\./x y' given"
    ),
    recipe("name_parent", 'a = step("..", JOB)' + END, r"HERE: step: '\.\.' given"),
    recipe("name_dot", 'a = step("a/./b", JOB)' + END, r"HERE: step: 'a/\./b' given"),
    recipe("name_space", 'a = step("two words", JOB)' + END, r"HERE: step: 'two words' given"),
    recipe("name_absolute", 'a = step("/a", JOB)' + END, r"HERE: step: '/a' given"),
    recipe("name_slashes", 'a = step("a//b", JOB)' + END, r"HERE: step: 'a//b' given"),
    recipe("name_star", 'a = step("a*", JOB)' + END, r"HERE: step: 'a\*' given"),
    recipe("name_backslash", 'a = step("a\\\\b", JOB)' + END, r"HERE: step: .* given"),
    recipe("job_text", 'a = step("x", "prepare")' + END, r"HERE: step x: job: 'prepare' given"),
    recipe("job_config", 'a = step("x", Config)' + END, r"HERE: step x: job: Config given"),
    recipe("job_none", 'a = step("x", None)' + END, r"HERE: step x: job: None given"),
    recipe("job_run", 'a = step("x", run)' + END, r"HERE: step x: job: a function given"),
    recipe(
        "job_module", 'import json; a = step("x", json)' + END, r"HERE: step x: job: a module given"
    ),
    recipe(
        "resources_dict",
        'a = step("a", JOB, resources={"workers": 2})' + END,
        r"HERE: step a: resources: .* given",
    ),
    recipe(
        "resources_zero",
        'a = step("a", JOB, resources=Resources(workers=0))' + END,
        r"HERE: step a: resources\.workers: 0 given",
    ),
    recipe(
        "resources_text",
        'a = step("a", JOB, resources=Resources(cpus="many"))' + END,
        r"HERE: step a: resources\.cpus: 'many' given",
    ),
    recipe(
        "resources_label",
        'a = step("a", JOB, resources=Resources(labels=("foo",)))' + END,
        r"HERE: step a: resources: labels: 'foo' given",
    ),
    recipe(
        "resources_min",
        'a = step("a", JOB, resources=Resources(workers=1, min_workers=2))' + END,
        r"HERE: step a: resources: min_workers 2 given",
    ),
    recipe(
        "two_of_a_name",
        'a = step("a", JOB); b = step("a", JOB, size=3); return Summary([], goals=[a, b])',
        r"step a: two different steps have this name",
    ),
    recipe(
        "parent_of_a_name",
        'b = step("a", JOB, size=3); a = step("a", JOB, before=b)' + END,
        r"step a: two different steps have this name",
    ),
]
OUTPUTS = [
    recipe(
        "output_unknown",
        'b = step("b", JOB); a = step("a", JOB, before=b["prats"])' + END,
        r"HERE: step b: output 'prats' given; .*did you mean 'parts'\?",
    ),
    recipe(
        "output_number",
        'b = step("b", JOB); a = step("a", JOB, before=b[0])' + END,
        r"HERE: step b: 'step\[0\]' .*",
    ),
    recipe(
        "output_none",
        'b = step("b", JOB); a = step("a", JOB, before=b[None])' + END,
        r"HERE: step b: .* given",
    ),
    recipe(
        "output_path",
        'b = step("b", JOB); a = step("a", JOB, before=b["parts/x"])' + END,
        r"HERE: step b: output .*",
    ),
    recipe(
        "metric_number",
        'a = step("a", JOB); return Summary([Row("x", {"q": a.metric(3)})])',
        r"HERE: step a: metric: 3 given",
    ),
    recipe(
        "metric_unknown",
        'a = step("a", JOB); return Summary([Row("x", {"q": a.metric("nosuch")})])',
        r"row 'x', column 'q': step a reports no 'nosuch'",
    ),
    recipe(
        "metric_close",
        'a = step("a", JOB); return Summary([Row("x", {"q": a.metric("totel")})])',
        r"row 'x', column 'q': step a reports no 'totel'; .*did you mean 'total'\?",
    ),
    recipe(
        "metric_of_other_size",
        'a = step("a", JOB, size=4); return Summary([Row("x", {"q": a.metric("total@8")})])',
        r"row 'x', column 'q': step a reports no 'total@8'",
    ),
    recipe(
        "metric_after_set",
        'a = step("a", JOB); return Summary([Row("x", {"q": a.metric("total@8")})])',
        r"row 'x', column 'q': step a reports no 'total@8'",
        settings="--set a.size=3",
    ),
]
SUMMARIES = [
    recipe(
        "row_number", 'return Summary([Row("a", {"q": 3})])', r"HERE: Row 'a', column 'q': 3 given"
    ),
    recipe(
        "row_text",
        'return Summary([Row("a", {"q": "loss"})])',
        r"HERE: Row 'a', column 'q': 'loss' given",
    ),
    recipe(
        "row_step",
        'a = step("a", JOB); return Summary([Row("x", {"q": a})])',
        r"HERE: Row 'x', column 'q': a Step .*",
    ),
    recipe(
        "row_list",
        'a = step("a", JOB); return Summary([Row("x", [a.metric("total")])])',
        r"HERE: Row 'x': columns: .* given",
    ),
    recipe(
        "row_label",
        'a = step("a", JOB); return Summary([Row(3, {"q": a.metric("total")})])',
        r"HERE: Row: label: 3 .*",
    ),
    recipe(
        "row_steps",
        'a = step("a", JOB); return Summary([Row("x", {}, a)])',
        r"HERE: Row 'x': steps: a Step given",
    ),
    recipe(
        "row_step_names",
        'return Summary([Row("x", {}, ["a"])])',
        r"HERE: Row 'x': steps: 'a' given",
    ),
    recipe(
        "row_steps_text",
        'return Summary([Row("x", {}, "ab")])',
        r"HERE: Row 'x': steps: 'ab' given",
    ),
    recipe(
        "rows_tuple",
        'a = step("a", JOB); return Summary([("x", {"q": a.metric("total")})])',
        r"HERE: Summary: rows: a tuple given",
    ),
    recipe("rows_number", "return Summary(3)", r"HERE: Summary: rows: 3 given"),
    recipe("rows_none", "return Summary(None)", r"HERE: Summary: rows: None given"),
    recipe("rows_one", 'return Summary(Row("x", {}))', r"HERE: Summary: rows: a Row given"),
    recipe("rows_dict", 'return Summary({"x": 3})', r"HERE: Summary: rows: \{'x': 3\} given"),
    recipe("rows_steps", 'return Summary([step("a", JOB)])', r"HERE: Summary: rows: a Step given"),
    recipe(
        "rows_twice",
        'return Summary([Row("x", {}), Row("x", {})])',
        r"HERE: Summary: rows: label 'x' given twice",
    ),
    recipe(
        "goals_step",
        'a = step("a", JOB); return Summary([], goals=a)',
        r"HERE: Summary: goals: a Step given",
    ),
    recipe("goals_names", 'return Summary([], goals=["a"])', r"HERE: Summary: goals: 'a' given"),
    recipe(
        "goals_output",
        'a = step("a", JOB); return Summary([], goals=[a["parts"]])',
        r"HERE: .* an? Output given",
    ),
    recipe(
        "nothing_to_do", "return Summary([])", r"recipe NAME: the Summary has no rows and no goals"
    ),
    recipe("returns_none", "return None", r"recipe NAME: returned NoneType"),
    recipe("returns_step", 'return step("a", JOB)', r"recipe NAME: returned Step"),
    recipe("returns_rows", 'return [Row("x", {})]', r"recipe NAME: returned list"),
]
PARAMETERS = [
    recipe(
        "keywords",
        "return Summary([])",
        r"recipe NAME: parameter kw: \* or \*\* given",
        parameters="**kw",
    ),
    recipe(
        "positions",
        "return Summary([])",
        r"recipe NAME: parameter x: \* or .* given",
        parameters="*x",
    ),
    recipe(
        "untyped", "return Summary([])", r"recipe NAME: parameter x: no type given", parameters="x"
    ),
    recipe(
        "untyped_set",
        "return Summary([])",
        r"recipe NAME: parameter x: no type .*",
        parameters="x=3",
        settings="--set x=4",
    ),
    recipe("required", "return Summary([])", r"recipe NAME: x not given", parameters="x: int"),
    recipe(
        "wrong_type",
        "return Summary([])",
        r"--set x=a: 'a' given",
        parameters="x: int",
        settings="--set x=a",
    ),
    recipe(
        "misspelt",
        "return Summary([])",
        r"--set sed=1: .* no parameter 'sed'",
        parameters="seed: int = 1",
        settings="--set sed=1",
    ),
    Mistake(
        "file_with_minus",
        "plan my-recipe.py",
        r"recipe my-recipe\.py: 'my-recipe' is no name of a Python function",
        {"my-recipe.py": "def my_recipe(): ..."},
    ),
    Mistake(
        "file_with_space",
        "plan 'two words.py'",
        r"recipe two words\.py: 'two words' is no name .* to two_words\.py",
        {"two words.py": ""},
    ),
    Mistake(
        "file_with_digit",
        "plan 2nd.py",
        r"recipe 2nd\.py: '2nd' is no name of a Python function",
        {"2nd.py": ""},
    ),
    Mistake(
        "file_with_dot",
        "plan own.v2.py",
        r"recipe own\.v2\.py: 'own\.v2' is no name of .* to own_v2\.py",
        {"own.v2.py": ""},
    ),
    Mistake(
        "file_missing",
        "plan own_nowhere.py",
        r"recipe own_nowhere\.py: no such file; give a recipe's name .*",
    ),
    Mistake(
        "no_function",
        "plan own_empty.py",
        r"recipe own_empty: own_empty\.py has no function own_empty\(\)",
        {"own_empty.py": "def other(): ..."},
    ),
]
JOBS = [
    job(
        "plain_config",
        "@dataclass(frozen=True)\nclass Config",
        "class Config",
        r"JOBLINE: job count\.config: Config .*a dataclass;.*",
    ),
    job(
        "plain_inputs",
        "@dataclass(frozen=True)\nclass Inputs",
        "class Inputs",
        r"JOBLINE: job count\.inputs: Inputs .*a dataclass;.*",
    ),
    job(
        "mutable",
        "@dataclass(frozen=True)\nclass Config",
        "@dataclass\nclass Config",
        r"JOBLINE: job count\.config: .*frozen.*",
    ),
    job(
        "config_instance",
        "config=Config",
        "config=Config()",
        r"JOBLINE: job count\.config: a Config given",
    ),
    job(
        "run_parameters",
        "run(context, config, inputs)",
        "run(config, inputs)",
        r"JOBLINE: job count\.run: run\(config, inputs\) given",
    ),
    job(
        "run_none",
        "run(context, config, inputs)",
        "run()",
        r"JOBLINE: job count\.run: run\(\) given",
    ),
    job("run_number", "run=run", "run=3", r"JOBLINE: job count\.run: 3 given"),
    job("run_text", "run=run", 'run="run"', r"JOBLINE: job count\.run: 'run' given"),
    job("run_called", "run=run", "run=run(1, 2, 3)", r"JOBLINE: job count\.run: a Result given"),
    job("check_number", "check=check", "check=3", r"JOBLINE: job count\.check: 3 given"),
    job(
        "check_parameters",
        "def check(config, inputs, parents)",
        "def check(config)",
        r"JOBLINE: job count\.check: check\(config\) .*",
    ),
    job(
        "check_raises",
        "    pass",
        '    raise ValueError("seven")',
        r"\S+\.py:\d+ in check: ValueError: seven",
    ),
    job(
        "check_attribute",
        "    pass",
        "    config.nosuch",
        r"\S+\.py:\d+ in check: AttributeError: .*",
    ),
    job("check_key", "    pass", "    {}['x']", r"\S+\.py:\d+ in check: KeyError: 'x'"),
    job(
        "input_str",
        "before: Path | None",
        "before: str",
        r"JOBLINE: job count: Inputs\.before: str given",
    ),
    job(
        "input_list",
        "before: Path | None",
        "before: list[Path]",
        r"JOBLINE: job count: Inputs\.before: 'list\[.* given",
    ),
    job(
        "field_list",
        "size: Annotated[int, Ge(1)] = 8",
        "size: list = None",
        r"JOBLINE: job count: Config\.size: list given",
    ),
    job(
        "field_dict",
        "rate: float",
        "rate: dict[str, int]",
        r"JOBLINE: job count: Config\.rate: 'dict\[str, int\]' given",
    ),
    job(
        "field_path",
        "rate: float = 0.5",
        "rate: Path = None",
        r"JOBLINE: job count: Config\.rate: Path given",
    ),
    job(
        "field_set",
        "rate: float",
        "rate: set[int]",
        r"JOBLINE: job count: Config\.rate: 'set\[int\]' given",
    ),
    job("built_in_name", '"count"', '"mine"', r"job mine: declared in own_\w+"),
    job("built_in_embed", '"count"', '"embed"', r"job embed: declared in own_\w+"),
    job("name_number", '"count"', "3", r"JOBLINE: Job: 3 given"),
    job("name_space", '"count"', '"my job"', r"JOBLINE: Job: 'my job' given"),
    job("name_path", '"count"', '"../x"', r"JOBLINE: Job: '\.\./x' given"),
    job("version_text", "version=1", 'version="a"', r"JOBLINE: job count\.version: 'a' given"),
]


@pytest.mark.slow
@mistakes.parametrize(STEPS, OUTPUTS, SUMMARIES, PARAMETERS, JOBS)
def test_the_answer(
    mistake: Mistake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mistakes.check(mistake, tmp_path, monkeypatch, capsys)


def test_a_step_that_no_row_reaches_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    body = 'a = step("a", JOB); b = step("b", JOB); return Summary([], goals=[a])'
    answer = r"warning: b: no row or goal of the Summary depends on it; it does not run"
    mistake = recipe("unreached", body, answer)
    mistakes.check(
        Mistake(mistake.name, mistake.command, answer, mistake.files, status=0),
        tmp_path,
        monkeypatch,
        capsys,
    )
