"""Files of any kind with the same rows: separators, compression, sheets, files without a header, MS MARCO's folders."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import openpyxl
import pandas as pd
import pytest

from ratchet.data.formats.detection import load_queries, load_retrieval
from ratchet.data.formats.table_files import estimate_rows, read_rows
from ratchet.errors import DataError, InputError

ROWS = [
    {
        "query": f'who said "{n}", and why;\tthen?'.replace("\t", " "),
        "positive": f"it was\n{n}" if n == 1 else f"it was {n}; really, {n}",
        "negative": f'"nobody" of {n}' if n % 2 else f'"none {n}"',
    }
    for n in range(6)
]
EXPECTED = [tuple(row.values()) for row in ROWS]


def write_csv(separator: str) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(ROWS[0]), delimiter=separator)
    writer.writeheader()
    writer.writerows(ROWS)
    return file.getvalue()


def read_pairs(path: Path) -> list[tuple[str, str, str]]:
    data = load_retrieval(path)
    texts = {document.id: document.text for document in data.corpus}
    return [
        (query.text, texts[query.positives[0]], texts[query.negatives[0]]) for query in data.queries
    ]


TEXTS = {
    "commas.csv": write_csv(","),
    "semicolons.csv": write_csv(";"),
    "tabs.csv": write_csv("\t").replace("query\tpositive", '"query"\tpositive'),
    "bars.csv": write_csv("|"),
    "lines.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
    "array.json": json.dumps(ROWS),
    "data.json": json.dumps({"version": 1, "data": ROWS}),
}


@pytest.mark.parametrize("name", TEXTS)
def test_every_kind_of_file_has_the_same_rows(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(TEXTS[name])
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(TEXTS[name].encode()))
    assert read_pairs(tmp_path / name) == EXPECTED
    assert read_pairs(packed) == EXPECTED
    assert len(load_queries(packed)) == 6


def test_a_workbook_has_the_same_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.xlsx"
    pd.DataFrame(ROWS).assign(number=7, Label=1).to_excel(path, index=False)
    assert read_pairs(path) == EXPECTED


def test_cells_of_a_workbook_are_texts(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for row in (["Question", "Answer"], ["how many", 42], [None, None], ["is it", True]):
        book.active.append(row)
    book.save(tmp_path / "x.xlsx")
    rows = [row for _, row in read_rows(tmp_path / "x.xlsx")]
    assert rows == [
        {"Question": "how many", "Answer": "42"},
        {"Question": "is it", "Answer": "True"},
    ]
    book.active.append(["only a question"])
    book.save(tmp_path / "x.xlsx")
    with pytest.raises(DataError, match=r"x\.xlsx: row 5: positive None given"):
        load_retrieval(tmp_path / "x.xlsx")


def test_a_damaged_workbook_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.xlsx"
    pd.DataFrame(ROWS).to_excel(path, index=False)
    content = path.read_bytes()
    for damaged in (b"", content[:-100], content[:300] + b"\0" * 200 + content[500:]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"x\.xlsx"):
            load_retrieval(path)


@pytest.mark.parametrize("cut", [-9, -1, 30])
def test_a_damaged_archive_is_named(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(TEXTS["lines.jsonl"].encode())[:cut])
    with pytest.raises(DataError, match=r"x\.jsonl\.gz: damaged gzip"):
        load_retrieval(path)


@pytest.mark.parametrize("columns", [2, 3])
def test_a_file_without_a_header_has_pairs_or_triplets(tmp_path: Path, columns: int) -> None:
    rows = [(f"who said that {n}", f'"{n}" was said', f"nobody, {n}")[:columns] for n in range(4)]
    path = tmp_path / "train.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    data = load_retrieval(path)
    assert [query.text for query in data.queries] == [row[0] for row in rows]
    assert {document.text for document in data.corpus} == {text for row in rows for text in row[1:]}


def test_a_row_of_names_is_a_header(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("title\tbody\nRome\tthe capital of Italy\n")
    with pytest.raises(DataError, match=r"x\.tsv:2: .*'\?query=title&positive=body'$"):
        load_retrieval(path)


def test_the_number_of_rows_of_an_archive_is_estimated(tmp_path: Path) -> None:
    lines = [
        json.dumps({"query": f"q {n * 7919}", "positive": f"p {n * 104729}"})
        for n in range(200_000)
    ]
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))

    class Row:
        where = f"{path}:100000"

    assert estimate_rows([path], [Row()] * 100_000) == pytest.approx(200_000, rel=0.05)


PROPOSALS = {
    "title,body,author": "query=title&positive=body",
    "code,docstring": "query=docstring&positive=code",
    "text,category": "query=text&positive=category",
    "title,text": "query=title&positive=text",
    "id,link,Search term,Product page": "query=Search term&positive=Product page",
}
VALUES = {
    "title": "Rome",
    "body": "the capital of Italy",
    "author": "A. Person",
    "code": "def add(a, b): return a + b",
    "docstring": "add two numbers",
    "text": "a match was lost",
    "category": "sports",
    "id": "17",
    "link": "https://host/of/a/long/address",
    "Search term": "red shoes",
    "Product page": "Running shoes in red, for men",
}


@pytest.mark.parametrize("header", PROPOSALS)
def test_the_message_proposes_columns(header: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    row = ",".join(f'"{VALUES[name]}"' for name in header.split(","))
    path.write_text(f"{header}\n{row}\n{row.upper().replace('17', '18')}\n")
    with pytest.raises(DataError, match=r"x\.csv:2: no column for the ") as raised:
        load_retrieval(path)
    assert str(raised.value).endswith(f"behind the path as '?{PROPOSALS[header]}'")
    assert len(load_retrieval(path, PROPOSALS[header]).queries) == 2


def write_marco(folder: Path) -> None:
    (folder / "collection.tsv").write_text("".join(f'{n}\ta "document {n}\n' for n in range(9)))
    for name, ids in (("train", (0, 1)), ("dev", (2, 3)), ("dev.small", (3,)), ("eval", (4,))):
        (folder / f"queries.{name}.tsv").write_text("".join(f"{n}\tquery {n}\n" for n in ids))
        if name != "eval":
            (folder / f"qrels.{name}.tsv").write_text("".join(f"{n}\t0\t{n}\t1\n" for n in ids))


@pytest.mark.parametrize("packed", [False, True])
def test_files_of_ms_marco_are_a_folder_with_splits(tmp_path: Path, packed: bool) -> None:
    write_marco(tmp_path)
    if packed:
        for path in list(tmp_path.iterdir()):
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    data = load_retrieval(tmp_path)
    assert {(query.id, query.text, query.positives, query.split) for query in data.queries} == {
        (str(n), f"query {n}", (str(n),), "train" if n < 2 else "valid") for n in range(4)
    }
    assert [document.text for document in data.corpus] == [f'a "document {n}' for n in range(9)]
    assert data.notes == {
        "rows read as MS MARCO's documents": 9,
        "queries without a label, left out": 1,
    }
    assert len(load_queries(tmp_path)) == 5


def test_headers_of_ms_marcos_kin_are_no_documents(tmp_path: Path) -> None:
    write_marco(tmp_path)
    for name, header in (("collection", "pid\ttext"), ("queries.train", "qid\ttext")):
        file = tmp_path / f"{name}.tsv"
        file.write_text(f"{header}\n{file.read_text()}")
    file = tmp_path / "qrels.train.tsv"
    file.write_text(f"qid\t-\tpid\tscore\n{file.read_text()}")
    data = load_retrieval(tmp_path)
    assert (len(data.corpus), len(data.queries)) == (9, 4)


def test_one_object_over_several_lines_is_read(tmp_path: Path) -> None:
    ids = [str(n) for n in range(3)]
    about = {
        "queries": {name: f"q {name}" for name in ids},
        "corpus": {name: f"d {name}" for name in ids},
        "relevant_docs": {name: [name] for name in ids},
    }
    (tmp_path / "qa.json").write_text(json.dumps(about, indent=2))
    data = load_retrieval(tmp_path / "qa.json")
    assert [query.id for query in data.queries] == ids
    assert [document.text for document in data.corpus] == [f"d {name}" for name in ids]


SIMCSE = "sent0,sent1,hard_neg\n" + "".join(f"q {n},p {n},n {n}\n" for n in range(3))


def test_simcse_has_pairs_with_negatives(tmp_path: Path) -> None:
    (tmp_path / "nli.csv").write_text(SIMCSE)
    assert read_pairs(tmp_path / "nli.csv") == [(f"q {n}", f"p {n}", f"n {n}") for n in range(3)]


def test_documents_of_ms_marco_have_address_title_and_text(tmp_path: Path) -> None:
    write_marco(tmp_path)
    lines = "".join(f"{n}\thttp://host/{n}\ttitle {n}\ttext {n}\n" for n in range(4))
    (tmp_path / "collection.tsv").write_text(lines)
    assert load_retrieval(tmp_path).corpus[3].text == "title 3\ntext 3"
