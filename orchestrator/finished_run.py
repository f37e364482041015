"""Finished runs as inputs of a recipe: a plan finds their results by step id, and never computes them again.

run = find_run("20261124-2311")
model = run.step("iter1/merge_embedder")["model"]
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ratchet.errors import DamagedError, InputError, StoreError
from ratchet.orchestrator.job_interface.job import Context, Job, Resources, Result
from ratchet.orchestrator.job_interface.settings import expect_one_of
from ratchet.orchestrator.reporting.model_card import write_card
from ratchet.orchestrator.run_log import RunLog, find_run_log
from ratchet.orchestrator.run_models import NAME, RunModel, find_model
from ratchet.orchestrator.step import Output, Step
from ratchet.orchestrator.store import Store

_store: ContextVar[Store | None] = ContextVar("store", default=None)


@dataclass(frozen=True)
class Nothing:
    """Settings and inputs of a step that has been run: none."""


def run(context: Context, config: Nothing, inputs: Nothing) -> Result:
    raise StoreError(
        f"step {context.step}: its result left the store during the run; give that run's command again"
    )


JOB = Job("finished", Nothing, Nothing, run)


@dataclass(frozen=True)
class FinishedRun:
    """A run whose results are in the store."""

    run_id: str
    recipe: str
    store: Store
    step_ids: Mapping[str, str]
    """Step name -> step id, for the steps with a result."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Step name -> its settings."""

    def step(self, name: str) -> Step:
        """Return a step of the run. New steps and rows may use its outputs and metrics.

        Raises InputError if the run has no such step, did not finish it, or if its result was removed from the store.
        """
        step_id = self.step_ids.get(name)
        if step_id is None:
            raise InputError(
                f"run {self.run_id}: step '{name}' given; {expect_one_of(self.step_ids, name)}"
            )
        if self.store.lookup(step_id) is None:
            raise InputError(
                f"run {self.run_id}: the result of step {name} is not in the store; expected what the run made; give"
                " the command of that run again"
            )
        return _make_step(f"{self.run_id}/{name}", step_id)

    def get(self, name: str) -> Step | None:
        """Return a step as `step` does; None if the run has no such step or did not finish it."""
        return self.step(name) if name in self.step_ids else None

    def digest(self, name: str, part: str) -> str:
        """Return the digest of the content of a step's output `part`; empty if it has none. Equal contents have equal
        digests in all runs."""
        commit = self.store.lookup(self.step_ids[name])
        assert commit is not None  # `step` was called before
        manifest = self.store.manifest(commit.manifest)
        return manifest.part_digest(part) if manifest.of_part(part) else ""


@contextmanager
def use_store(store: Store | None) -> Iterator[None]:
    """Set the store in which `find_run` and the other functions look inside the block."""
    token = _store.set(store)
    try:
        yield
    finally:
        _store.reset(token)


def find_run(run_id: str) -> FinishedRun:
    """Return the newest run whose id begins with `run_id`. Raises InputError if there is none in the store."""
    store = _get_store(f"run {run_id}")
    try:
        return _read(store, find_run_log(store, run_id or "(empty)"))
    except DamagedError:
        raise
    except StoreError as error:
        raise InputError(f"run '{run_id}': {error}") from None


def find_model_output(name: str) -> Output | None:
    """Return the folder of a model that a run made, as an output; None for other names. See `find_run_model`."""
    made = find_run_model(name)
    if made is None:
        return None
    return _make_step(f"{made.run_id}/{made.step}", made.step_id)[made.part]


def find_run_model(name: str) -> RunModel | None:
    """Return a model that a run made, by its name, such as `20261124-2311:embedder` (see `run_models`). None for other
    names and for existing paths. Raises InputError if the run has no such model."""
    if Path(name).exists() or not NAME.fullmatch(name):
        return None
    return find_model(_get_store(f"model {name}"), name)


def find_model_input(made: RunModel, field: str) -> Output | str | None:
    """Return an input of the step that made a model, such as `base` or `adapter`: the output of another step of the
    run, or the name that the user gave. None if the step has no such input."""
    given = made.inputs.get(field)
    if given is None:
        return None
    step, _, part = given.rstrip("]").partition("[")
    store = _get_store(f"run {made.run_id}")
    run = _read(store, RunLog(store.local("runs", made.run_id)))
    if step in run.step_ids:
        return run.step(step)[part]
    return given


def find_card(made: RunModel, name: str, license: str) -> str:
    """Return the model card of a model that a run made (see `write_card`)."""
    return write_card(_get_store(f"run {made.run_id}"), made, name, license)


@lru_cache(maxsize=1024)  # a plan must have each step only once
def _make_step(name: str, step_id: str) -> Step:
    return Step(name, JOB, Nothing(), {}, Resources(), finished=step_id)


def _get_store(where: str) -> Store:
    """Return the store of `use_store`. Raises InputError, beginning with `where`, if there is none."""
    store = _store.get()
    if store is None:
        raise InputError(
            f"{where}: no store given; expected one, as `ratchet run` and `ratchet plan` have"
        )
    return store


def _read(store: Store, run_log: RunLog) -> FinishedRun:
    about = run_log.read("about.json") or {}
    done = {step["name"]: step for step in run_log.steps() if step.get("object")}
    step_ids = {name: step["step_id"] for name, step in done.items()}
    settings = {name: step.get("config", {}) for name, step in done.items()}
    return FinishedRun(run_log.run_id, str(about.get("recipe")), store, step_ids, settings)
