"""Columns that are read, named or refused, and splits that the data assign."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.data.formats.detection import load_retrieval
from ratchet.data.formats.split_names import find_splits
from ratchet.errors import DataError, InputError
from ratchet.jobs.retrieval.prepare import Config, Inputs, check

ROWS = [{"query": f"q {n}", "positive": f"p {n}"} for n in range(6)]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def count_splits(path: Path, options: str = "") -> Counter[str | None]:
    return Counter(query.split for query in load_retrieval(path, options).queries)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_columns_that_are_not_read_are_named(tmp_path: Path, suffix: str) -> None:
    rows = [{**row, "url": "u", "comment": "c"} for row in ROWS]
    path = write_rows(tmp_path / f"x{suffix}", rows)
    assert load_retrieval(path).unread == ["comment", "url"]
    assert load_retrieval(path, "ignore=url").unread == ["comment"]
    assert check(Config(), Inputs((path,)), {}).note.startswith("columns not read: comment, url; ")


def test_unknown_flag_embedding_fields(tmp_path: Path) -> None:
    rows = [
        {
            "query": "q",
            "pos": ["p"],
            "neg": ["n"],
            "prompt": None,
            "neg_scores": None,
            "source": "s",
        }
    ]
    found = load_retrieval(write_rows(tmp_path / "x.jsonl", rows))
    assert found.unread == ["source"]
    assert found.queries[0].task == ""


@pytest.mark.parametrize("name", ["label", "labels"])
@pytest.mark.parametrize("value", [0.3, None, 2, "maybe"])
def test_a_label_that_says_neither_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    rows = [{**row, name: 1} for row in ROWS]
    path = write_rows(tmp_path / "x.jsonl", rows)
    assert len(load_retrieval(path).queries) == 6
    rows[3][name] = value
    write_rows(path, rows)
    with pytest.raises(DataError, match=rf"x\.jsonl:4: {name} .* given; expected 1 for a pair"):
        load_retrieval(path)
    assert len(load_retrieval(path, f"ignore={name}").queries) == 6


@pytest.mark.parametrize("value", [0, "0", False, "contradiction"])
def test_a_label_that_says_no_makes_a_negative(tmp_path: Path, value: Any) -> None:
    rows = [{**row, "label": 1} for row in ROWS]
    rows.append({"query": "q 0", "positive": "wrong", "label": value})
    rows.append({"query": "alone", "positive": "wrong too", "label": value})
    rows.append({"query": "alone", "positive": "nothing", "label": "neutral"})
    data = load_retrieval(write_rows(tmp_path / "x.jsonl", rows))
    texts = {document.id: document.text for document in data.corpus}
    negatives = {query.text: [texts[one] for one in query.negatives] for query in data.queries}
    assert negatives == {**{f"q {n}": [] for n in range(6)}, "q 0": ["wrong"]}
    assert "wrong too" in texts.values()
    assert "nothing" not in texts.values()
    assert data.notes == {
        "rows read with label as label of the pair": 9,
        "rows read as negatives by their label": 2,
        "rows read as neutral by their label, left out": 1,
        "rows that repeat a query, put together": 1,
        "queries with negatives alone, left out": 1,
    }


def test_an_id_of_a_labelled_row_is_not_that_of_its_query(tmp_path: Path) -> None:
    rows = [{"id": n, "query": "q", "positive": f"p {n}", "label": int(n > 1)} for n in range(4)]
    data = load_retrieval(write_rows(tmp_path / "x.jsonl", rows))
    assert [(len(one.positives), len(one.negatives)) for one in data.queries] == [(2, 2)]
    assert data.unread == ["id"]


@pytest.mark.parametrize("name", ["score", "label"])
def test_ratings_are_labels_from_a_number_on(tmp_path: Path, name: str) -> None:
    rows = [{**row, name: number} for row, number in zip(ROWS, [5, 4.5, 4, 3.9, 1, 0], strict=True)]
    path = write_rows(tmp_path / "x.jsonl", rows)
    data = load_retrieval(path, "min_score=4")
    assert [one.text for one in data.queries] == ["q 0", "q 1", "q 2"]
    assert len(data.corpus) == 6
    write_rows(path, [{**rows[0], name: "high"}])
    with pytest.raises(DataError, match=rf"{name} 'high' given, with \?min_score=4; expected numb"):
        load_retrieval(path, "min_score=4")


@pytest.mark.parametrize("name", ["score", "scores", "similarity", "weight"])
def test_ratings_of_pairs_are_refused(tmp_path: Path, name: str) -> None:
    path = write_rows(tmp_path / "x.parquet", [{**row, name: 0.5} for row in ROWS])
    with pytest.raises(DataError, match=f"column {name} given; expected pairs without ratings"):
        load_retrieval(path)
    assert len(load_retrieval(path, f"ignore={name}").queries) == 6


@pytest.mark.parametrize(
    "name",
    [
        "negative",
        "neg",
        "negatives",
        "negs",
        "hard_negative",
        "hard_negatives",
        "neg_docs",
        "negative_1",
    ],
)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_negatives_are_read_under_their_usual_names(tmp_path: Path, name: str, suffix: str) -> None:
    path = write_rows(tmp_path / f"x{suffix}", [{**row, name: ["n 0", "n 1"]} for row in ROWS])
    assert all(len(query.negatives) == 2 for query in load_retrieval(path).queries)


def test_a_column_that_an_option_names_has_no_other_role(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"q {n}", "answer": f"p {n}", "id": f"no {n % 2}", "question": "?"}
        for n in range(6)
    ]
    path = write_rows(tmp_path / "x.jsonl", rows)
    queries = load_retrieval(path, "query=prompt&positive=id").queries
    assert [(query.text, query.task, query.id) for query in queries][:2] == [
        ("q 0", "", "q0"),
        ("q 1", "", "q1"),
    ]


def test_the_column_split_assigns_splits(tmp_path: Path) -> None:
    names = ["train", "train", "Validation", "dev", "test", "train"]
    rows = [{**row, "split": name} for row, name in zip(ROWS, names, strict=True)]
    path = write_rows(tmp_path / "x.jsonl", rows)
    assert count_splits(path) == {"train": 3, "valid": 2, "test": 1}
    assert count_splits(path, "ignore=split") == {None: 6}
    write_rows(path, [{**row, "split": "left"} for row in ROWS])
    with pytest.raises(DataError, match=r"x\.jsonl:1: split 'left' given; expected one of train"):
        load_retrieval(path)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train.parquet", "test.parquet"),
        ("train-00000-of-00001.parquet", "test-00000-of-00001.parquet"),
        (
            "train-00000-of-00001-b42a775f407cee45.parquet",
            "test-00000-of-00001-a09b74b3ef9c3b56.parquet",
        ),
        ("nq-train.parquet", "nq-test.parquet"),
        ("data/train/0000.parquet", "data/test/0000.parquet"),
        ("train_sft-00000.parquet", "test_sft-00000.parquet"),
    ],
)
def test_several_splits_of_a_folder_stay_splits(tmp_path: Path, train: str, test: str) -> None:
    write_rows(tmp_path / train, ROWS)
    write_rows(tmp_path / test, [{"query": "t", "positive": "u"}])
    assert count_splits(tmp_path) == {"train": 6, "test": 1}
    assert count_splits(tmp_path, "split=train") == {None: 6}


def test_one_split_alone_is_divided(tmp_path: Path) -> None:
    for name in ("train-00000-of-00002.parquet", "train-00001-of-00002.parquet"):
        write_rows(
            tmp_path / name, [{"query": f"{name} {n}", "positive": f"p {n}"} for n in range(3)]
        )
    assert count_splits(tmp_path) == {None: 6}
    names = [tmp_path / "train-test-split.parquet", tmp_path / "b.parquet"]
    assert set(find_splits(names, tmp_path).values()) == {""}


def test_what_datasets_saves_is_read_as_it_was_saved(tmp_path: Path) -> None:
    whole = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": whole, "test": whole.select([0])}).save_to_disk(
        tmp_path / "both"
    )
    assert count_splits(tmp_path / "both") == {"train": 6, "test": 1}
    assert count_splits(tmp_path / "both", "split=train") == {None: 6}
    whole.save_to_disk(tmp_path / "one")
    loaded = datasets.load_from_disk(tmp_path / "one")
    loaded.map(lambda row: {"query": f"PREFIX {row['query']}"})
    loaded.filter(lambda row: True)
    assert list((tmp_path / "one").glob("cache-*.arrow")), "the caches lie beside the data"
    assert sorted(query.text for query in load_retrieval(tmp_path / "one").queries) == [
        f"q {n}" for n in range(6)
    ]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "query;positive\nq;p;r\n", "a.csv:2: 3 fields; expected 2 as in the first row"),
        ("a.xls", "query\tpositive\nq\tp\n", "a.xls: no known format; expected"),
        ("a.xlsx", "query\tpositive\nq\tp\n", "a.xlsx: cannot be read (File is not a zip file)"),
        ("a.json", '[{"query": "q", "positive": 3}]', "a.json: item 0: positive 3 given"),
        ("a.json", '[\n {"query": "q",\n "positive": "p"}\n', "expected one JSON object per line"),
    ],
)
def test_the_message_names_what_the_file_is(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError) as raised:
        load_retrieval(tmp_path / name)
    assert says in str(raised.value)


def write_beir(folder: Path, qrels: dict[str, list[dict[str, Any]]], **texts: str) -> Path:
    for name in ("corpus", "queries"):
        write_rows(
            folder / f"{name}.jsonl",
            [{"_id": str(n), "text": texts.get(f"{name}{n}", "t")} for n in range(4)],
        )
    for name, rows in qrels.items():
        path = folder / "qrels" / name
        if path.suffix == ".tsv":
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join("\t".join(map(str, row.values())) + "\n" for row in rows))
        else:
            write_rows(path, rows)
    return folder


def label(query: Any, document: Any, score: Any = 1) -> dict[str, Any]:
    return {"query-id": query, "corpus-id": document, "score": score}


@pytest.mark.parametrize("suffix", ["tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("score", [1, 1.0])
def test_published_beir_labels_are_read(tmp_path: Path, suffix: str, score: Any) -> None:
    ids = (0, 1, 9) if suffix != "parquet" else ("0", "1", "9")
    rows = [label(ids[0], ids[1], score), label(ids[1], ids[2], score)]
    found = load_retrieval(write_beir(tmp_path, {f"test.{suffix}": rows}))
    assert [(query.id, query.positives, query.grades) for query in found.queries] == [
        ("0", ("1",), (1,))
    ]
    assert found.notes["labels of documents that are not in the corpus, left out"] == 1


def test_grades_with_a_fraction_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"test\.jsonl:1: score 0\.5 given; expected a whole number"
    ):
        load_retrieval(write_beir(tmp_path, {"test.jsonl": [label("0", "1", 0.5)]}))


def test_empty_documents_stay_and_are_counted(tmp_path: Path) -> None:
    found = load_retrieval(write_beir(tmp_path, {"test.tsv": [label(0, 1)]}, corpus2=""))
    assert len(found.corpus) == 4
    assert found.notes["documents without text"] == 1


@pytest.mark.parametrize(
    "names",
    [
        ("train-00000-of-00001.parquet", "test-00000-of-00001.parquet"),
        (
            "train-00000-of-00001-b42a775f407cee45.parquet",
            "test-00000-of-00001-a09b74b3ef9c3b56.parquet",
        ),
        ("train-00000-of-00001.parquet", "validation-00000-of-00001.parquet"),
        ("nq-train.parquet", "nq-test.parquet"),
        ("train.jsonl", "test.jsonl"),
        ("train.tsv", "dev.tsv"),
    ],
)
def test_splits_of_beir_labels_keep_their_names(tmp_path: Path, names: tuple[str, str]) -> None:
    found = load_retrieval(
        write_beir(tmp_path, {names[0]: [label("0", "1")], names[1]: [label("1", "2")]})
    )
    assert [query.split for query in found.queries].count("train") == 1
    assert {query.split for query in found.queries} - {"train"} <= {"valid", "test"}
    assert len({query.split for query in found.queries}) == 2


def test_given_negatives_must_exist(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "x.jsonl", [{**row, "wrong": "n"} for row in ROWS])
    with pytest.raises(
        InputError, match=r"x\.jsonl: no query has a negative; expected some with mining=given"
    ):
        check(Config(needs_negatives=True), Inputs((path,)), {})
    assert check(Config(needs_negatives=True, reading=("negative=wrong",)), Inputs((path,)), {})
