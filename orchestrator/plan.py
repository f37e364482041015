"""The plan: for each step, whether its result exists, and if not, why.

The fingerprint of a step includes the digests of its inputs, so steps are resolved in order, parents first, as far as
results exist. The children of a step without a result are `open`: they may still have a result, if the step produces
the same bytes as in an earlier run.
"""

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ratchet.errors import DamagedError, InputError
from ratchet.orchestrator.canonical_json import digest
from ratchet.orchestrator.fingerprint import build_fingerprint, describe_changes
from ratchet.orchestrator.job_interface.code import read_code
from ratchet.orchestrator.job_interface.job import Result
from ratchet.orchestrator.job_interface.source_digest import SourceDigests
from ratchet.orchestrator.step import Output, Reference, Source, Step
from ratchet.orchestrator.store import Commit, Store
from ratchet.orchestrator.store.manifest import Manifest


@dataclass
class Planned:
    """A step and what is known about it so far."""

    step: Step
    fingerprint: dict[str, Any] = field(default_factory=dict)
    """Empty until all inputs exist, and for a step of a finished run."""
    step_id: str = ""
    """Empty until all inputs exist."""
    commit: Commit | None = None
    """None: the store has no result."""
    manifest: Manifest | None = None

    @property
    def state(self) -> str:
        """`done`, `to run`, or `open` (an input does not exist yet)."""
        if self.commit:
            return "done"
        if self.step_id:
            return "to run"
        return "open"

    @property
    def result(self) -> Mapping[str, Any]:
        """The job's result as it is stored; empty if there is none."""
        if self.manifest:
            return self.manifest.result
        return {}

    @property
    def numbers(self) -> dict[str, float]:
        """The metrics of the result that are numbers."""
        metrics = self.result.get("metrics", {})
        found = {}
        for name, value in metrics.items():
            if isinstance(value, int | float):
                found[name] = value
        return found


class Plan:
    """The steps of a recipe by name, parents before children."""

    def __init__(self, steps: Sequence[Step], store: Store, *, repair: bool = False) -> None:
        """repair: withdraw damaged results, so that their steps run again, instead of raising DamagedError."""
        self.store = store
        self.repair = repair
        self.sources = SourceDigests(store.local("sources", f"{platform.node()}.json"))
        self.steps = {step.name: Planned(step) for step in steps}
        self.code = {step.job: read_code(step.job) for step in steps}
        self.results: dict[str, Result] = {}
        """Step name -> its metrics, if the result is in the store; after `check`, else what that has returned."""
        self.notes: list[str] = []
        """Notes for the user on the steps that are going to run, such as rows that are left out."""
        self.parents = {step.name: {parent.name for parent in step.parents} for step in steps}
        for name in self.steps:
            self.resolve(name)
        if not store.read_only:
            self.sources.save()

    def resolve(self, name: str) -> Planned:
        """Compute the fingerprint of a step and look up its result, if all its inputs exist.

        Raises DamagedError if the stored result is damaged, and InputError if a source is missing.
        """
        planned = self.steps[name]
        if planned.commit is None and all(
            self.steps[parent].commit for parent in self.parents[name]
        ):
            if planned.step.finished:
                planned.step_id = planned.step.finished
            elif not planned.step_id:
                job = planned.step.job
                inputs = {}
                for key, ref in planned.step.inputs.items():
                    inputs[key] = self.digest_input(ref)
                planned.fingerprint = build_fingerprint(
                    job, self.code[job], planned.step.config, inputs
                )
                planned.step_id = digest(planned.fingerprint)
            commit = self.store.use(planned.step_id)
            manifest = self._load_manifest(commit) if commit else None
            if commit and manifest:
                self.record(name, commit, manifest)
        return planned

    def record(self, name: str, commit: Commit, manifest: Manifest) -> None:
        """Record the result of a step."""
        planned = self.steps[name]
        planned.manifest = manifest
        planned.commit = commit
        self.results[name] = Result(planned.result.get("metrics", {}))

    def _load_manifest(self, commit: Commit) -> Manifest | None:
        """Return the manifest, after checking the files' sizes (not in a bucket) or, if `repair`, their contents. None:
        the result has to be computed again, since it is damaged, or `gc` has removed it."""
        try:
            if self.store.backend.downloads and not self.repair:
                return self.store.manifest(commit.manifest)
            return self.store.verified(commit.manifest, full=self.repair)
        except DamagedError:
            if not self.repair and self.store.backend.has_object(commit.manifest):
                raise
            if not self.store.read_only:
                self.store.withdraw(commit)
            return None

    def find_load(self, name: str) -> Any:
        """Return what the workers of a step load, as a value that is equal for the same load, on the same kind of
        machine. None: nothing that another step could load too. The inputs of the step must exist."""
        planned = self.steps[name]
        step = planned.step
        if not step.loads:
            return None
        loaded = {}
        for one in step.loads:
            if one in step.inputs:
                loaded[one] = planned.fingerprint["inputs"][one]
            else:
                loaded[one] = getattr(step.config, one)
        return digest({"job": step.job.name, "resources": asdict(step.resources), "loads": loaded})

    def inputs(self, name: str, *, verified: bool, most_bytes: float = math.inf) -> Any:
        """Return the job's `Inputs`, with the path of each input, or None for an input that does not exist yet.

        verified: check the content of the inputs against their manifests first. most_bytes: None for inputs in a bucket
        that are larger, instead of a download.
        """
        step = self.steps[name].step
        found = {}
        for key, ref in step.inputs.items():
            found[key] = self.path_of(ref, verified, most_bytes)
        return step.job.inputs(**found)

    def check_sources(self, name: str) -> None:
        """Raise InputError if a source of a step has changed since the plan was made."""
        planned = self.steps[name]
        known = planned.fingerprint["inputs"]
        for key, ref in planned.step.references():
            if (
                isinstance(ref, Source)
                and self.digest_input(planned.step.inputs[key]) != known[key]
            ):
                raise InputError(
                    f"step {name}: {ref.label or ref.path} changed during the run; expected the same content to the"
                    " end, or the result would mix two versions; give the same command again"
                )

    @property
    def warnings(self) -> list[str]:
        """Code of the jobs that could not be followed, with file and line, and the notes of `check`."""
        return [
            *sorted({warning for code in self.code.values() for warning in code.warnings}),
            *self.notes,
        ]

    def missing(self) -> list[str]:
        """Return the names of the steps without a result."""
        return [name for name, planned in self.steps.items() if planned.commit is None]

    def check(self) -> None:
        """Call `check` of each job that is going to run. Raises its errors."""
        for name in self.missing():
            step = self.steps[name].step
            inputs = self.inputs(name, verified=False)
            if step.job.check is None:
                continue
            known = step.job.check(step.config, inputs, self.parent_results(name))
            if known is None:
                continue
            self.results[name] = known
            if known.note:
                self.notes.append(f"{name}: {known.note}")

    def parent_results(self, name: str) -> dict[str, Result]:
        """Return input field -> the known part of the result of the step that makes this input."""
        found = {}
        for key, ref in self.steps[name].step.inputs.items():
            if isinstance(ref, Output) and ref.step.name in self.results:
                found[key] = replace(self.results[ref.step.name], part=ref.part)
        return found

    def explain(self, name: str, before: Mapping[str, str]) -> list[str]:
        """Return why a step is not done: what changed since an earlier run. before: step name -> earlier step id."""
        planned = self.steps[name]
        if planned.state == "done":
            return []
        if planned.state == "open":
            missing = sorted(
                parent for parent in self.parents[name] if self.steps[parent].commit is None
            )
            return [f"depends on {parent}, which would run" for parent in missing]
        earlier = self.store.lookup(before[name]) if name in before else None
        if earlier is None:
            return ["no earlier run in this store finished it"]
        return describe_changes(earlier.fingerprint, planned.fingerprint) or [
            "its result was removed from the store"
        ]

    def describe(self, before: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return name, job, state (done, to run, open), step id and reasons why it is not done, of each step. before:
        as for `explain`."""
        found = []
        for name, planned in self.steps.items():
            about = {"step": name, "job": planned.step.job.name, "state": planned.state}
            found.append(
                {**about, "step_id": planned.step_id or None, "reasons": self.explain(name, before)}
            )
        return found

    def digest_input(self, ref: Reference) -> Any:
        if ref is None:
            return None
        if isinstance(ref, tuple):
            return [self.digest_input(item) for item in ref]
        if isinstance(ref, Source):
            return self.sources.digest(ref)
        manifest = self.steps[ref.step.name].manifest
        assert manifest is not None  # only called when all parents are done
        return manifest.part_digest(ref.part)

    def path_of(self, ref: Reference, verified: bool, most_bytes: float = math.inf) -> Any:
        """Return the path of an output or source; None if it does not exist yet; a tuple of paths for a tuple.
        most_bytes: see `inputs`."""
        if ref is None:
            return None
        if isinstance(ref, tuple):
            paths = [self.path_of(item, verified, most_bytes) for item in ref]
            if any(path is None for path in paths):
                return None
            return tuple(paths)
        if isinstance(ref, Source):
            path = ref.path.absolute()  # workers have another working directory
            return self.store.place_source(path, self.sources.digest(ref)) if verified else path
        planned = self.steps[ref.step.name]
        commit = planned.commit
        if commit is None:
            return None
        if self.store.backend.downloads and self._measure(ref) > most_bytes:
            return None
        return self.store.path(commit.manifest, ref.part, full=verified)

    def _measure(self, ref: Output) -> int:
        """Return the bytes of an output that exists."""
        manifest = self.steps[ref.step.name].manifest
        assert manifest is not None
        return sum(file.bytes for file in manifest.of_part(ref.part))


def describe_inputs(step: Step) -> list[tuple[str, str]]:
    """Return (field, description) of each input: `STEP[PART]`, or the label or file name of a source."""
    found = []
    for key, ref in step.references():
        found.append((key, str(ref) if isinstance(ref, Output) else (ref.label or ref.path.name)))
    return found
