"""The models that runs made: their kinds, their metrics, and how to find a model by name.

find_model(store, "20261124-2311")                        the model that the run ended with
find_model(store, "20261124-2311:reranker")               one of several such models, by its name
find_model(store, "20261124-2311:iter0/merge_embedder")   the model of a step; `:sft/checkpoint-500`: another output
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter

from ratchet.errors import DamagedError, InputError
from ratchet.orchestrator.job_interface.clean_output import print_error
from ratchet.orchestrator.job_interface.settings import expect_one_of
from ratchet.orchestrator.plan import Plan, describe_inputs
from ratchet.orchestrator.run_log import RunLog, list_run_logs
from ratchet.orchestrator.step import Output, Row, Source, Step, Summary
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.manifest import Manifest

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
    """Column of the table -> number, those for which higher is better first; with several seeds or folds, the number of
    the first."""
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

    @property
    def is_listed(self) -> bool:
        """Whether it has a row in the table of its run, or the run ended with it."""
        return bool(self.row or self.best_as)

    def exists(self, store: Store) -> bool:
        """Return whether `gc` has not removed it."""
        return store.lookup(self.step_id) is not None

    def format_metric(self) -> str:
        """Format the first metric of its row: `MAP@25 0.4442`."""
        for name, value in self.metrics.items():
            return f"{name} {value:.4f}"
        return ""

    def locate(self, store: Store) -> Path:
        """Return the folder of the model, after checking the sizes of its files. A bucket's files are downloaded."""
        return store.path(self.object, self.part)


_LOADED = TypeAdapter(RunModel)
"""Reader of the description of a model. Keys that another version wrote are ignored."""


def build_models(plan: Plan, summary: Summary, run_log: RunLog) -> list[RunModel]:
    """Return all models in the results of a run: first those with a row, in the order of the table, then the other
    ones that the run ended with, then those of its other steps."""
    about = run_log.read("about.json") or {}
    rows: dict[str, Row] = {}
    for row in summary.rows:
        rows.setdefault(str(row.model), row)
    best = {str(output): name for name, output in summary.best.items()}
    found = []
    for step, planned in plan.steps.items():
        if planned.commit is None or planned.manifest is None:
            continue
        for part, kind in _list_parts(planned.manifest).items():
            place = f"{step}[{part}]"
            model = RunModel(
                run_id=run_log.run_id,
                recipe=str(about.get("recipe")),
                started=float(about.get("started", 0.0)),
                step=step,
                part=part,
                step_id=planned.step_id,
                object=planned.commit.manifest,
                kind=kind,
                bytes=sum(file.bytes for file in planned.manifest.of_part(part)),
                inputs=dict(describe_inputs(planned.step)),
                base=_find_base(planned.step),
                best_as=best.get(place, ""),
                changed=bool(planned.numbers.get("changed", True)),
            )
            if place in rows:
                columns = _read_columns(plan, rows[place])
                model = replace(model, row=rows[place].label, metrics=columns)
            found.append(model)
    order = [*rows, *best]

    def find_position(model: RunModel) -> int:
        place = f"{model.step}[{model.part}]"
        return order.index(place) if place in order else len(order)

    return sorted(found, key=find_position)


def _list_parts(manifest: Manifest) -> dict[str, str]:
    """Return the folders with a model in a result -> kind of the model."""
    names: dict[str, set[str]] = {}
    for file in manifest.files:
        part, _, name = file.path.partition("/")
        if name in SIGNS:
            names.setdefault(part, set()).add(name)
    found = {}
    for part, inside in names.items():
        found[part] = next(kind for sign, kind in SIGNS.items() if sign in inside)
    return found


def _find_base(step: Step) -> str:
    """Return the name of the base model at the start of a chain of steps."""
    base = step.inputs.get("base")
    while isinstance(base, Output):
        base = base.step.inputs.get("base")
    if isinstance(base, Source):
        return base.label or base.path.name
    return ""


def _read_columns(plan: Plan, row: Row) -> dict[str, float]:
    """Return the numbers of a row by column."""
    metrics: dict[str, float] = {}
    for title, metric in row.metrics:
        numbers = plan.steps[metric.step.name].numbers
        if metric.name in numbers:
            metrics.setdefault(title, numbers[metric.name])  # the first of several seeds counts
    directions = row.directions
    order = sorted(metrics, key=lambda title: directions[title] <= 0)
    return {title: metrics[title] for title in order}


def list_models(store: Store, run: str = "") -> Iterator[RunModel]:
    """Yield the models of the runs whose ids begin with `run`, newest run first (see `read_models`). A run whose plan
    cannot be read is named on the standard error."""
    for run_log in list_run_logs(store):
        try:
            if run_log.run_id.startswith(run):
                yield from read_models(store, run_log)
        except DamagedError as error:
            print_error(f"run {run_log.run_id}: {error}")


def read_models(store: Store, run_log: RunLog) -> list[RunModel]:
    """Return the models of a run that have a row in the table or that the run ended with, if they exist."""
    return [model for model in _read_all(run_log) if model.is_listed and model.exists(store)]


def _read_all(run_log: RunLog) -> list[RunModel]:
    found: list[RunModel] = []
    for about in (run_log.read("plan.json") or {}).get("models", ()):
        found.append(_LOADED.validate_python(about))
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
    models: list[RunModel] = []
    for run_log in matching:
        models = models or [model for model in _read_all(run_log) if model.exists(store)]
    if not models:
        raise InputError(
            f"model {name}: run {matching[0].run_id} has no model in the store; expected one that it made with this"
            " version and that `gc` has not removed; `ratchet models` lists those there are"
        )
    shown = [model for model in models if model.is_listed]
    best = [model for model in shown if model.best_as]
    if not own:
        return (best or shown[-1:] or models)[0]
    for model in best + models:
        names = [model.best_as, f"{model.step}/{model.part}"]
        if model.part in ("model", "adapter"):
            names.append(model.step)
        if own in names:
            return model
    known = [model.name.partition(":")[2] for model in shown]
    raise InputError(
        f"model {name}: run {models[0].run_id} has no finished '{own}'; {expect_one_of(known, own)}"
    )
