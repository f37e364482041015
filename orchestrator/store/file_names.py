"""Checks that file names in artifacts work on Linux, macOS, Windows and in buckets, since a store may be moved."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from pathlib import PurePosixPath

from ratchet.errors import StoreError

LONGEST = 255
"""Maximum length of a file or folder name, in UTF-8 bytes, on common file systems."""

FORBIDDEN = set('<>:"|?*')
"""Characters that Windows forbids, beside those of `check_safe`."""

RESERVED = {"CON", "PRN", "AUX", "NUL", *(f"{device}{n}" for device in ("COM", "LPT") for n in "123456789¹²³")}
"""Names of devices on Windows, which are reserved with any suffix."""


def check_safe(name: str, reserved: str) -> None:
    """Raise StoreError if a relative POSIX path leaves its folder, is `reserved`, or has control characters."""
    parts = PurePosixPath(name).parts
    has_control = any(unicodedata.category(character) == "Cc" for character in name)
    unsafe = name.startswith("/") or ".." in parts or "\\" in name or has_control
    if unsafe or name in ("", ".", reserved):
        raise StoreError(
            f"artifact file {name!r}: a path that leaves its folder or is reserved; expected a plain relative path"
        )


def check_portable(names: Iterable[str]) -> None:
    """Raise StoreError, naming the file, if these names cannot exist together on all systems (see the module)."""
    seen: dict[str, str] = {}
    for name in names:
        path = PurePosixPath(name)
        for part in path.parts:
            if (reason := _find_fault(part)) is not None:
                raise StoreError(
                    f"artifact file {name!r}: {reason}; expected a name that Linux, macOS and Windows can hold; rename"
                    " it in the job"
                )
        for prefix in (path, *path.parents):
            other = seen.setdefault(unicodedata.normalize("NFC", str(prefix)).casefold(), str(prefix))
            if other != str(prefix):
                raise StoreError(
                    f"artifact file {name!r}: {str(prefix)!r} and {other!r} are one name where case or Unicode forms"
                    " are ignored; expected names that differ in more; rename one in the job"
                )


def _find_fault(part: str) -> str | None:
    try:
        length = len(part.encode())
    except UnicodeEncodeError:
        return "a name that is not valid UTF-8"
    if length > LONGEST:
        return f"a name of {length} bytes; at most {LONGEST} are possible"
    if found := sorted(FORBIDDEN & set(part)):
        return f"a name with {found[0]}"
    if part.endswith((".", " ")):
        return "a name that ends with a dot or a space"
    if part.split(".")[0].rstrip(" ").upper() in RESERVED:
        return f"{part.split('.')[0]} is the name of a device on Windows"
    return None
