"""Statements grouped by paper: JSONL with one paper per line, `lemmas` and `theorems` each a list of strings.

Files are streamed, so that memory does not grow with their size.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ratchet.data.formats.text_files import read_json_objects, show
from ratchet.errors import DataError

KINDS = ("lemmas", "theorems")

STATEMENTS = pa.schema(dict.fromkeys(("id", "text", "paper"), pa.string()))
"""Statements; those of a paper are consecutive. `id` is `paper#number`."""

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Paper:
    """The statements of one paper."""

    id: str
    statements: tuple[str, ...]
    """The texts, in the order of the file."""
    empty: int
    """Number of blank statements."""
    repeated: int
    """Number of repeated statements that are left out."""
    split: int
    """Index into SPLITS of the path that the paper was read from."""


def find_files(path: Path) -> list[Path]:
    """Find the .jsonl files of a folder, sorted by name, or return the one file. Raises DataError if there is none."""
    found = sorted(path.glob("[!.]*.jsonl")) if path.is_dir() else [path]
    if not found:
        raise DataError(
            f"{path}: no .jsonl file; expected papers, one per line, with lemmas and theorems; check the path"
        )
    return found


def read_papers(
    *paths: Path | None, deduplicate: bool = True, max_papers: int | None = None
) -> Iterator[Paper]:
    """Yield the papers of the paths (in the order of SPLITS) one at a time, of the first path at most `max_papers`.
    deduplicate: leave out statements that their paper has already. Raises DataError naming file and line."""
    seen: dict[str, str] = {}
    for split, path in enumerate(paths):
        if path is not None:
            limit = max_papers if split == 0 else None
            rows = chain.from_iterable(map(read_json_objects, find_files(path)))
            for where, row in islice(rows, limit):
                yield _parse_paper(row, where, split, seen, deduplicate)


def _parse_paper(
    row: dict[str, Any], where: str, split: int, seen: dict[str, str], deduplicate: bool
) -> Paper:
    if row.keys().isdisjoint(KINDS):
        raise DataError(
            f"{where}: no {' or '.join(KINDS)}; expected an object with lists of statements; add one"
        )
    texts = []
    for kind in KINDS:
        own = row.get(kind)
        if own is None:
            own = []
        if not isinstance(own, list) or not all(isinstance(text, str) for text in own):
            raise DataError(
                f"{where}: {kind} is not a list of strings; expected one string per statement; correct it"
            )
        texts += own
    unnamed = (
        f"{SPLITS[split]}/" * (split > 0) + where.rsplit("/", 1)[-1]
    )  # files of two splits may have one name
    name = str(row.get("arxiv_id") or row.get("id") or unnamed)
    if name in seen:
        raise DataError(
            f"{where}: paper {show(name)} is also {seen[name]}; expected each paper once; put the two together, or"
            " remove one"
        )
    seen[name] = where
    kept = [text.strip() for text in texts if text.strip()]
    statements = tuple(dict.fromkeys(kept) if deduplicate else kept)
    empty = len(texts) - len(kept)
    repeated = len(kept) - len(statements)
    return Paper(name, statements, empty, repeated, split)


@dataclass(frozen=True)
class Selection:
    """The statements of P papers. S: all statements; those of a paper are consecutive."""

    split_P: np.ndarray
    """int8, an index into SPLITS."""
    kept_S: np.ndarray
    """bool. If statements are deduplicated, only one of those with the same text in several papers is kept: the others
    would be negatives of it, or test statements that are also in training."""
    ends_P: np.ndarray
    """int64 [P + 1]: the statements of a paper are ends_P[p] to ends_P[p + 1]."""
    count_P: np.ndarray
    """int64: number of kept statements."""
    empty: int
    """Number of blank statements."""
    repeated: int
    """Number of statements that are left out since their paper has them already."""

    @property
    def dropped(self) -> int:
        """Number of statements that are not kept."""
        return len(self.kept_S) - int(self.kept_S.sum())

    def count_kept(self, split: str) -> np.ndarray:
        """Return the number of kept statements of each paper of a split, int64."""
        return self.count_P[self.split_P == SPLITS.index(split)]

    def describe(self) -> str:
        """Return a note on the statements that are not kept, or an empty string."""
        if self.dropped:
            return f"{self.dropped:,} statements are left out: their text stands in another paper"
        return ""


def select_statements(
    paths: Sequence[Path | None],
    test_fraction: float,
    validation_fraction: float,
    seed: int,
    *,
    deduplicate: bool = True,
    max_papers: int | None = None,
) -> Selection:
    """Read all papers, and split those of the first path as `assign_splits` does. The papers of the second and third
    path, where given, are `valid` and `test`.

    deduplicate: a text of several papers is kept in `test` if one of them is there, else in `valid`, else in the first
    paper. max_papers: see `read_papers`. Memory holds 8 bytes per statement. Raises DataError, naming the file, for a
    bad row and for a split without a pair."""
    papers = []
    hashes = bytearray()
    empty = repeated = 0
    for paper in read_papers(*paths, deduplicate=deduplicate, max_papers=max_papers):
        count = len(paper.statements)
        empty += paper.empty
        repeated += paper.repeated
        papers.append((count, count + paper.empty + paper.repeated, paper.split))
        hashes += b"".join(
            hashlib.blake2b(text.encode(), digest_size=8).digest() for text in paper.statements
        )
    distinct_P, given_P, place_P = np.array(papers, np.int64).reshape(-1, 3).T
    split_P = place_P.astype(np.int8)
    hash_S = np.frombuffer(hashes, np.uint64)
    if paths[1] is not None:
        validation_fraction = 0
    if paths[2] is not None:
        test_fraction = 0
    divided_P = split_P == 0
    split_P[divided_P] = assign_splits(given_P[divided_P], test_fraction, validation_fraction, seed)
    split_S = np.repeat(split_P, distinct_P)
    kept_S = np.ones(len(hash_S), bool)
    if deduplicate:
        order_S = np.lexsort((-split_S, hash_S))  # stable: the first paper of a split comes first
        _, first = np.unique(hash_S[order_S], return_index=True)
        kept_S[:] = False
        kept_S[order_S[first]] = True
    paper_S = np.repeat(np.arange(len(split_P)), distinct_P)
    count_P = np.bincount(paper_S[kept_S], minlength=len(split_P))
    _check_pairs(count_P, split_P, paths, validation_fraction)
    ends_P = np.r_[0, np.cumsum(distinct_P)]
    return Selection(split_P, kept_S, ends_P, count_P, empty, repeated)


def assign_splits(
    given_P: np.ndarray, test_fraction: float, validation_fraction: float, seed: int
) -> np.ndarray:
    """Assign a split to each paper, as an index into SPLITS, int8 [P]. given_P: statements, with blank and repeats.

    The papers with two or more statements are shuffled by numpy's generator of `seed`. All but the first
    int((1 - test_fraction) * papers) are for test, as in `theorem_contrastive_training.py` of
    https://github.com/ajoudaki/CITER (seed 42, fraction 0.2). `validation_fraction` of the rest, the last ones, are for
    validation. Papers with one statement, which is a document without a query, are split likewise among themselves. A
    fraction of 0 gives no papers; otherwise a split gets one or more, if three have two statements."""
    others = (validation_fraction > 0) + (test_fraction > 0)
    split = np.zeros(len(given_P), np.int8)
    for own_P, key in ((given_P >= 2, seed), (given_P < 2, [seed, 3])):
        order = np.random.default_rng(key).permutation(np.flatnonzero(own_P))
        rest = int((1 - test_fraction) * len(order))
        rest = max(rest, min(len(order), others))
        valid = 0
        if validation_fraction and rest:
            valid = min(rest - 1, max(1, round(validation_fraction * rest)))
        split[order[rest - valid : rest]] = SPLITS.index("valid")
        split[order[rest:]] = SPLITS.index("test")
    return split


def _check_pairs(
    count_P: np.ndarray,
    split_P: np.ndarray,
    paths: Sequence[Path | None],
    validation_fraction: float,
) -> None:
    pairs = int((count_P >= 2).sum())
    for number, name in enumerate(SPLITS):
        if name == "valid" and paths[number] is None and not validation_fraction:
            continue
        if not np.any(count_P[split_P == number] >= 2):
            raise DataError(
                f"{paths[number] or paths[0]}: {pairs} of {len(count_P)} papers have two or more statements that no"
                f" other paper has, and none of them is in {name}; expected one in each split, since statements of a"
                " paper are matched with each other; give more papers, or set prepare_papers.seed, .test_fraction or"
                " .validation_fraction"
            )


def number_papers(statements: pa.Table) -> np.ndarray:
    """Number the paper of each statement, int64 [S], from 0."""
    paper_S = statements["paper"].combine_chunks().dictionary_encode().indices
    return paper_S.to_numpy(zero_copy_only=False).astype(np.int64)


def other_statements(paper_S: np.ndarray, row_Q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the other statements of the same paper for each of the rows Q.

    paper_S: the result of `number_papers`. Returns (offsets, int64 [Q + 1]; ascending rows, flat, int64)."""
    first_Q = np.searchsorted(paper_S, paper_S[row_Q], side="left")
    count_Q = np.searchsorted(paper_S, paper_S[row_Q], side="right") - first_Q - 1
    ends = np.r_[0, np.cumsum(count_Q)].astype(np.int64)
    place_R = np.arange(ends[-1]) - np.repeat(ends[:-1], count_Q)
    row_R = np.repeat(first_Q, count_Q) + place_R
    row_R += row_R >= np.repeat(row_Q, count_Q)  # skip the row itself
    return ends, row_R
