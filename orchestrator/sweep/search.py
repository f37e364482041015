"""The driver of a sweep: which trials there are, how many run at once, and Ray Tune to run them.

Tune chooses and stops trials; what it remembers is not trusted. Every trial that the ledger knows is given to Tune once
more when a sweep goes on, and tells in a moment what it told before, so that a searcher and a scheduler that were just
started have seen all of it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from jobs.machines import places
from orchestrator.cluster import Cluster
from orchestrator.step import Step
from orchestrator.sweep.ledger import Ledger, Trial, key_of
from orchestrator.sweep.space import Space
from orchestrator.sweep.trial import Spec
from orchestrator.view import View

Searcher = Literal["random", "optuna"]
Stopping = Literal["asha", "none"]

TICK = 0.5
"""Seconds between looks at the trials' progress."""

HEAD = {"node:__internal_head__": 0.001}
"""What a trial's actor occupies: a place at the head, and no CPU."""

QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}
"""Tune's own files and chatter, which nobody reads here; and trials work where the sweep was started."""


@dataclass(frozen=True)
class Search:
    """How trials are chosen and stopped."""

    trials: int
    searcher: Searcher = "random"
    stopping: Stopping = "asha"
    grace: int = 1
    """Checkpoints that every trial reaches."""
    reduction: int = 3
    """Of so many trials at a checkpoint one goes on."""
    seed: int = 0
    """Of what is drawn."""


def room(steps: Sequence[Step], cluster: Cluster) -> int:
    """How many trials the cluster, at its largest, can place at once.

    Raises InputError, with the arithmetic, where it cannot place one.
    """
    machines, asked = cluster.machines(), [cluster.placed(step) for step in steps]
    return max(1, min((places(machines, one) // (one.workers or 1) for one in asked), default=1))


def carry_out(spec: Spec, space: Space, search: Search, ledger: Ledger, at_once: int, view: View) -> bool:
    """Runs the trials that the ledger does not know yet; whether all came to an end (false: interrupted)."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if search.searcher == "random":
        points = tuple(space.points(search.trials, search.seed))
        return _fit(replace(spec, points=points), search, None, ledger, at_once, view)
    # The defaults need not lie in the space, so that they are no point of Optuna's.
    first = _fit(replace(spec, points=({},)), search, None, ledger, at_once, view)
    if not first or search.trials < 2:
        return first
    search = replace(search, trials=search.trials - 1)
    return _fit(replace(spec, points=()), search, _optuna(space, search, ledger, spec.mode), ledger, at_once, view)


def _fit(spec: Spec, search: Search, searcher: Any, ledger: Ledger, at_once: int, view: View) -> bool:
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

    from orchestrator.sweep.trial import TrialActor

    watch = _watch(spec, ledger, view)
    numbers = tune.grid_search(list(range(len(spec.points))))
    asha = ASHAScheduler(
        time_attr="checkpoint", max_t=1 << 20, grace_period=search.grace, reduction_factor=search.reduction
    )
    folder = ledger.folder / "tune"
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(TrialActor, spec=spec), tune.PlacementGroupFactory([HEAD])),
        param_space={} if searcher else {"number": numbers},
        tune_config=tune.TuneConfig(
            metric="value",
            mode=spec.mode,
            search_alg=searcher,
            scheduler=asha if search.stopping == "asha" and spec.target.trained else FIFOScheduler(),
            num_samples=search.trials if searcher else 1,
            max_concurrent_trials=at_once,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name=f"{time.time_ns()}",
            storage_path=str(folder),
            verbose=0,
            callbacks=[watch],
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    try:
        tuner.fit()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return watch.ended >= (search.trials if searcher else len(spec.points))


def _optuna(space: Space, search: Search, ledger: Ledger, mode: str) -> Any:
    """Tree-structured Parzen estimators (Bergstra et al. 2011) by Optuna; what the ledger knows is asked first."""
    from ray.tune.search.optuna import OptunaSearch

    before = [
        {str(i): d.native(trial.settings[d.name]) for i, d in enumerate(space.dimensions)}
        for trial in ledger.trials.values()
        if trial.settings
    ]
    return OptunaSearch(
        {str(i): dimension.distribution() for i, dimension in enumerate(space.dimensions)},
        metric="value",
        mode=mode,
        points_to_evaluate=before or None,
        seed=search.seed + len(before),  # the same one would draw again what it drew before
    )


def _watch(spec: Spec, ledger: Ledger, view: View) -> Any:
    """Tune's callback that keeps the ledger and the view."""
    import ray
    from ray import tune

    class Watch(tune.Callback):
        def __init__(self) -> None:
            self.ended = 0
            self.began: dict[str, float] = {}
            self.curves: dict[str, list[float]] = {}
            self.looked = 0.0

        def __reduce__(self) -> Any:
            return tune.Callback, ()  # Tune writes down what it would go on with; that is never read

        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            settings = spec.point(trial.config)
            self.began[trial.trial_id] = time.monotonic()
            self.curves[trial.trial_id] = []
            ledger.begun(settings)
            if key_of(settings) in spec.known:
                view.hit(label(ledger, settings))
            else:
                view.started(label(ledger, settings), 1)

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: Mapping[str, Any], **info: Any
        ) -> None:
            if "value" in result and "ended" not in result:  # not the trial's value, a checkpoint's
                self.curves[trial.trial_id].append(result["value"])

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            last, curve = trial.last_result or {}, self.curves[trial.trial_id]
            if last.get("failed"):
                self._end(trial, status="failed", reason=last["failed"], curve=tuple(curve))
            elif last.get("ended"):
                found = {"value": last["value"], "values": tuple(last["values"]), "curve": tuple(last["curve"])}
                self._end(trial, status=last["ended"], **found)
            else:
                self._end(trial, status="stopped", value=curve[-1] if curve else None, curve=tuple(curve))

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            self._end(trial, status="failed", reason=f"{trial.get_error() or 'its process was lost'}".strip())

        def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
            if spec.board is None or time.monotonic() - self.looked < TICK:
                return
            self.looked = time.monotonic()
            for key, progress in ray.get(spec.board.take.remote()).items():
                if key in ledger.trials:
                    view.progress(label(ledger, ledger.trials[key].settings), progress)

        def _end(self, trial: Any, **found: Any) -> None:
            settings = spec.point(trial.config)
            known = spec.known.get(key_of(settings))
            self.ended += 1
            if known is not None:
                return  # what was found first is what counts, even if it would be stopped now
            seconds = time.monotonic() - self.began.get(trial.trial_id, time.monotonic())
            result = Trial(settings, seconds=seconds, **found)
            ledger.ended(result)
            if result.status == "failed":
                view.failed(label(ledger, settings), result.reason)
            else:
                word = spec.target.metric if result.status == "finished" else f"stopped early at {spec.target.metric}"
                view.finished(label(ledger, settings), seconds, {} if result.value is None else {word: result.value})

    return Watch()


def label(ledger: Ledger, settings: Mapping[str, str]) -> str:
    """`trial 3 (learning_rate=0.0002, rank=8)`."""
    short = ", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in settings.items())
    return f"trial {ledger.number(settings)} ({short or 'defaults'})"
