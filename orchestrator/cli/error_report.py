"""Errors that end a command: one line on the standard error, and the exit status.

For an error that is not a RatchetError, the line names a file with the traceback. If the error comes from the user's
own code, such as a recipe, the line names the places in that code and no place in Ratchet.
"""

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
from ratchet.orchestrator.job_interface.clean_output import OutputError, print_clean
from ratchet.orchestrator.store.backend import FORMAT_NAME

MAX_PLACES = 4
"""Maximum number of places in the user's code that the line names: if there are more, the first and the last ones."""

_PYTHON = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
_NOT_THE_USERS = tuple(f"{folder}{os.sep}" for folder in (Path(ratchet.__file__).parent, *_PYTHON))


def report_error(error: BaseException, store: str | None, debug: bool) -> int:
    """Print the line of an error and return the exit status. store: value of --store. debug: print the traceback."""
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, BrokenPipeError | OutputError):
        # Otherwise, Python fails again when it flushes the stream at exit.
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(
        error, BrokenPipeError
    ):  # as if ended by SIGPIPE: the reader, such as `head`, is done
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
        ours_to_mend = isinstance(
            error, errors.InputError | errors.StoreError | errors.CanonicalError
        )
        is_outside = isinstance(error, errors.DamagedError | errors.TransientError)
        return str(error), 2 if ours_to_mend and not is_outside else 1
    if isinstance(error, OSError) and error.errno in errors.DISK_FULL:
        error.filename = error.filename or store
        return errors.describe(error), 1
    if isinstance(error, OSError) and error.errno in errors.NOT_PERMITTED and error.filename:
        expected = "expected permission for it; check the owner and the mode, or whether the file system is read-only"
        return f"{error.filename}: {error.strerror}; {expected}", 2
    hint = f"; the whole traceback is in {_save(trace, store)}; --debug prints it"
    places = find_places(error)
    if places:
        message = f"{type(error).__name__}: {getattr(error, 'msg', None) or str(error).strip() or 'no message'}"
        return f"{', '.join(places)}: {message}; expected code that runs; correct it{hint}", 2
    return f"internal error: {errors.describe(error)}; expected none; please report it{hint}", 1


def find_places(error: BaseException) -> list[str]:
    """Return the places in the user's code that an error comes from, as `FILE:LINE in FUNCTION`, the innermost last."""
    places: list[str] = []
    for frame in traceback.extract_tb(error.__traceback__):
        place = f"{_shorten(frame.filename)}:{frame.lineno} in {frame.name}".removesuffix(
            " in <module>"
        )
        if _is_users(frame.filename) and places[-1:] != [place]:
            places.append(place)
    if isinstance(error, SyntaxError) and error.filename and _is_users(error.filename):
        places.append(f"{_shorten(error.filename)}:{error.lineno}")
    if len(places) <= MAX_PLACES:
        return places
    return [places[0], "...", *places[1 - MAX_PLACES :]]


def _is_users(file: str) -> bool:
    return not file.startswith(("<", *_NOT_THE_USERS))


def _shorten(file: str) -> str:
    """Return a path relative to the working directory if it is in it."""
    return file.removeprefix(f"{os.getcwd()}{os.sep}")


def _save(trace: str, store: str | None) -> str:
    """Write a traceback to a file, in the folder of the store if there is one; return its path."""
    folders = [tempfile.gettempdir()]
    if store and (Path(store) / FORMAT_NAME).is_file():
        folders.insert(0, f"{store}/errors")
    for folder in folders:
        path = Path(
            folder, f"ratchet-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}.txt"
        )
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            path.write_text(trace, "utf-8", "replace")
            return str(path)
    return "no file, since none can be written"
