"""Names of splits in the names of files and folders, and in columns, as the Hugging Face hub has them."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ratchet.errors import DataError

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "valid", "val", "validation"), "valid"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
"""Name in the data -> split, as the library `datasets` reads the names of files."""


def find_word(path: Path) -> str:
    """Return the one word of `SPLITS` in the name of a file: `test-00000-of-00001-a09b74b3.parquet`, `nq-test.parquet`.
    Empty: it has none, or several."""
    words = SPLITS.keys() & set(re.split(r"[-_.]", path.stem.lower()))
    if len(words) == 1:
        return words.pop()
    return ""


def find_split(file: Path, root: Path) -> str:
    """Return the split of a file by its name, or else by the name of the nearest folder below `root`. Empty: none."""
    relative = file.relative_to(root)
    for path in (relative, *relative.parents):
        word = find_word(path)
        if word:
            return SPLITS[word]
    return ""


def find_splits(files: Sequence[Path], root: Path) -> dict[Path, str]:
    """Return the split of each file of a folder. Empty for all if no name tells one, and if all are in train, which is
    divided. Raises DataError if the names of some files tell a split, and others do not."""
    found = {file: find_split(file, root) for file in files}
    splits = set(found.values())
    if splits <= {"train"}:
        return dict.fromkeys(files, "")
    if "" in splits and len(splits) > 1:
        unnamed = next(file for file in files if not found[file])
        raise DataError(
            f"{unnamed}: its name tells no split, but those of others do; expected one in all names or in none; rename"
            " it, or read one split, such as ?split=train behind the path"
        )
    return found


def refuse_missing_shards(files: Sequence[Path]) -> None:
    """Raise DataError if one of the files `NAME-00000-of-00002`, `NAME-00001-of-00002` is not there."""
    counts: Counter[tuple[Path, str, int]] = Counter()
    for file in files:
        shard = re.fullmatch(r"(.*)-\d+-of-(\d+)(-[0-9a-f]+)?", file.stem)
        if shard:
            counts[file.parent, shard[1], int(shard[2])] += 1
    for (folder, name, total), count in counts.items():
        if count < total:
            raise DataError(
                f"{folder}: {count} of the {total} files {name}-*-of-{total:05d} given; expected all; copy the others"
            )


def matches_split(file: Path, root: Path, split: str) -> bool:
    """Return whether the name of a file, or of a folder below `root`, says that it is in a split (of any name)."""
    by_name = re.compile(rf"(.*-)?{re.escape(split)}(-\d+-of-\d+)?")
    known = SPLITS.get(split.lower(), split)
    return bool(by_name.fullmatch(file.stem)) or find_split(file, root) == known
