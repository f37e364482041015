"""Runs a job in a process like that of a step: it holds the resources, and is started again if it is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayTaskError, WorkerCrashedError

from ratchet.orchestrator.job_interface import Context


def run_step(work: Callable[..., Any], context: Context, *given: Any) -> Any:
    """Return what work(context, *given) does with one worker, which is a process of its own. Several workers are
    started by the work itself, from here."""
    if context.resources.workers != 1:
        return work(context, *given)
    task = ray.remote(num_cpus=context.resources.cpus, max_retries=0)(work)
    for left in range(context.resources.retries, -1, -1):
        try:
            return ray.get(task.remote(replace(context, holds_resources=True), *given))
        except RayTaskError as error:
            raise error.cause from None
        except WorkerCrashedError:
            if not left:
                raise
    raise AssertionError


def work_here(make: Callable[..., Context]) -> Callable[..., Context]:
    """Let contexts with one worker be those of a step that does the work in its own process, which is this one."""

    def make_here(*given: Any, **values: Any) -> Context:
        context = make(*given, **values)
        return replace(context, holds_resources=context.resources.workers == 1)

    return make_here
