"""Remarks: numbers and words that a person adds to a run, or to a row of its table, by `ratchet note`.

They are lines of `remarks.jsonl` in the folder of the run, and part of no fingerprint. A later number of the same name,
and later words for the same row, replace earlier ones.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ratchet.errors import InputError
from ratchet.orchestrator.atomic_file import append_json, read_json_lines
from ratchet.orchestrator.run_log import RunLog

FILE = "remarks.jsonl"


@dataclass(frozen=True)
class Remark:
    """What a person added to one row."""

    numbers: dict[str, float]
    """Name, such as `lb` -> number."""
    words: str = ""

    def __str__(self) -> str:
        parts = [f"{name} {number:.10g}" for name, number in self.numbers.items()]
        return ", ".join([*parts, self.words] if self.words else parts)


def parse_remark(texts: Sequence[str]) -> Remark:
    """Parse `lb=0.505` and words. Raises InputError for nothing, and for a name without a finite number."""
    numbers = {}
    words = []
    for text in texts:
        given = re.fullmatch(r"(\w[\w@./-]*)=(.*)", text, re.DOTALL)
        if given is None:
            words.append(text)
            continue
        try:
            numbers[given[1]] = float(given[2])
        except ValueError:
            numbers[given[1]] = math.nan
        if not math.isfinite(numbers[given[1]]):
            raise InputError(
                f"note {text}: no finite number; expected NAME=NUMBER, or words; correct it, or leave '=' out of the"
                " words"
            )
    if not numbers and not "".join(words).strip():
        raise InputError(
            'note: nothing given; expected numbers or words, such as lb=0.505 "epoch 3"'
        )
    return Remark(numbers, " ".join(words))


def add_remark(run_log: RunLog, row: str, remark: Remark) -> None:
    """Append a remark on a row of the run's table; an empty row is the run itself."""
    line = {"row": row, "numbers": remark.numbers, "words": remark.words}
    append_json(run_log.folder / FILE, line, durable=True)


def read_remarks(run_log: RunLog) -> dict[str, Remark]:
    """Return row -> what was added to it."""
    found: dict[str, Remark] = {}
    for line in read_json_lines(run_log.folder / FILE):
        if not {"row", "numbers", "words"} <= line.keys():
            continue  # not a remark
        before = found.get(line["row"], Remark({}))
        found[line["row"]] = replace(
            before,
            numbers={**before.numbers, **line["numbers"]},
            words=line["words"] or before.words,
        )
    return found
