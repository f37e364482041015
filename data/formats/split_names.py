"""Names of splits in the names of files and folders, and in columns, as the Hugging Face hub has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

SPLITS = {"train": "train", "dev": "valid", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}
"""Name in the data -> split."""


def find_word(path: Path) -> str:
    """Return the one word of `SPLITS` in the name of a file: `test-00000-of-00001-a09b74b3.parquet`, `nq-test.parquet`.
    Empty: it has none, or several."""
    words = {word for word in re.split(r"[-_.]", path.stem.lower()) if word in SPLITS}
    return words.pop() if len(words) == 1 else ""


def find_splits(files: Sequence[Path], root: Path) -> dict[Path, str]:
    """Return the split of each file of a folder by its name, or else by the name of the nearest folder below `root`.
    Empty for files without one, and for all files if they would all be in one split."""
    found = {}
    for file in files:
        names = [file, *(folder for folder in file.parents if folder.is_relative_to(root) and folder != root)]
        words = [word for word in map(find_word, names) if word]
        found[file] = SPLITS[words[0]] if words else ""
    if len(set(found.values())) < 2:
        return dict.fromkeys(files, "")
    return found
