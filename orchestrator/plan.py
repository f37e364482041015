"""The plan: for each step, whether its result exists, and if not, why.

A step's identity needs the digests of what its parents made, so a plan is worked out from the top down and goes as
far as the store's results reach. What a missing step will produce is not guessed: its children are `unknown`, and may
still turn out to be hits when it gives the same bytes as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from orchestrator.errors import Damaged, InputError
from orchestrator.identity import changes, code_of, identity, step_id
from orchestrator.source import SourceDigests
from orchestrator.step import Output, Reference, Source, Step
from orchestrator.store import Commit, Store
from orchestrator.store.manifest import Manifest


@dataclass
class Planned:
    """A step and what is known of it so far."""

    step: Step
    identity: dict[str, Any] | None = None
    """None while an input is not made yet."""
    step_id: str | None = None
    commit: Commit | None = None
    """None: not in the store."""
    manifest: Manifest | None = None

    @property
    def state(self) -> str:
        """`hit`, `miss` or `unknown`."""
        return "hit" if self.commit else "miss" if self.step_id else "unknown"


class Plan:
    """Steps by name, parents before children."""

    def __init__(self, steps: Sequence[Step], store: Store, *, repair: bool = False) -> None:
        """repair: move a result that is damaged on disk aside instead of raising, so that its step is a miss."""
        self.store = store
        self.repair = repair
        self.sources = SourceDigests(store.local("sources.json"))
        self.steps = {step.name: Planned(step) for step in steps}
        # All of it now: who edits a file while the run is under way does not get half of each version.
        self.code = {step.job: code_of(step.job) for step in steps}
        self.parents = {step.name: {parent.name for parent in step.parents} for step in steps}
        for name in self.steps:
            self.resolve(name)
        self.sources.save()

    def resolve(self, name: str) -> Planned:
        """Works out a step's identity and looks its result up, once all its inputs exist.

        Raises Damaged where the store holds a result that is not what was committed; InputError for a source that
        is not there.
        """
        planned = self.steps[name]
        if planned.commit is None and all(self.steps[parent].commit for parent in self.parents[name]):
            if planned.identity is None:
                job = planned.step.job
                inputs = {key: self._digest(ref) for key, ref in planned.step.inputs.items()}
                planned.identity = identity(job, self.code[job], planned.step.config, inputs)
                planned.step_id = step_id(planned.identity)
            assert planned.step_id is not None
            commit = self.store.use(planned.step_id)
            manifest = None if commit is None else self._sound(planned.step_id, commit)
            planned.commit, planned.manifest = (commit, manifest) if manifest else (None, None)
        return planned

    def done(self, name: str, commit: Commit) -> None:
        """Records a step's result."""
        self.steps[name].manifest = self.store.manifest(commit.manifest)
        self.steps[name].commit = commit

    def _sound(self, step_id: str, commit: Commit) -> Manifest | None:
        """The artifact's manifest, if its files are there and of the right size; contents are checked when read."""
        try:
            return self.store.verified(commit.manifest, full=self.repair)
        except Damaged:
            if not self.repair:
                raise
            self.store.set_aside(step_id)
            return None

    def inputs(self, name: str, *, verified: bool) -> Any:
        """The job's `Inputs` with a folder for each input; None for what is not made yet.

        verified: read every byte of the inputs and compare with their manifests first.
        """
        step = self.steps[name].step
        return step.job.inputs(**{key: self._path(ref, verified) for key, ref in step.inputs.items()})

    def sources_unchanged(self, name: str) -> None:
        """Raises InputError where a file that the person gave is no longer what the plan was made for."""
        planned = self.steps[name]
        assert planned.identity is not None
        for key, ref in planned.step.inputs.items():
            if isinstance(ref, Source) and self.sources.digest(ref) != planned.identity["inputs"][key]:
                raise InputError(
                    f"step {name}: {ref.label or ref.path} changed while the run was under way; its result would have"
                    " belonged to neither version; give the same command again"
                )

    def missing(self) -> list[str]:
        """Steps that have no result yet."""
        return [name for name, planned in self.steps.items() if planned.commit is None]

    def check(self) -> None:
        """Lets each job that is going to run look at its settings and at the inputs that exist. Raises its error."""
        for name in self.missing():
            step = self.steps[name].step
            if step.job.check is not None:
                step.job.check(step.config, self.inputs(name, verified=False))

    def explain(self, name: str, before: Mapping[str, str]) -> list[str]:
        """Why a step is no hit: what changed since `before` (step name -> step id of an earlier run)."""
        planned = self.steps[name]
        if planned.state == "hit":
            return []
        if planned.state == "unknown":
            return [f"waits for {parent}" for parent in self.parents[name] if self.steps[parent].commit is None]
        assert planned.identity is not None
        earlier = self.store.lookup(before[name]) if name in before else None
        if earlier is None:
            return ["never run to its end in this store"]
        return changes(earlier.identity, planned.identity) or ["its result was removed from the store"]

    def _digest(self, ref: Reference) -> Any:
        if ref is None:
            return None
        if isinstance(ref, tuple):
            return [self._digest(item) for item in ref]
        if isinstance(ref, Source):
            return self.sources.digest(ref)
        manifest = self.steps[ref.step.name].manifest
        assert manifest is not None  # only called when all parents are done
        return manifest.part_digest(ref.part)

    def _path(self, ref: Reference, verified: bool) -> Any:
        if ref is None:
            return None
        if isinstance(ref, tuple):
            paths = [self._path(item, verified) for item in ref]
            return None if any(path is None for path in paths) else tuple(paths)
        if isinstance(ref, Source):
            return ref.path
        commit = self.steps[ref.step.name].commit
        return None if commit is None else Path(self.store.path(commit.manifest, ref.part, full=verified))


def describe_inputs(step: Step) -> list[tuple[str, str]]:
    """(field, what it is) for people."""
    return [
        (key, str(ref) if isinstance(ref, Output) else (ref.label or ref.path.name)) for key, ref in step.references()
    ]


def config_of(step: Step) -> dict[str, Any]:
    """The settings as a plain dict."""
    return {f.name: getattr(step.config, f.name) for f in fields(step.config)}
