"""Papers: reading, splits and pairs."""

from __future__ import annotations

import json
import tempfile
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from public_data import FOLDER, needs_public_data

from ratchet.data.formats.papers import (
    SPLITS,
    STATEMENTS,
    assign_splits,
    read_papers,
    select_statements,
)
from ratchet.data.pair_batches import PairSampler
from ratchet.errors import DataError


def table(sizes: list[int]) -> pa.Table:
    rows = [
        {"id": f"p{p}#{n}", "text": "x" * (1 + (7 * p + n) % 11), "paper": f"p{p}"}
        for p, size in enumerate(sizes)
        for n in range(size)
    ]
    return pa.Table.from_pylist(rows, STATEMENTS)


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=12).filter(lambda s: max(s) > 1),
    st.integers(0, 99),
    st.data(),
)
def test_an_epoch_pairs_each_statement_once_within_its_paper(
    sizes: list[int], seed: int, data: Any
) -> None:
    rows = table(sizes)
    made = PairSampler(rows, 1, seed=seed)
    papers = rows["paper"].to_pylist()
    for epoch in (0, 1):
        pairs = made.draw_pairs(epoch)
        assert len(pairs) == made.pairs == sum((size + 1) // 2 for size in sizes if size > 1)
        assert all(papers[a] == papers[b] and a != b for a, b in pairs.tolist())
        seen = Counter(pairs.ravel().tolist())
        usable = [row for row, paper in enumerate(papers) if sizes[int(paper[1:])] > 1]
        assert set(seen) == set(usable)
        # An odd paper needs one statement twice, and no more than that.
        assert sum(seen.values()) - len(seen) == sum(size % 2 for size in sizes if size > 1)
        assert max(seen.values()) <= 2
    workers = data.draw(st.integers(1, 5))
    for number in range(made.num_batches):
        whole = made.batch(1, number)
        parts = [made.batch(1, number, rank, workers) for rank in range(workers)]
        found = sorted(
            (a, b) for part in parts for a, b in zip(part.left_N, part.right_N, strict=True)
        )
        assert found == sorted(zip(whole.left_N, whole.right_N, strict=True))
        assert {part.pairs for part in parts} == {len(whole.left_N)}
        assert (
            max(len(part.left_N) for part in parts) - min(len(part.left_N) for part in parts) <= 1
        )


def test_epochs_differ_and_any_worker_makes_the_same() -> None:
    one, other, third = (PairSampler(table([9, 8, 6]), 3, seed=seed) for seed in (1, 1, 2))
    first = one.draw_pairs(0).copy()
    assert not np.array_equal(first, one.draw_pairs(1))
    assert np.array_equal(first, other.draw_pairs(0))
    assert not np.array_equal(first, third.draw_pairs(0))


def test_the_last_batch_is_left_out() -> None:
    assert PairSampler(table([10, 9]), 4).num_batches == 2  # 10 pairs


def test_a_paper_larger_than_a_batch_is_spread_over_many() -> None:
    made = PairSampler(table([200, 6, 6, 6]), 8, seed=3)
    assert made.papers == 4
    steps = [made.batch(0, number) for number in range(made.num_batches)]
    assert sum(len(step.left_N) for step in steps) == 13 * 8  # of 109
    assert max(int((step.paper_N == 0).sum()) for step in steps) <= 8
    assert (
        sum(len(set(step.paper_N.tolist())) > 1 for step in steps) >= 4
    )  # the others are not all in one step


def test_what_cannot_be_paired_is_named() -> None:
    with pytest.raises(DataError, match="no paper has two"):
        PairSampler(table([1, 1, 0]), 2)
    with pytest.raises(DataError, match="batch_size: 16 given, for 2 pairs"):
        PairSampler(table([4]), 16)


@given(st.integers(3, 400), st.floats(0.01, 0.99), st.floats(0.01, 0.99), st.integers(0, 9))
def test_every_split_has_papers_and_the_share_asked_for(
    papers: int, test: float, valid: float, seed: int
) -> None:
    count = np.bincount(assign_splits(np.full(papers, 2), test, valid, seed), minlength=3)
    assert count.sum() == papers
    assert count.min() >= 1
    assert abs(count[2] - test * papers) <= 2
    assert abs(count[1] - valid * (papers - count[2])) <= 2


def split_as_citer(
    rows: list[dict[str, Any]], train_ratio: float = 0.8, seed: int = 42
) -> tuple[set[str], set[str]]:
    """The papers of train and of eval in theorem_contrastive_training.py of CITER: those with two or more statements,
    as they stand, in the order of their shuffled places."""
    usable = [
        row["arxiv_id"] for row in rows if len(row.get("lemmas", []) + row.get("theorems", [])) > 1
    ]
    places = np.arange(len(usable))
    np.random.default_rng(seed).shuffle(places)
    names = [usable[place] for place in places]
    cut = int(len(names) * train_ratio)
    return set(names[:cut]), set(names[cut:])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=3, max_size=120),
    st.sampled_from([42, 7]),
)
def test_the_test_papers_are_those_of_citer(sizes: list[tuple[int, int]], seed: int) -> None:
    """Also where texts are repeated or blank: the statements count as they stand."""
    rows = [
        {
            "arxiv_id": f"p{n}",
            "lemmas": ["same"] * lemmas,
            "theorems": [f"{n} {k}" for k in range(theorems)],
        }
        for n, (lemmas, theorems) in enumerate(sizes)
    ]
    train, tested = split_as_citer(rows, 0.8, seed)
    given_P = np.array([lemmas + theorems for lemmas, theorems in sizes])
    split = assign_splits(given_P, 0.2, 0.02, seed)
    names = np.array([row["arxiv_id"] for row in rows])
    if len(train) + len(tested) >= 3:
        assert set(names[(split == 2) & (given_P >= 2)].tolist()) == tested
        assert set(names[(split < 2) & (given_P >= 2)].tolist()) == train
        assert (split[given_P >= 2] == 1).sum() == 1
    single = (given_P < 2).sum()
    assert (split[given_P < 2] == 2).sum() == single - max(int(single * 0.8), min(single, 2)), (
        "candidates"
    )


def test_the_test_papers_of_a_file_are_those_of_citer(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    rows = []
    for n in range(500):
        lemmas = [f"lemma {n} {k}" for k in range(random.integers(0, 4))]
        theorems = [f"theorem {n} {k}" for k in range(random.integers(0, 3))]
        lemmas += (
            [" "] * (n % 17 == 0) + lemmas[:1] * (n % 5 == 0) + ["We have a = b."] * (n % 7 == 0)
        )
        rows.append({"arxiv_id": f"p{n}", "lemmas": lemmas, "theorems": theorems})
    found = select_statements((write(tmp_path / "papers.jsonl", rows), None, None), 0.2, 0.02, 42)
    train, tested = split_as_citer(rows)
    usable = {row["arxiv_id"] for row in rows if len(row["lemmas"] + row["theorems"]) > 1}
    for names, ours in ((tested, {"test"}), (train, {"train", "valid"})):
        assert {
            f"p{n}" for n, split in enumerate(found.split_P) if SPLITS[split] in ours
        } & usable == names
    assert len(tested) > 50


def test_given_files_are_their_splits(tmp_path: Path) -> None:
    """Files of one name, without ids; a text of two files is kept in test."""
    parts = {
        name: write(
            tmp_path / name / "papers.jsonl",
            [{"lemmas": [f"{name} {n} {k}" for k in range(3)]} for n in range(4)],
        )
        for name in ("data", "valid", "test")
    }
    papers = list(read_papers(parts["data"], None, parts["test"]))
    assert [paper.split for paper in papers] == [0] * 4 + [2] * 4
    assert [papers[0].id, papers[4].id] == ["papers.jsonl:1", "test/papers.jsonl:1"]
    found = select_statements((parts["data"], parts["valid"], parts["test"]), 0.2, 0.02, 42)
    assert found.split_P.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    found = select_statements((parts["data"], None, parts["test"]), 0.2, 0.02, 42)
    assert np.bincount(found.split_P[:4]).tolist() == [3, 1]
    assert found.split_P[4:].tolist() == [2] * 4
    found = select_statements((parts["data"], parts["valid"], None), 0.5, 0.02, 42)
    assert np.bincount(found.split_P).tolist() == [2, 4, 2]
    same = write(tmp_path / "same.jsonl", [{"lemmas": ["data 0 0", "x", "y"]}])
    found = select_statements((parts["data"], parts["valid"], same), 0.2, 0.02, 42)
    assert found.count_P.tolist() == [2, *[3] * 8]
    alone = write(tmp_path / "alone.jsonl", [{"lemmas": ["data 0 0"]}])
    with pytest.raises(
        DataError, match=r"alone\.jsonl: 8 of 9 papers have .* none of them is in test"
    ):
        select_statements((parts["data"], parts["valid"], alone), 0.2, 0.02, 42)


def write(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    )
    return path


@pytest.mark.slow
def test_statements_are_held_as_numbers(tmp_path: Path) -> None:
    rows = [
        {"id": str(p), "theorems": [f"theorem {p} {n}" for n in range(1000)]} for p in range(50)
    ]
    (tmp_path / "papers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tracemalloc.start()
    select_statements((tmp_path / "papers.jsonl", None, None), 0.2, 0.1, seed=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 80 * 50_000, peak


def test_blank_and_repeated_statements(tmp_path: Path) -> None:
    rows = [
        {"arxiv_id": "a", "lemmas": ["one", " ", "two "], "theorems": ["one", "three"]},
        {"theorems": []},
    ]
    one, other = read_papers(write(tmp_path / "papers.jsonl", rows))
    assert one.statements == ("one", "two", "three")
    assert (one.id, one.empty, one.repeated) == ("a", 1, 1)
    assert (other.id, other.statements) == ("papers.jsonl:2", ())


def test_repeated_statements_can_stay(tmp_path: Path) -> None:
    rows = [
        {"arxiv_id": str(n), "lemmas": ["same", f"own {n}"], "theorems": ["same", f"new {n}", " "]}
        for n in range(9)
    ]
    file = write(tmp_path / "papers.jsonl", rows)
    found = select_statements((file, None, None), 0.2, 0, seed=1, deduplicate=False)
    assert (found.empty, found.repeated, found.dropped) == (9, 0, 0)
    assert found.count_P.tolist() == [4] * 9
    assert Counter(found.split_P.tolist()) == {0: 7, 2: 2}
    first, *_ = read_papers(file, deduplicate=False)
    assert first.statements == ("same", "own 0", "same", "new 0")
    once = select_statements((file, None, None), 0.2, 0, seed=1)
    assert (once.repeated, once.dropped) == (9, 8)


def test_papers_are_read_from_the_start_up_to_a_limit(tmp_path: Path) -> None:
    for part in "ab":
        rows = [{"arxiv_id": f"{part}{n}", "lemmas": [f"{part} {n}"]} for n in range(3)]
        write(tmp_path / f"{part}.jsonl", rows)
    valid = write(tmp_path / "valid", [{"arxiv_id": f"v{n}", "lemmas": []} for n in range(9)])
    names = [paper.id for paper in read_papers(tmp_path, valid, max_papers=4)]
    assert names == ["a0", "a1", "a2", "b0", *(f"v{n}" for n in range(9))]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", r"papers.jsonl:2: not JSON"),
        ({"title": "x"}, r"papers.jsonl:2: no lemmas or theorems"),
        ({"lemmas": "x"}, r"papers.jsonl:2: lemmas is not a list of strings"),
        ({"lemmas": ""}, r"papers.jsonl:2: lemmas is not a list of strings"),
        ({"theorems": ["x", 1]}, r"papers.jsonl:2: theorems is not a list of strings"),
        ({"arxiv_id": "a", "lemmas": []}, r"papers.jsonl:2: paper 'a' is also .*papers.jsonl:1"),
        ([], r"papers.jsonl:2: list given"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, row: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        list(
            read_papers(
                write(tmp_path / "papers.jsonl", [{"arxiv_id": "a", "lemmas": ["one"]}, row])
            )
        )


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no \.jsonl file"):
        list(read_papers(tmp_path))


@needs_public_data
def test_the_stacks_project_is_read() -> None:
    papers = list(read_papers(FOLDER / "stacks/grouped_by_section.jsonl"))
    assert len(papers) == 2785
    assert sum(len(paper.statements) for paper in papers) == 13131


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.lists(
        st.lists(st.sampled_from("abcdefghijkl"), max_size=4, unique=True), min_size=12, max_size=30
    ),
    st.integers(0, 5),
)
def test_a_text_of_several_papers_is_kept_in_one(papers: list[list[str]], seed: int) -> None:
    """In test if one of them is there, else in valid. So no negative has the text of its query, and no test text is
    trained on."""
    own = [[f"{n} {k}" for k in range(2)] + texts for n, texts in enumerate(papers)]
    with tempfile.TemporaryDirectory() as folder:
        rows = [{"arxiv_id": str(n), "lemmas": texts} for n, texts in enumerate(own)]
        found = select_statements(
            (write(Path(folder) / "papers.jsonl", rows), None, None), 0.3, 0.3, seed
        )
    kept: dict[str, list[tuple[int, int]]] = {}
    given_in: dict[str, set[int]] = {}
    for n, texts in enumerate(own):
        flags = found.kept_S[found.ends_P[n] : found.ends_P[n + 1]]
        assert len(flags) == len(texts)
        assert found.count_P[n] == flags.sum()
        for text, flag in zip(texts, flags, strict=True):
            given_in.setdefault(text, set()).add(int(found.split_P[n]))
            if flag:
                kept.setdefault(text, []).append((n, int(found.split_P[n])))
    for text, splits in given_in.items():
        assert [split for _, split in kept[text]] == [max(splits)], SPLITS
