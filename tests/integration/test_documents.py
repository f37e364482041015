"""From documents to an embedder, and from a file to a database, by the commands, on MiniLM."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from command import run, sets
from language_server import LanguageServer
from quickstart_runs import ONE_TRAINING

from ratchet.data.vector_tables import open_table
from ratchet.files import read_text
from ratchet.models.model_files import MINILM

ROOT = Path(__file__).resolve().parents[2]
THINGS = ["lamp", "chair", "bridge", "violin", "kettle", "garden", "mirror", "ladder"]
SENTENCE = "The {thing} of {place} was made in the year {year} by a family of craftsmen."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty-five documents, so that some can be held out."""
    made = tmp_path_factory.mktemp("documents") / "docs"
    made.mkdir()
    for number in range(45):
        place = f"Town{number}"
        parts = [f"# {place}"]
        for year, thing in enumerate(THINGS[: 2 + number % 3], 1700 + number):
            parts.append(f"## {thing}\n\n{SENTENCE.format(thing=thing, place=place, year=year)}")
        (made / f"{place}.md").write_text("\n\n".join(parts))
    return made


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_documents_become_an_embedder(folder: Path, tmp_path: Path) -> None:
    """With a judge and questions of two chunks. Queries of a document are on one side of the split."""
    store = str(tmp_path / "store")
    with LanguageServer() as server:
        settings = [f"data={folder}", f"generator={server.url}", f"judge={server.url}"]
        settings += ["multi_hop=0.2", "finetune_embedder.epochs=1", "generate_api.price=1,2"]
        status, output = run(*("run", "documents", "--store", store, *sets(*settings)), timeout=800)
        server.shutdown()
    assert status == 0, output
    assert "iteration 0" in output
    assert "chunks: 45 files, 135 chunks" in output
    (beir,) = (tmp_path / "store").glob("objects/**/queries.jsonl")
    rows = [json.loads(line) for line in read_text(beir).splitlines()]
    assert {row["group"] for row in rows} <= {f"Town{number}.md" for number in range(45)}
    assert any("+" in row["_id"] for row in rows), "questions of two chunks"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_example_documents_need_no_language_model(tmp_path: Path) -> None:
    """The command of docs/stories/documents.md, with one epoch. New questions are about known pages."""
    settings = ["data=examples/documents", "queries=examples/queries.jsonl"]
    settings += ["prepare.split_by=query", "finetune_embedder.epochs=1", ONE_TRAINING]
    command = ["run", "documents", "--store", str(tmp_path / "store")]
    status, output = run(*command, *sets(*settings), timeout=500)
    assert status == 0, output
    assert "chunks: 21 files, 88 chunks" in output
    assert "synthetic 0  real 273" in output
    assert "iteration 0" in output


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_file_becomes_a_table_of_a_database(tmp_path: Path) -> None:
    pgserver = pytest.importorskip("pgserver")
    file = tmp_path / "products.csv"

    def write(rows: list[list[str]]) -> None:
        with file.open("w", newline="") as opened:
            csv.writer(opened).writerows([["sku", "body", "price"], *rows])

    rows = [[f"s{number}", f"a {thing} of wood", "7.5"] for number, thing in enumerate(THINGS)]
    write(rows)
    with pgserver.get_server(tmp_path / "postgres") as server:
        place, _, options = server.get_uri().removeprefix("postgresql://").partition("?")
        address = f"pgvector://{place}/products?{options}"
        command = ["embed", MINILM, f"{file}?id=sku&text=body", "--to", address]
        command += ["--store", str(tmp_path / "store")]
        status, output = run(*command)
        assert status == 0, output
        write([*rows[1:7], ["s7", "a ladder of steel", "9"], ["s8", "a drum", "1"]])
        status, output = run(*command)
        assert status == 0, output
        assert "new 1  changed 1" in output
        assert "removed 1" in output
        table = open_table("here", address)
        assert table.read_digests().keys() == {f"s{number}" for number in range(1, 9)}
        found = server.psql("SELECT id, text, metadata ->> 'price' FROM products ORDER BY id")
        assert "s7 | a ladder of steel | 9" in found
        status, output = run(
            *("search", MINILM, address, "--store", str(tmp_path / "store")),
            *("--query", "a percussion instrument", "--top", "1"),
        )
        assert status == 0, output
        assert output.rstrip().endswith("s8  a drum")
