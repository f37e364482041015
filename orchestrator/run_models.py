"""The models that runs made: their kinds, their metrics, and how to find a model by name.

find_model(store, "20261124-2311")                        the model that the run ended with
find_model(store, "20261124-2311:reranker")               one of several such models, by its name
find_model(store, "20261124-2311:iter0/merge_embedder")   the model of a step; `:sft/checkpoint-500`: another output
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface.job import infer_direction
from ratchet.orchestrator.job_interface.settings import expect_one_of
from ratchet.orchestrator.run_log import RunLog, list_run_logs
from ratchet.orchestrator.store import Store

NAME = re.compile(r"\d{4,}(-[\w-]*)?(:.*)?")
"""Pattern of the names of models of runs."""

MAX_KNOWN = 20
"""Maximum number of runs that an error message names."""

SIGNS = {
    "adapter_config.json": "adapter",
    "reranker_config.json": "reranker",
    "encoding_config.json": "embedder",
    "modules.json": "embedder",
    "config.json": "decoder",
}
"""File in the folder of a model -> kind of the model. The first file that exists decides."""

MEASURED_ON = ("queries", "statements", "samples")
"""Inputs with evaluation data, of the step with the metric or of the step that makes its `completions`."""

CODE = {
    "adapter": "from peft import AutoPeftModel; AutoPeftModel.from_pretrained({folder})",
    "modules.json": "from sentence_transformers import SentenceTransformer; SentenceTransformer({folder})",
    "embedder": "from ratchet.models.embedder import encoder; encoder.load(Path({folder}))",
    "ForSequenceClassification": "from sentence_transformers import CrossEncoder; CrossEncoder({folder})",
    "reranker": "from ratchet.models.reranker import reranker; reranker.load(Path({folder}))",
    "decoder": "from transformers import AutoModelForCausalLM; AutoModelForCausalLM.from_pretrained({folder})",
}
"""Kind of a model, a file in its folder, or the end of its architecture's name -> the Python line that loads it."""


@dataclass(frozen=True)
class RunModel:
    """A folder with a model or an adapter, in the result of a step of a run."""

    run_id: str
    recipe: str
    started: float
    """Start of the run, in seconds since 1970."""
    step: str
    part: str
    """The folder of the model in the result of the step."""
    step_id: str
    object: str
    """The address of the result of the step."""
    kind: str
    """embedder, reranker, decoder or adapter."""
    bytes: int
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Input field of the step -> the output `STEP[PART]` of another step, or the name that the user gave."""
    base: str = ""
    """The base model that was finetuned: a folder or a hub id. Empty: none, or unknown."""
    row: str = ""
    """The label of its row in the table of the run. Empty: it has no row."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Column of the table -> number; with several seeds or folds, the number of the first."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Column of the table -> digest of the evaluation data (see `MEASURED_ON`), if it is known."""
    best_as: str = ""
    """Its name among the models that the run ended with, such as `embedder`. Empty: the run did not end with it."""
    changed: bool = True
    """Whether its weights differ from those of the base, as the metric `changed` of its step says."""

    @property
    def name(self) -> str:
        """The shortest name by which the model is found: RUN:NAME, RUN:STEP or RUN:STEP/PART."""
        own = self.best_as or (
            self.step if self.part in ("model", "adapter") else f"{self.step}/{self.part}"
        )
        return f"{self.run_id}:{own}"

    @property
    def remark(self) -> str:
        """What is shown behind its name: `unchanged base`, `best` or nothing."""
        if not self.changed:
            return "unchanged base"
        if self.best_as:
            return "best"
        return ""

    def format_metric(self) -> str:
        """Format a metric of its row (`MAP@25 0.4442`): the first for which higher is better, else the first."""
        for name in sorted(self.metrics, key=lambda name: infer_direction(name) <= 0):
            return f"{name} {self.metrics[name]:.4f}"
        return ""

    def locate(self, store: Store) -> Path:
        """Return the folder of the model, after checking the sizes of its files. A bucket's files are downloaded."""
        return store.path(self.object, self.part)

    def write_code(self, store: Store) -> str:
        """Return the Python line that loads the model, or the export command if the model is only in a bucket."""
        folder = store.local("objects", self.object, self.part)
        if not folder.is_dir():
            return f"ratchet export {self.name} DIR"
        loader = self.kind
        if self.kind == "embedder" and (folder / "modules.json").exists():
            loader = "modules.json"
        elif (
            self.kind == "reranker"
            and "ForSequenceClassification" in (folder / "config.json").read_text()
        ):
            loader = "ForSequenceClassification"
        return CODE[loader].format(folder=repr(str(folder)))


def list_models(store: Store, run: str = "") -> Iterator[RunModel]:
    """Yield the models of the runs whose ids begin with `run`, newest run first (see `read_models`)."""
    for run_log in list_run_logs(store):
        if run_log.run_id.startswith(run):
            yield from read_models(store, run_log)


def read_models(store: Store, run_log: RunLog) -> list[RunModel]:
    """Return the models that exist: first those with a row, in the order of the table, then other best models."""
    plan = run_log.read("plan.json") or {}
    places = []
    for row in plan.get("rows", ()):
        if row["model"]:
            places.append(row["model"])
    places += reversed(plan.get("best", {}).values())
    found: dict[tuple[str, str], RunModel] = {}
    for place in places:
        key = (place["step"], place["part"])
        model = None if key in found else _read(store, run_log, plan, *key)
        if model is not None:
            found[key] = model
    return list(found.values())


def read_best(store: Store, run_log: RunLog) -> list[RunModel]:
    """Return the models that a run ended with, if they exist."""
    found: list[RunModel] = []
    for model in read_models(store, run_log):
        if model.best_as:
            found.append(model)
    return found


def find_model(store: Store, name: str) -> RunModel:
    """Return the model of a name. If several run ids begin with the RUN in the name, the newest run with models counts.
    Raises InputError, with the nearest known name, if there is no such model."""
    run, _, own = name.partition(":")
    runs = list(list_run_logs(store))
    matching = [run_log for run_log in runs if run and run_log.run_id.startswith(run)]
    if not matching:
        known = [run_log.run_id for run_log in runs[:MAX_KNOWN]]
        raise InputError(
            f"model {name}: no such run in {store.where}; {expect_one_of(known, name)}"
        )
    found = matching[0]
    models: list[RunModel] = []
    for run_log in matching:
        models = read_models(store, run_log)
        if models:
            found = run_log
            break
    plan = found.read("plan.json") or {}
    best = plan.get("best", {})
    if not own:
        if not models:
            raise InputError(
                f"model {name}: run {found.run_id} of {plan.get('recipe')} has no model in the store; expected one that"
                " it made and that `gc` has not removed; `ratchet models` lists those there are"
            )
        for wanted in best:
            for model in models:
                if model.best_as == wanted:
                    return model
        return models[-1]
    places = [(best[own]["step"], best[own]["part"])] if own in best else []
    for step in plan.get("steps", ()):
        if own == step["name"]:
            places += [(own, "model"), (own, "adapter")]
        elif own.startswith(f"{step['name']}/"):
            places.append((step["name"], own.removeprefix(f"{step['name']}/")))
    for place in places:
        made = _read(store, found, plan, *place)
        if made is not None:
            return made
    names = [one.name.partition(":")[2] for one in models] or ["those of a run that made models"]
    raise InputError(
        f"model {name}: run {found.run_id} has no finished '{own}'; {expect_one_of(names, own)}"
    )


def _read(
    store: Store, run_log: RunLog, plan: Mapping[str, Any], step: str, part: str
) -> RunModel | None:
    """Return the model in the folder `part` of a step's result; None if there is none."""
    steps = {one["name"]: one for one in plan["steps"]}
    if (
        step not in steps
        or not steps[step]["object"]
        or store.lookup(steps[step]["step_id"]) is None
    ):
        return None
    manifest = store.manifest(steps[step]["object"])
    files = manifest.of_part(part)
    names = set()
    for file in files:
        names.add(file.path.removeprefix(f"{part}/"))
    kind = next((kind for sign, kind in SIGNS.items() if sign in names), "")
    if not kind:
        return None
    about = run_log.read("about.json") or {}
    place = {"step": step, "part": part}
    unlisted: dict[str, Any] = {"label": "", "columns": {}}
    row = next((row for row in plan.get("rows", ()) if row["model"] == place), unlisted)
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
        bytes=sum(file.bytes for file in files),
        inputs=dict(steps[step]["inputs"]),
        base=find_base(steps, step),
        row=row["label"],
        metrics=metrics,
        data=data,
        changed=bool(manifest.result.get("metrics", {}).get("changed", True)),
        best_as=next((name for name, found in plan.get("best", {}).items() if found == place), ""),
    )


def find_base(steps: Mapping[str, Mapping[str, Any]], step: str) -> str:
    """Return the base model at the start of a chain of steps. steps: the steps of plan.json by name."""
    while True:
        base = str(dict(steps[step]["inputs"]).get("base", ""))
        step = base.partition("[")[0]
        if step not in steps:
            return base


def _read_columns(
    store: Store, steps: Mapping[str, Mapping[str, Any]], columns: Mapping[str, list[list[str]]]
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the numbers of a row, and the digests of the data that they were measured on, both by column."""
    metrics: dict[str, float] = {}
    data: dict[str, str] = {}
    for title, cell in columns.items():
        step, name = cell[0]
        made = steps.get(step, {})
        if not made.get("object") or store.lookup(made["step_id"]) is None:
            continue
        value = store.manifest(made["object"]).result.get("metrics", {}).get(name)
        if isinstance(value, int | float):
            metrics[title] = value
        asked = steps.get(dict(made["inputs"]).get("completions", step), {})
        commit = store.lookup(asked["step_id"]) if asked.get("step_id") else None
        inputs = commit.fingerprint.get("inputs", {}) if commit else {}
        digests = []
        for key in MEASURED_ON:
            if isinstance(inputs.get(key), str):
                digests.append(inputs[key])
        if digests:
            data[title] = digests[0]
    return metrics, data
