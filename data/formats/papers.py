"""Statements grouped by paper: JSONL with one paper per line, `lemmas` and `theorems` each a list of strings.

Files are streamed, so that memory does not grow with their size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ratchet.data.formats.text_files import read_json_lines, show
from ratchet.errors import DataError

KINDS = ("lemmas", "theorems")

STATEMENTS = pa.schema([("id", pa.string()), ("text", pa.string()), ("paper", pa.string())])
"""Statements; those of a paper are consecutive. `id` is `paper#number`."""

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Paper:
    """The statements of one paper."""

    id: str
    statements: tuple[str, ...]
    """The distinct texts, in the order of the file."""
    empty: int
    """Number of blank statements."""
    repeated: int
    """Number of repeated statements."""


def find_files(path: Path) -> list[Path]:
    """Find the .jsonl files of a folder, sorted by name, or return the one file. Raises DataError if there is none."""
    found = sorted(path.glob("*.jsonl")) if path.is_dir() else [path] if path.is_file() else []
    if not found:
        raise DataError(
            f"{path}: no .jsonl file; expected papers, one per line, with lemmas and theorems; check the path"
        )
    return found


def read_papers(path: Path) -> Iterator[Paper]:
    """Yield the papers one at a time. Raises DataError naming file and line."""
    seen: dict[str, str] = {}
    for file in find_files(path):
        for where, row in read_json_lines(file):
            yield _parse_paper(row, where, seen)


def _parse_paper(row: Any, where: str, seen: dict[str, str]) -> Paper:
    if not isinstance(row, dict) or not any(kind in row for kind in KINDS):
        raise DataError(f"{where}: no {' or '.join(KINDS)}; expected an object with lists of statements; add one")
    texts: list[str] = []
    for kind in KINDS:
        own = [] if row.get(kind) is None else row[kind]
        if not isinstance(own, list) or not all(isinstance(text, str) for text in own):
            raise DataError(f"{where}: {kind} is not a list of strings; expected one string per statement; correct it")
        texts += own
    given = row.get("arxiv_id") or row.get("id") or where.rsplit("/", 1)[-1]
    if not isinstance(given, str | int | float) or isinstance(given, bool):
        raise DataError(f"{where}: the id is {type(given).__name__}; expected a string or a number; correct it")
    name = str(given)
    if name in seen:
        raise DataError(
            f"{where}: paper {show(name)} is also {seen[name]}; expected each paper once; put the two together"
        )
    seen[name] = where
    kept = [text.strip() for text in texts if text.strip()]
    different = tuple(dict.fromkeys(kept))
    return Paper(name, different, len(texts) - len(kept), len(kept) - len(different))


@dataclass(frozen=True)
class Selection:
    """Which statements of P papers are used. S statements in all, those of a paper one after the other."""

    split_P: np.ndarray
    """int8, an index into SPLITS; -1 for papers that are not used."""
    kept_S: np.ndarray
    """bool. Of statements with the same text in several papers only one is kept, since the others would be negatives of
    it, or test statements that were trained on."""
    ends_P: np.ndarray
    """int64 [P + 1]: the statements of a paper are ends_P[p] to ends_P[p + 1]."""
    count_P: np.ndarray
    """int64: kept statements."""

    @property
    def dropped(self) -> int:
        """Number of statements of used papers that are not kept."""
        return int(np.diff(self.ends_P)[self.split_P >= 0].sum() - self.count_P[self.split_P >= 0].sum())

    def describe(self) -> str:
        """Return what a reader of the numbers must know, or an empty string."""
        return f"{self.dropped:,} statements are left out: their text stands in another paper" if self.dropped else ""


def select_statements(
    path: Path, max_papers: int | None, test_fraction: float, validation_fraction: float, seed: int
) -> Selection:
    """Read all papers, draw at most `max_papers` of them, and assign a split to each as `assign_splits` does.

    A text of several papers is kept in `test` if one of them is there, else in `valid`, else in the first paper. Holds
    8 bytes per statement. Raises DataError, naming the file, for a bad row and for a split without a pair.
    """
    counts, hashes = [], []
    for paper in read_papers(path):
        counts.append(len(paper.statements))
        hashes += [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in paper.statements]
    given_P, hash_S = np.array(counts, np.int64), np.frombuffer(b"".join(hashes), np.uint64)
    chosen = np.arange(len(given_P))
    if max_papers is not None and max_papers < len(given_P):
        chosen = np.sort(np.random.default_rng([seed, 1]).choice(len(given_P), max_papers, replace=False))
    split_P = np.full(len(given_P), -1, np.int8)
    split_P[chosen] = assign_splits(len(chosen), test_fraction, validation_fraction, seed, str(path))
    split_S = np.repeat(split_P, given_P)
    order_S = np.lexsort((-split_S, hash_S))  # stable: the first paper of a split comes first
    kept_S = np.zeros(len(hash_S), bool)
    kept_S[order_S[np.flatnonzero(np.diff(hash_S[order_S], prepend=~hash_S[order_S[:1]]))]] = True
    count_P = np.bincount(np.repeat(np.arange(len(given_P)), given_P)[kept_S], minlength=len(given_P))
    _check_pairs(count_P, split_P, str(path))
    return Selection(split_P, kept_S, np.r_[0, np.cumsum(given_P)], count_P)


def assign_splits(
    papers: int, test_fraction: float, validation_fraction: float, seed: int, source: str = "papers"
) -> np.ndarray:
    """Assign a split to each paper, as an index into SPLITS, int8 [P].

    `test_fraction` of all papers are for test, and `validation_fraction` of the others for validation; at least one
    paper in each. Raises DataError, naming `source`, for fewer than three papers.
    """
    if papers < len(SPLITS):
        raise DataError(
            f"{source}: {papers} papers; expected at least three, one for each of {', '.join(SPLITS)}; give more"
            " papers, one per line"
        )
    test = min(papers - 2, max(1, round(test_fraction * papers)))
    valid = min(papers - test - 1, max(1, round(validation_fraction * (papers - test))))
    split = np.zeros(papers, np.int8)
    order = np.random.default_rng(seed).permutation(papers)
    split[order[:test]] = SPLITS.index("test")
    split[order[test : test + valid]] = SPLITS.index("valid")
    return split


def _check_pairs(count_P: np.ndarray, split_P: np.ndarray, source: str) -> None:
    used, pairs = int((split_P >= 0).sum()), int((count_P[split_P >= 0] >= 2).sum())
    for number, name in enumerate(SPLITS):
        if not np.any(count_P[split_P == number] >= 2):
            raise DataError(
                f"{source}: {pairs} of {used} papers have two or more statements that no other paper has, and none of"
                f" them is in {name}; expected one in each split, since statements of a paper are matched with each"
                " other; give more papers, or set prepare_papers.seed, .test_fraction or .validation_fraction"
            )


def number_papers(statements: pa.Table) -> np.ndarray:
    """Number the paper of each statement, int64 [S], ascending from 0. Raises DataError if a paper's are apart."""
    paper_S = statements["paper"].combine_chunks().dictionary_encode().indices
    found = paper_S.to_numpy(zero_copy_only=False).astype(np.int64)
    if np.any(np.diff(found) < 0):
        raise DataError(
            "statements: a paper's statements are apart; expected them one after the other; run `prepare_papers` again"
        )
    return found


def other_statements(paper_S: np.ndarray, row_Q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the other statements of the same paper for each of the rows Q.

    paper_S: the result of `number_papers`. Returns (offsets, int64 [Q + 1]; ascending rows, flat, int64).
    """
    first_Q = np.searchsorted(paper_S, paper_S[row_Q], side="left")
    count_Q = np.searchsorted(paper_S, paper_S[row_Q], side="right") - first_Q - 1
    ends = np.r_[0, np.cumsum(count_Q)].astype(np.int64)
    rows = np.repeat(first_Q, count_Q) + np.arange(ends[-1]) - np.repeat(ends[:-1], count_Q)
    return ends, rows + (rows >= np.repeat(row_Q, count_Q))  # skip the row itself
