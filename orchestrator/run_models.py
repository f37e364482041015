"""The models that runs made: what they are, their metrics, and how to find one by name.

find_model(store, "20261124-2311")                        the model that a run ended with
find_model(store, "20261124-2311:reranker")               of several, by its name in the run
find_model(store, "20261124-2311:iter0/merge_embedder")   of any step; `:sft/checkpoint-500` an output of it
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface.job import infer_direction
from ratchet.orchestrator.job_interface.settings import expect_one_of
from ratchet.orchestrator.run_log import RunLog, list_run_logs
from ratchet.orchestrator.store import Commit, Store

NAME = re.compile(r"\d{4,}(-[\w-]*)?(:.*)?")
"""What a name of a model of a run looks like."""

MAX_KNOWN = 20
"""Runs that an error names."""

SIGNS = {
    "adapter_config.json": "adapter",
    "reranker_config.json": "reranker",
    "encoding_config.json": "embedder",
    "modules.json": "embedder",
    "config.json": "decoder",
}
"""File -> kind of the model in whose folder it is. The first one decides."""

MEASURED_ON = ("queries", "statements", "samples")
"""Inputs of the steps that measure, or that make the `completions` that are measured: what is measured on."""

CODE = {
    "adapter": "from peft import AutoPeftModel; AutoPeftModel.from_pretrained({folder})",
    "modules.json": "from sentence_transformers import SentenceTransformer; SentenceTransformer({folder})",
    "embedder": "from ratchet.models.embedder import encoder; encoder.load(Path({folder}))",
    "ForSequenceClassification": "from sentence_transformers import CrossEncoder; CrossEncoder({folder})",
    "reranker": "from ratchet.models.reranker import reranker; reranker.load(Path({folder}))",
    "decoder": "from transformers import AutoModelForCausalLM; AutoModelForCausalLM.from_pretrained({folder})",
}
"""What is known of a model -> the line of Python that loads it."""


@dataclass(frozen=True)
class RunModel:
    """A folder with a model or an adapter, in the result of a step of a run."""

    run_id: str
    recipe: str
    started: float
    """Seconds since 1970, of the run."""
    step: str
    part: str
    """The folder in the result of the step."""
    step_id: str
    object: str
    """The address of the result of the step."""
    kind: str
    """embedder, reranker, decoder or adapter."""
    bytes: int
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Inputs of the step: field -> a step with its part, `iter0/sft[adapter]`, or the name that the user gave."""
    base: str = ""
    """The model that was finetuned: a folder or a hub id. Empty: none, or unknown."""
    row: str = ""
    """The label of its row in the table of the run. Empty: it has none."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Column of the table -> number; of several seeds or folds, that of the first."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Column of the table -> the digest of the queries or samples that it was measured on, if there are any."""
    best_as: str = ""
    """Its name among the models that the run ended with, such as `embedder`. Empty: it is none of them."""

    @property
    def name(self) -> str:
        """The shortest name by which it is found: RUN:NAME or RUN:STEP."""
        own = self.best_as or (self.step if self.part in ("model", "adapter") else f"{self.step}/{self.part}")
        return f"{self.run_id}:{own}"

    def format_metric(self) -> str:
        """Return the first number of its row that tells the quality, such as `MAP@25 0.4442`; empty without one."""
        names = sorted(self.metrics, key=lambda name: infer_direction(name) <= 0)
        return f"{names[0]} {self.metrics[names[0]]:.4f}" if names else ""

    def locate(self, store: Store) -> Path:
        """Return the folder, in which the size of every file is checked; it is downloaded first from a bucket."""
        return store.path(self.object, self.part)

    def write_code(self, store: Store) -> str:
        """Return the line of Python that loads the model, or the command that fetches it if it is only in a bucket."""
        folder = store.local("objects", self.object, self.part)
        if not folder.is_dir():
            return f"ratchet export {self.name} DIR"
        known = [self.kind]
        if self.kind == "embedder" and (folder / "modules.json").exists():
            known = ["modules.json"]
        elif self.kind == "reranker":
            architectures = json.loads((folder / "config.json").read_text()).get("architectures") or []
            known = [end for end in CODE if any(name.endswith(end) for name in architectures)] or known
        return CODE[known[0]].format(folder=repr(str(folder)))


def list_models(store: Store, run: str = "") -> Iterator[RunModel]:
    """Yield the models of the runs whose id begins with `run`, the newest run first, those with a row in its table."""
    for run_log in list_run_logs(store):
        if run_log.run_id.startswith(run):
            yield from read_models(store, run_log)


def read_models(store: Store, run_log: RunLog) -> list[RunModel]:
    """Return the models of a run that exist by now and have a row, in the order of its table."""
    plan = run_log.read("plan.json") or {}
    best = {(found["step"], found["part"]): name for name, found in reversed(plan.get("best", {}).items())}
    places = [(row["model"]["step"], row["model"]["part"]) for row in plan.get("rows", ()) if row["model"]]
    made = [_read(store, run_log, plan, step, part) for step, part in dict.fromkeys([*places, *best])]
    return [one for one in made if one is not None]


def read_best(store: Store, run_log: RunLog) -> list[RunModel]:
    """Return the models that a run ended with, as far as they exist."""
    return [one for one in read_models(store, run_log) if one.best_as]


def find_model(store: Store, name: str) -> RunModel:
    """Return the model that a name means: of the runs whose ids begin so, the newest with a model in its table counts.
    Raises InputError with the nearest known name if there is none."""
    run, _, own = name.partition(":")
    runs = list(list_run_logs(store))
    if not (matching := [run_log for run_log in runs if run and run_log.run_id.startswith(run)]):
        known = [run_log.run_id for run_log in runs[:MAX_KNOWN]]
        raise InputError(f"model {name}: no such run in {store.where}; {expect_one_of(known, name)}")
    made_by = ((run_log, read_models(store, run_log)) for run_log in matching)
    found, models = next((pair for pair in made_by if pair[1]), (matching[0], []))
    plan = found.read("plan.json") or {}
    if not own:
        if not (wanted := [one for one in models if one.best_as] or models[-1:]):
            raise InputError(
                f"model {name}: run {found.run_id} of {plan.get('recipe')} has no model in the store; expected one that"
                " it made and that `gc` has not removed; `ratchet models` lists those there are"
            )
        return next((one for one in wanted if one.best_as == next(iter(plan["best"]), "")), wanted[0])
    if own in plan.get("best", {}):
        own = f"{plan['best'][own]['step']}/{plan['best'][own]['part']}"
    for step in (one["name"] for one in plan.get("steps", ())):
        for part in ("model", "adapter") if own == step else (own.removeprefix(f"{step}/"),):
            if own in (step, f"{step}/{part}") and (made := _read(store, found, plan, step, part)):
                return made
    names = [one.name.partition(":")[2] for one in models] or ["those of a run that made models"]
    raise InputError(f"model {name}: run {found.run_id} has no finished '{own}'; {expect_one_of(names, own)}")


def _read(store: Store, run_log: RunLog, plan: Mapping[str, Any], step: str, part: str) -> RunModel | None:
    """Return what is in a folder of a step's result; None if it does not exist, or holds no model."""
    steps = {one["name"]: one for one in plan["steps"]}
    if step not in steps or not steps[step]["object"] or store.lookup(steps[step]["step_id"]) is None:
        return None
    manifest = store.manifest(steps[step]["object"])
    names = {file.path.removeprefix(f"{part}/") for file in manifest.of_part(part)}
    if not (kind := next((kind for sign, kind in SIGNS.items() if sign in names), "")):
        return None
    about = run_log.read("about.json") or {}
    place = {"step": step, "part": part}
    rows = [*plan.get("rows", ()), {"label": "", "columns": {}, "model": place}]
    row: dict[str, Any] = next(one for one in rows if one["model"] == place)
    metrics, data = _read_columns(store, steps, row["columns"])
    return RunModel(
        run_id=run_log.run_id,
        recipe=str(plan.get("recipe")),
        started=float(about.get("started", 0.0)),
        step=step,
        part=part,
        step_id=steps[step]["step_id"],
        object=steps[step]["object"],
        kind=kind,
        bytes=sum(file.bytes for file in manifest.of_part(part)),
        inputs=dict(steps[step].get("inputs", ())),
        base=find_base(steps, step),
        row=row["label"],
        metrics=metrics,
        data=data,
        best_as=next((name for name, found in plan.get("best", {}).items() if found == place), ""),
    )


def find_base(steps: Mapping[str, Mapping[str, Any]], step: str) -> str:
    """Return the name of the model that a chain of steps began with. steps: those of plan.json, by name."""
    while True:
        base = dict(steps[step].get("inputs", ())).get("base", "")
        parent = base.partition("[")[0]
        if parent not in steps:
            return str(base)
        step = parent


def _read_columns(
    store: Store, steps: Mapping[str, Mapping[str, Any]], columns: Mapping[str, list[list[str]]]
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the numbers of a row, and the digests of what they were measured on, by column."""
    metrics, data = dict[str, float](), dict[str, str]()

    @cache  # the columns of a row share steps
    def lookup(step: str) -> Commit | None:
        step_id = steps.get(step, {}).get("step_id")
        return store.lookup(step_id) if step_id else None

    for title, cell in columns.items():
        step, name = cell[0]
        made = lookup(step)
        known = store.manifest(made.manifest).result if made and steps[step]["object"] else {}
        value = known.get("metrics", {}).get(name)
        if isinstance(value, int | float):
            metrics[title] = value
        commit = lookup(dict(steps[step].get("inputs", ())).get("completions", step))
        inputs = commit.fingerprint.get("inputs", {}) if commit else {}
        if digest := next((inputs[name] for name in MEASURED_ON if isinstance(inputs.get(name), str)), ""):
            data[title] = digest
    return metrics, data
