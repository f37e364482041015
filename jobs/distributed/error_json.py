"""Conversion of errors to JSON and back, to pass an error of a worker to the process that started it.

JSON and not pickle: everyone who may write to a store can write into its work folders, and unpickling runs code.
"""

import builtins
import json
import traceback

from ratchet import errors
from ratchet.errors import JobError


def error_to_json(error: Exception) -> str:
    """Return the class, arguments and traceback of an error as JSON. Call it where the error is caught."""
    if isinstance(error, OSError) and error.filename:
        arguments = [*error.args, error.filename]
    else:
        arguments = list(error.args)
    known = _find_class(type(error).__name__) is type(error)
    try:
        text = json.dumps(arguments)
        known = known and json.loads(text) == arguments
    except (TypeError, ValueError):
        known = False
    if not known:
        arguments = [f"{type(error).__name__}: {error}"]
    trace = "".join(traceback.format_exception(error))
    return json.dumps(
        {"class": type(error).__name__ if known else "", "arguments": arguments, "traceback": trace}
    )


def error_from_json(text: str) -> Exception:
    """Return the error, with the traceback as its attribute `remote_traceback`.

    Errors of Python and of `ratchet.errors` keep their class. Others become a JobError with the name of their class."""
    read = json.loads(text)
    error = (_find_class(read["class"]) or JobError)(*read["arguments"])
    error.__dict__["remote_traceback"] = read["traceback"]
    return error


def _find_class(name: str) -> type[Exception] | None:
    found = getattr(errors, name, None) or getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, Exception):
        return found
    return None
