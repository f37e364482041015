"""Which failures may pass by themselves. A lost machine may; a wrong value will not."""

from __future__ import annotations

import errno

NOT_PASSING = {"RuntimeEnvSetupError", "TaskCancelledError", "TaskUnschedulableError", "ActorUnschedulableError"}
"""Errors of Ray that come back the same however often one tries."""


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The system's words for a full disk: no blocks, a quota, a limit on a file's size."""


def may_pass(error: BaseException) -> bool:
    """Whether trying again can help: a lost worker, actor or node, a connection, a time-out.

    Everything that a job raises by itself (a bad value, a full disk, a bug) is final.
    """
    if getattr(error, "permanent", False):
        return False
    of_workers = getattr(error, "worker_failures", None)
    if isinstance(of_workers, dict) and of_workers:
        return all(may_pass(failure) for failure in of_workers.values())
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    kind = type(error)
    return kind.__module__.startswith("ray.exceptions") and kind.__name__ not in NOT_PASSING


def backoff(tries: int) -> float:
    """Seconds to wait before try number `tries` + 1: 1, 2, 4, ... at most 60."""
    return min(60.0, 2.0 ** (tries - 1))


def sentence(error: BaseException) -> str:
    """The error as one message: the finished sentence of our own errors, else class and message."""
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        where = f"{error.filename}: " if error.filename else ""
        return (
            f"{where}{error.strerror}; expected room for what the step writes; make some (`ratchet gc` shows what can"
            " go) and give the same command again: finished steps, shards and checkpoints stay"
        )
    text = str(error).strip() or "no message"
    own = type(error).__module__.split(".")[0] in ("jobs", "models", "data", "orchestrator")
    return text if own else f"{type(error).__name__}: {text}"
