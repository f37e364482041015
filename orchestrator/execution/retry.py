"""Retries of steps: the errors that are transient, and the waiting times."""

from __future__ import annotations

from ratchet.errors import RatchetError, TransientError

PERMANENT_IN_RAY = {"RuntimeEnvSetupError", "TaskCancelledError", "TaskUnschedulableError", "ActorUnschedulableError"}
"""Names of Ray errors that a retry does not help against."""


def is_transient(error: BaseException) -> bool:
    """Whether a retry may succeed: after a lost worker, actor or node, a failed connection or a time-out.

    Everything that a job raises itself (a bad value, a full disk, a bug) is permanent.
    """
    if isinstance(error, RatchetError):
        return isinstance(error, TransientError)
    worker_failures = getattr(error, "worker_failures", None)
    if isinstance(worker_failures, dict) and worker_failures:
        return all(is_transient(failure) for failure in worker_failures.values())
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    kind = type(error)
    return kind.__module__.startswith("ray.exceptions") and kind.__name__ not in PERMANENT_IN_RAY


def backoff(tries: int) -> float:
    """Seconds to wait before try number `tries` + 1: 1, 2, 4, ... at most 60."""
    return min(60.0, 2.0 ** (tries - 1))
