"""Output to the terminal: removes control sequences from all text that commands print.

Names, settings, results, errors and rows of data may come from untrusted sources. An escape sequence in them could
rewrite the title, the clipboard or earlier lines; an override of the writing direction makes a text look different.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ratchet.errors import RatchetError

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """Remove terminal escapes, control characters (except tab and newline), overrides of the writing direction and lone
    surrogates."""
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    return _CONTROLS.sub("", text).encode("utf-8", "replace").decode("utf-8")


class OutputError(RatchetError):
    """A standard stream cannot be written, for example because its file is on a full disk."""


@contextmanager
def _name_stream() -> Iterator[None]:
    """Turn an OSError of the stream into OutputError, since it would look like an error of the store."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(
            f"standard output: {error.strerror}; expected a terminal, pipe or file with room for the output; send it"
            " elsewhere and give the same command again"
        ) from None


def print_clean(text: str, file: TextIO | None = None, end: str = "\n") -> None:
    """Clean a text and print it to a file (default: standard output)."""
    with _name_stream():
        print(clean(text), file=file or sys.stdout, end=end, flush=True)


class CleanConsole(Console):
    """Rich console that cleans all text, but keeps Rich's own colours and cursor movements."""

    def print(self, *objects: Any, **options: Any) -> None:
        with _name_stream():
            super().print(*objects, **options)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text), segment.style)


def print_error(text: str) -> None:
    """Print a line on the standard error, behind the name of the program."""
    print_clean(f"ratchet: {text}", sys.stderr)
