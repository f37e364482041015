"""Reading of text files that users give, whatever is found at their path.

Every reader of user files passes through here. None waits for a pipe, and none reads more than `MAX_LINE_BYTES` of a
line or `MAX_FILE_BYTES` of a whole file. A file that gzip compressed is read as its content. Errors have the class that
the caller names, and name file and line.
"""

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from ratchet.errors import DataError, InputError

MAX_LINE_BYTES = 64 * 2**20
"""Longest line, in bytes."""

MAX_FILE_BYTES = 2**30
"""Longest file that is read as a whole, in bytes."""

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

SIGNATURES = {
    b"\xff\xfe\0\0": ("UTF-32", "convert the file (iconv -f utf-32 -t utf-8)"),
    b"\0\0\xfe\xff": ("UTF-32", "convert the file (iconv -f utf-32 -t utf-8)"),
    b"\xff\xfe": ("UTF-16", "convert the file (iconv -f utf-16 -t utf-8)"),
    b"\xfe\xff": ("UTF-16", "convert the file (iconv -f utf-16 -t utf-8)"),
    b"\x28\xb5\x2f\xfd": ("zstd", "decompress the file (unzstd)"),
    b"\xfd7zXZ": ("xz", "decompress the file (unxz)"),
    b"PK\x03\x04": ("a ZIP archive", "unpack it; export a spreadsheet as CSV"),
    b"PAR1\x15": ("Parquet", "convert the file to text"),
}
"""First bytes -> what the file is, and what to do. UTF-32 comes before UTF-16, whose first bytes are the same."""


def open_regular(path: Path, error: type[InputError] = DataError) -> BufferedReader:
    """Open a file for reading. Raises `error` if it is missing, cannot be read, or is no regular file."""
    try:
        # O_NONBLOCK: a named pipe without a writer would block.
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", closefd=True)
    except (FileNotFoundError, NotADirectoryError):
        raise error(f"{path}: no such file; expected one; check the path") from None
    except IsADirectoryError:
        raise error(f"{path}: a folder given; expected a file; give a file in it") from None
    except OSError as failure:
        raise error(
            f"{path}: {failure.strerror}; expected a file that can be read; check the path"
        ) from None
    except ValueError:
        raise error(
            f"{str(path)!r}: a NUL character in the path; expected none; check the path"
        ) from None
    kind = stat.S_IFMT(os.fstat(file.fileno()).st_mode)
    if kind != stat.S_IFREG:
        file.close()
        raise error(
            f"{path}: {KINDS.get(kind, 'no file')} given; expected a regular file; write the content to one"
        )
    return file


@contextmanager
def open_text(
    path: Path, error: type[InputError] = DataError
) -> Iterator[BufferedReader | gzip.GzipFile]:
    """Open a file, or the content of one that gzip compressed. Raises `error` as `open_regular` does, and in the body
    for a damaged archive."""
    with open_regular(path, error) as file:
        try:
            yield decompress(file)
        except (EOFError, gzip.BadGzipFile, zlib.error) as failure:
            raise error(
                f"{path}: damaged gzip ({failure}); expected a complete file; copy it again"
            ) from None


def decompress(file: BufferedReader) -> BufferedReader | gzip.GzipFile:
    """Return the content of a file that gzip compressed, or else the file itself."""
    if file.peek(2).startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    return file


def iterate_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line with its line end). Raises DataError for a file without any text, for a line of more
    than MAX_LINE_BYTES (which is not read to its end), and as `decode` does."""
    number = 0
    blank = True
    with open_text(path) as file:
        while raw := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(raw) > MAX_LINE_BYTES:
                raise DataError(
                    f"{path}:{number}: a line of more than {MAX_LINE_BYTES / 2**20:g} MB; expected shorter ones; write"
                    " one row per line"
                )
            line = decode(path, raw, number)
            blank = blank and not line.strip()
            yield number, line
    if blank:
        raise _no_text(path, number, DataError)


def read_text(
    path: Path, error: type[InputError] = DataError, max_bytes: int = MAX_FILE_BYTES
) -> str:
    """Read a file as text. Raises `error` for a file without any text, for one of more than `max_bytes`, and as
    `decode` does."""
    with open_text(path, error) as file:
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise error(
            f"{path}: more than {max_bytes / 2**20:g} MB; expected a smaller file; split it"
        )
    text = decode(path, raw, 1, error)
    if not text.strip():
        raise _no_text(path, len(raw), error)
    return text


def decode(path: Path, raw: bytes, first: int, error: type[InputError] = DataError) -> str:
    """Decode lines from line number `first` on. A byte order mark of UTF-8 at the start of a file is removed. Raises
    `error` for the first byte that is not UTF-8 or is NUL, and names other encodings and compressed files."""
    if first == 1:
        for signature, (kind, advice) in SIGNATURES.items():
            if raw.startswith(signature):
                raise error(f"{path}: {kind} given; expected UTF-8 text; {advice}")
    try:
        text = raw.decode("utf-8-sig" if first == 1 else "utf-8")
    except UnicodeDecodeError as failure:
        line = first + raw.count(b"\n", 0, failure.start)
        raise error(
            f"{path}:{line}: byte 0x{raw[failure.start]:02x} is not UTF-8; expected UTF-8;"
            " convert the file (iconv -t utf-8)"
        ) from None
    if "\0" in text:
        line = first + text.count("\n", 0, text.index("\0"))
        raise error(
            f"{path}:{line}: a NUL byte given; expected UTF-8 text; convert the file if it is UTF-16 (iconv -f utf-16le"
            " -t utf-8), or copy it again if it was cut off"
        )
    return text


def _no_text(path: Path, length: int, error: type[InputError]) -> InputError:
    if length:
        given = "only blank lines"
    else:
        given = "the file is empty"
    return error(
        f"{path}: {given}; expected text; check the path, and whether the file is complete"
    )
