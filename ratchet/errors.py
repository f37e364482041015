"""The errors that Ratchet raises.

    RatchetError
    ├── InputError         a file, a setting or an option that the user gave is wrong
    │   ├── RecipeError    a recipe, a parameter or a `--set` line is wrong
    │   ├── DataError      a data file, or a row of it, is wrong
    │   └── ModelError     a model folder is wrong
    ├── RunError           a run did not end well, or has no such result
    ├── JobError           a step cannot succeed with the config and inputs that it has
    │   └── ArtifactError  the output of a job fails the job's own checks; it is never committed
    ├── CanonicalError     a value has no stable JSON form (also a TypeError)
    ├── StoreError         the store cannot do what was asked (full disk, missing run)
    │   └── DamagedError   a stored result is no longer what was committed
    └── TransientError     the same call may succeed later
        ├── UnreachableError  object storage does not answer (also a StoreError and a ConnectionError)
        ├── LeaseLost      another driver took the step over; this attempt may not commit
        └── Interrupted    the run was told to stop

A step is retried after a TransientError and never after another RatchetError. Messages have the form
*where: what was given; what was expected; what to do*.
"""

import errno

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk: no free blocks, an exceeded quota, a limit on the size of a file."""

NOT_PERMITTED = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Error numbers of a missing permission and of a read-only file system."""


class RatchetError(Exception):
    """The base class of all errors that Ratchet raises itself."""


class InputError(RatchetError):
    """A file, row, field, setting or option that the user gave is wrong. The message names the file and line, or the
    setting."""


class RecipeError(InputError):
    """A recipe, a parameter of it or a `--set` line is wrong."""


class DataError(InputError):
    """A data file is wrong. The message names the file and line."""


class ModelError(InputError):
    """A model folder or an adapter cannot be used."""


class RunError(RatchetError):
    """A run failed or was interrupted, or lacks the result that was asked for."""


class JobError(RatchetError):
    """A step cannot succeed with the config and inputs that it has."""


class ArtifactError(JobError):
    """The output of a job fails the job's own checks (row counts, finite numbers). It is never committed."""


class CanonicalError(RatchetError, TypeError):
    """A value has no stable JSON form and cannot be part of a fingerprint."""


class StoreError(RatchetError):
    """The store cannot do what was asked."""


class DamagedError(StoreError):
    """A stored result is missing or no longer what was committed."""


class TransientError(RatchetError):
    """The same call may succeed later."""


class UnreachableError(StoreError, TransientError, ConnectionError):
    """Object storage does not answer."""


class LeaseLost(TransientError):
    """Another driver took the step over; this attempt may not commit."""


class Interrupted(TransientError):
    """The run was told to stop."""


def describe(error: BaseException) -> str:
    """Return the error as one message: that of a RatchetError as it is, else the name of the class and its message."""
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        if error.filename:
            where = f"{error.filename}: "
        else:
            where = ""
        return (
            f"{where}{error.strerror}; expected free space for the step's output; free some (`ratchet gc` lists what"
            " can be removed) and give the same command again: finished steps, shards and checkpoints are kept"
        )
    text = str(error).strip() or "no message"
    if isinstance(error, RatchetError):
        return text
    return f"{type(error).__name__}: {text}"
