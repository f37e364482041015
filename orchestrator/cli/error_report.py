"""Errors that end a command: one line on the standard error, and the exit status.

For an error that is not a RatchetError, the line names a file with the traceback. If the error comes from the user's
own code, such as a recipe, the line names the places in that code and no place in Ratchet.
"""

from __future__ import annotations

import itertools
import os
import sys
import sysconfig
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

import ratchet
from ratchet import errors
from ratchet.orchestrator.job_interface.terminal import OutputError, print_clean
from ratchet.orchestrator.store.backend import FORMAT_NAME

MAX_PLACES = 4
"""Maximum number of places in the user's code that the line names: if there are more, the first and the last ones."""

_NOT_THE_USERS = tuple(
    {str(Path(ratchet.__file__).parent), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))}
)


def report_error(error: BaseException, store: str | None, debug: bool) -> int:
    """Print the line of an error and return the exit status. store: value of --store. debug: print the traceback."""
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, BrokenPipeError | OutputError):
        # Otherwise, Python fails again when it flushes the stream at exit.
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # as if ended by SIGPIPE: the reader, such as `head`, is done
        return 141
    with suppress(OSError):  # the standard error may be full or gone too
        if debug:
            print_clean(trace, sys.stderr)
        line, status = _explain(error, store, trace)
        print_clean(f"ratchet: {' '.join(part.strip() for part in line.splitlines())}", sys.stderr)
        return status
    return 1


def _explain(error: BaseException, store: str | None, trace: str) -> tuple[str, int]:
    """Return the text of the line and the exit status."""
    if isinstance(error, KeyboardInterrupt):
        return "stopped; give the same command again to continue", 130
    if isinstance(error, errors.RatchetError):
        ours_to_mend = isinstance(error, errors.InputError | errors.StoreError | errors.CanonicalError)
        is_outside = isinstance(error, errors.DamagedError | errors.TransientError)
        return str(error), 2 if ours_to_mend and not is_outside else 1
    if isinstance(error, OSError) and error.errno in errors.DISK_FULL:
        error.filename = error.filename or store
        return errors.describe(error), 1
    if isinstance(error, OSError) and error.errno in errors.NOT_PERMITTED and error.filename:
        expected = "expected permission for it; check the owner and the mode, or whether the file system is read-only"
        return f"{error.filename}: {error.strerror}; {expected}", 2
    hint = f"; the whole traceback is in {_save(trace, store)}; --debug prints it"
    if places := find_places(error):
        message = f"{type(error).__name__}: {getattr(error, 'msg', None) or str(error).strip() or 'no message'}"
        return f"{', '.join(places)}: {message}; expected code that runs; correct it{hint}", 2
    return f"internal error: {errors.describe(error)}; expected none; please report it{hint}", 1


def find_places(error: BaseException) -> list[str]:
    """Return the places in the user's code that an error comes from, as `FILE:LINE in FUNCTION`, the innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    found = []
    for f in frames:
        if _is_users(f.filename):
            found.append(f"{_shorten(f.filename)}:{f.lineno} in {f.name}")
    if isinstance(error, SyntaxError) and error.filename and _is_users(error.filename):
        found.append(f"{_shorten(error.filename)}:{error.lineno}")
    places = []
    for place, same in itertools.groupby(found):
        times = len(list(same))
        places.append(place.removesuffix(" in <module>") + (f" ({times} times)" if times > 1 else ""))
    if len(places) <= MAX_PLACES:
        return places
    return [places[0], "...", *places[1 - MAX_PLACES :]]


def _is_users(file: str) -> bool:
    return not file.startswith(("<", *(f"{folder}{os.sep}" for folder in _NOT_THE_USERS)))


def _shorten(file: str) -> str:
    """Return a path relative to the working directory if it is in it."""
    with suppress(ValueError, OSError):
        return str(Path(file).relative_to(Path.cwd()))
    return file


def _save(trace: str, store: str | None) -> str:
    """Write a traceback to a file, in the folder of the store if there is one; return its path."""
    name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}.txt"
    if store and (Path(store) / FORMAT_NAME).is_file():
        with suppress(OSError):
            path = Path(store, "errors", name)
            path.parent.mkdir(exist_ok=True)
            path.write_text(trace, "utf-8", "replace")
            return str(path)
    with suppress(OSError):
        descriptor, temporary = tempfile.mkstemp(".txt", "ratchet-")
        with open(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(trace)
        return temporary
    return "no file, since none can be written"
