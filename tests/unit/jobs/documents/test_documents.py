"""Documents are divided, joined with queries, and written into tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ratchet.data.formats.detection import load_retrieval
from ratchet.data.tables import DOCUMENTS, QUERIES, add_carried, read_shards, write_shards
from ratchet.data.vector_tables import compute_state, open_table
from ratchet.data.vectors import write_vectors as write_embeddings
from ratchet.errors import DataError, InputError
from ratchet.jobs.documents import chunk_documents, select_changed, write_beir, write_vectors
from ratchet.models.model_files import MINILM, resolve
from ratchet.orchestrator.job_interface import Context

MakeContext = Callable[..., Context]
SENTENCE = "The {} stands beside the water, and nobody knows who built it so long ago. "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    (made / "inside").mkdir(parents=True)
    for number in range(20):
        text = f"# Place {number}\n\n" + SENTENCE.format(f"house {number}") * (number + 1)
        (made / "inside" / f"{number:02d}.md").write_text(text)
    (made / "broken.pdf").write_text("no PDF")
    (made / "empty.md").write_text("---\n---\n\n")
    return made


def test_chunks_are_counted_and_files_without_text_listed(
    local_ray: None, folder: Path, context: MakeContext
) -> None:
    made = context(1)
    config = chunk_documents.Config(size=64, overlap=0.0)
    inputs = chunk_documents.Inputs(folder, resolve(MINILM))
    planned = chunk_documents.check(config, inputs, {})
    result = chunk_documents.run(made, config, inputs)
    rows = read_shards(made.out).to_pylist()
    count = chunk_documents.load_token_count(resolve(MINILM))
    assert max(count(row["text"]) for row in rows) <= 64
    assert result.metrics == {
        "files": 22,
        "documents": len(rows),
        "characters": sum(len(row["text"]) for row in rows) // len(rows),
        "left_out": 2,
    }
    assert planned.metrics["documents"] == len(rows)
    tokens = sum(count(row["text"]) for row in rows)
    assert planned.note.startswith(f"22 files, {len(rows)} chunks, {tokens:,} tokens; left out: 2")
    left_out = [row["file"] for row in result.tables["left out"]]
    assert left_out[0].startswith("broken.pdf: cannot be read")
    assert left_out[1].startswith("empty.md: no text")
    assert len({row["id"] for row in rows}) == len(rows)
    last = [row for row in rows if row["id"].startswith("inside/19.md#")]
    assert len(last) > 4
    for number, row in enumerate(last):
        assert row["id"] == f"inside/19.md#{number}"
        assert row["text"].startswith("Place 19\n\nThe house 19")
        expected = {"file": "inside/19.md", "heading": "Place 19", "page": None}
        assert json.loads(row["metadata"]) == expected


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("- \n")
    with pytest.raises(DataError, match=r"no document has text \(a.md: no text"):
        chunk_documents.check(chunk_documents.Config(), chunk_documents.Inputs(tmp_path), {})


def make_beir(tmp_path: Path, made: Context, files: int, real: str = "") -> Any:
    """Write chunks of files, two each, with a synthetic query for the first of them, and real queries."""
    chunks = []
    queries = []
    for number in range(files):
        for part in range(2):
            name = f"{number}.md#{part}"
            row = {"id": name, "text": f"text of {name}", "metadata": '{"page": 1}'}
            chunks.append(row)
        row = {"id": f"q{number}", "text": f"query {number}", "positives": [f"{number}.md#0"]}
        queries.append({**row, "grades": [1], "negatives": [], "group": f"{number}.md"})
    write_shards(tmp_path / "corpus", chunks, DOCUMENTS, 9)
    write_shards(tmp_path / "queries", queries, add_carried(QUERIES, ["group"]), 9)
    file = None
    if real:
        file = tmp_path / "real.jsonl"
        file.write_text(real)
    inputs = write_beir.Inputs(tmp_path / "corpus", tmp_path / "queries", file)
    return write_beir.run(made, write_beir.Config(), inputs)


@pytest.mark.parametrize(("files", "group"), [(50, "3.md"), (9, "3.md#0")])
def test_queries_are_grouped_by_document_if_there_are_enough(
    files: int, group: str, tmp_path: Path, context: MakeContext
) -> None:
    made = context()
    result = make_beir(tmp_path, made, files)
    assert bool(result.note) == (files == 9)
    data = load_retrieval(made.out)
    assert {document.id: document.text for document in data.corpus}["3.md#1"] == "text of 3.md#1"
    query = data.queries[3]
    assert (query.text, query.positives, query.group) == ("query 3", ("3.md#0",), group)
    assert query.split is None


def test_only_real_queries_are_held_out(tmp_path: Path, context: MakeContext) -> None:
    rows = [
        {"query": "a", "document": "4.md"},
        {"query": "b", "document": "5.md#1"},
        {"query": "c", "positive": "text  of 6.md#0"},
    ]
    made = context()
    result = make_beir(tmp_path, made, 50, "".join(json.dumps(row) + "\n" for row in rows))
    assert result.metrics == {"documents": 100, "synthetic": 50, "real": 3}
    queries = load_retrieval(made.out).queries
    assert {query.split for query in queries if query.text.startswith("query")} == {"train"}
    real = {query.text: query for query in queries if not query.text.startswith("query")}
    assert {query.split for query in real.values()} == {None}
    positives = {text: query.positives for text, query in real.items()}
    assert positives == {"a": ("4.md#0", "4.md#1"), "b": ("5.md#1",), "c": ("6.md#0",)}


def test_a_text_in_which_a_chunk_ends_is_found_by_its_parts() -> None:
    words = [f"word{number}" for number in range(90)]
    text_of = {f"a.md#{i}": " ".join(words[30 * i : 30 * i + 30]) for i in range(3)}
    for start in range(60):
        text = "  ".join(words[start : start + 20])
        found = write_beir.find_chunks("", text, text_of)
        touched = {f"a.md#{place // 30}" for place in range(start, start + 20)}
        assert found
        assert set(found) <= touched
    assert write_beir.find_chunks("", " ".join(words), text_of) == list(text_of)


def test_a_real_query_of_an_unknown_document_is_refused(
    tmp_path: Path, context: MakeContext
) -> None:
    with pytest.raises(DataError, match=r"real.jsonl:1: document '70.md' given; expected the path"):
        make_beir(tmp_path, context(), 3, '{"query": "a", "document": "70.md"}\n')


class Table:
    """Documents with random vectors that are written into a table, and what it should have."""

    def __init__(self, folder: Path, context: MakeContext, dtype: Any = "float32") -> None:
        self.folder = folder
        self.context = context
        self.to = f"lancedb://{folder}/database/table"
        self.dtype = dtype
        self.vectors: dict[str, np.ndarray] = {}

    def update(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Write these documents, and return what was done."""
        write_shards(self.folder / "texts", rows, DOCUMENTS, 40)
        state = compute_state(open_table("here", self.to))
        table: Any = {"to": self.to, "dtype": self.dtype, "state": state}
        changed = self.context()
        inputs = select_changed.Inputs(self.folder / "texts", resolve(MINILM))
        selected = select_changed.run(changed, select_changed.Config(**table), inputs)
        vectors = self.folder / "vectors"
        for path in sorted((changed.out / "rows").glob("*")):
            ids = pa.parquet.read_table(path)["id"]
            made_ND = np.random.default_rng().normal(size=(len(ids), 32)).astype(np.float32)
            made_ND /= np.linalg.norm(made_ND, axis=1, keepdims=True)
            write_embeddings(vectors / f"{path.stem}.arrow", ids, made_ND)
            self.vectors.update(zip(ids.to_pylist(), made_ND, strict=True))
        removed = changed.out / select_changed.REMOVED
        for name in json.loads(removed.read_text()):
            del self.vectors[name]
        written = write_vectors.Inputs(changed.out / "rows", vectors, removed)
        config = write_vectors.Config(**table)
        write_vectors.check(config, written, {})
        result = write_vectors.run(self.context(), config, written)
        return {**selected.metrics, **result.metrics}


def test_a_table_that_changes_during_the_run_is_an_error(
    tmp_path: Path, context: MakeContext
) -> None:
    table = Table(tmp_path, context)
    table.update([make_row(1), make_row(2)])
    config = select_changed.Config(
        table.to, "float32", compute_state(open_table("", "parquet://a"))
    )
    inputs = select_changed.Inputs(tmp_path / "texts", resolve(MINILM))
    with pytest.raises(InputError, match="has changed since the run was planned"):
        select_changed.run(context(), config, inputs)


def make_row(number: int, text: str = "", **metadata: Any) -> dict[str, Any]:
    given = {"price": number / 2, "day": "2026-01-02", "note": None, **metadata}
    return {"id": f"d{number}", "text": text or f"text {number}", "metadata": json.dumps(given)}


def test_a_second_call_writes_only_what_changed(tmp_path: Path, context: MakeContext) -> None:
    table = Table(tmp_path, context)
    rows = [make_row(number) for number in range(100)]
    done = table.update(rows)
    assert done == {"documents": 100, "new": 100, "changed": 0, "removed": 0, "written": 100}
    assert table.update(rows)["written"] == 0
    rows[3] = make_row(3, "other")
    rows[50] = make_row(50, price=7.5)
    done = table.update([*rows[:90], make_row(200)])
    assert done == {"documents": 91, "new": 1, "changed": 2, "removed": 10, "written": 3}
    found = open_table("here", table.to)
    assert found.read_digests().keys() == table.vectors.keys()
    for name in ("d3", "d50", "d200", "d7"):
        (best,) = found.find(table.vectors[name], 1)
        assert best.id == name
        assert best.score == pytest.approx(1, abs=1e-5)
    stored = found.table.search().where("id = 'd50'").to_list()[0]  # type: ignore[attr-defined]
    assert (stored["price"], stored["day"], stored["note"]) == (7.5, "2026-01-02", None)


def test_the_recall_of_smaller_vectors_is_measured(tmp_path: Path, context: MakeContext) -> None:
    rows = [make_row(number) for number in range(300)]
    half = Table(tmp_path / "half", context, "float16").update(rows)
    bits = Table(tmp_path / "bits", context, "binary").update(rows)
    assert half["recall@10"] > 0.98 > bits["recall@10"] > 0.2
    with pytest.raises(InputError, match=r"int8 given, .*; expected float32 or float16 or binary"):
        Table(tmp_path / "int8", context, "int8").update(rows)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ([{"a": 1}, {"a": "x"}], "columns with values of several types"),
        ([{"vector": 1}], "a column vector given; expected other names than id, text"),
    ],
)
def test_columns_that_no_table_can_have_are_refused(
    metadata: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        write_vectors.spread_metadata(pa.chunked_array([[json.dumps(one) for one in metadata]]))
