"""Documents of each kind become chunks with their headings and pages, and rows of tables keep their columns."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_pdf import PdfPages

from ratchet.data.formats.document_rows import read_document_rows
from ratchet.data.formats.documents import is_documents, list_documents, read_chunks
from ratchet.errors import DataError

MARKDOWN = """\
---
title: not a heading
---
Before any heading.

# Guide

Welcome.

```sh
# not a heading
```

## Start *here*

Press the button.

Setext
======

The end.
"""
CHUNKS = [
    ("", "Before any heading."),
    ("Guide", "Welcome.\n\n```sh\n# not a heading\n```"),
    ("Guide > Start *here*", "Press the button."),
    ("Setext", "The end."),
]


def count(text: str) -> int:
    return len(text.split())


def test_chunks_have_the_headings_above_them(tmp_path: Path) -> None:
    (tmp_path / "guide.md").write_text(MARKDOWN)
    found = read_chunks(tmp_path / "guide.md", 50, 0.0, count)
    assert [(chunk.heading, chunk.page) for chunk in found] == [(name, None) for name, _ in CHUNKS]
    for chunk, (heading, text) in zip(found, CHUNKS, strict=True):
        above = heading.replace(" > ", "\n")
        assert chunk.text == f"{above}\n\n{text}".strip()


words = st.lists(
    st.sampled_from(["one", "two", "three.", "four\n\n", "# five\n", "-"]), min_size=1, max_size=80
)


@settings(max_examples=50, deadline=None)
@given(words, st.integers(6, 20), st.sampled_from([0.0, 0.3]))
@example(["one", "# five\n", "-"], 6, 0.0)  # a heading under which there is no text
@example(["# five\n", "-"], 6, 0.0)  # one above a mark alone
@example(["one", "two"] * 8 + ["# five\n", "-\n", "one"], 6, 0.0)  # one that is too long
def test_chunks_are_short_and_lose_no_word(
    tmp_path_factory: pytest.TempPathFactory, words: list[str], size: int, overlap: float
) -> None:
    path = tmp_path_factory.mktemp("documents") / "a.md"
    text = " ".join(words).replace("\n ", "\n")
    path.write_text(text)
    found = read_chunks(path, size, overlap, count)
    for chunk in found:
        assert count(chunk.text) <= size
    kept = {word for chunk in found for word in chunk.text.split()}
    assert {word for word in text.split() if word.isalpha()} <= kept


def test_headings_without_text_are_kept(tmp_path: Path) -> None:
    text = "# Parts\n\n## Bolt M6\n\n## Nut M6\n\nOf steel.\n\nA note\n======\n"
    (tmp_path / "a.md").write_text(text)
    found = read_chunks(tmp_path / "a.md", 50, 0.0, count)
    assert [(chunk.heading, chunk.text) for chunk in found] == [
        ("Parts", "Parts\n\nBolt M6"),
        ("Parts > Nut M6", "Parts\nNut M6\n\nOf steel."),
        ("", "A note"),
    ]


def test_headings_that_fill_a_chunk_are_divided(tmp_path: Path) -> None:
    names = [f"w{number}" for number in range(20)]
    (tmp_path / "a.md").write_text(f"{' '.join(names)}\n---\nThe text.\n")
    found = read_chunks(tmp_path / "a.md", 6, 0.0, count)
    assert " ".join(" ".join(chunk.text for chunk in found).split()) == (
        f"{' '.join(names)} The text."
    )
    assert all(count(chunk.text) <= 6 for chunk in found)


def write_pdf(path: Path, pages: list[str]) -> None:
    with PdfPages(path) as pdf:
        for text in pages:
            figure = plt.figure()
            figure.text(0.1, 0.5, text)
            pdf.savefig(figure)
            plt.close(figure)


def write_docx(path: Path, heading: str, text: str) -> None:
    main = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    paragraph = "<w:p>{}<w:r><w:t>{}</w:t></w:r></w:p>"
    style = '<w:pPr><w:pStyle w:val="Heading1"/></w:pPr>'
    body = paragraph.format(style, heading) + paragraph.format("", text)
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
    package = "http://schemas.openxmlformats.org/package/2006"
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{package}/content-types"><Default Extension="rels"'
            ' ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            f'<Override PartName="/word/document.xml" ContentType="{kind}"/></Types>',
        )
        archive.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{package}/relationships"><Relationship Id="a" Type="{office}"'
            ' Target="word/document.xml"/></Relationships>',
        )
        archive.writestr(
            "word/document.xml",
            f'<w:document xmlns:w="{main}"><w:body>{body}</w:body></w:document>',
        )


def test_other_kinds_are_read_with_their_structure(tmp_path: Path) -> None:
    write_pdf(tmp_path / "a.pdf", ["The first page.", "", "The third page."])
    write_docx(tmp_path / "b.docx", "Chapter", "A paragraph.")
    html = "<html><body><h1>Top</h1><p>Text &amp; more.</p><script>no()</script></body></html>"
    (tmp_path / "c.html").write_text(html)
    (tmp_path / "d.txt").write_text("Only text.")
    (tmp_path / "e.png").write_bytes(b"no document")
    (tmp_path / ".hidden.md").write_text("# no")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "f.md").write_text("deep")
    files = list_documents(tmp_path)
    assert [file.name for file in files] == ["a.pdf", "b.docx", "c.html", "d.txt", "f.md"]
    found = {file.name: read_chunks(file, 50, 0.0, count) for file in files}
    pages = [(chunk.text, chunk.page) for chunk in found["a.pdf"]]
    assert pages == [("The first page.", 1), ("The third page.", 3)]
    assert [chunk.text for chunk in found["b.docx"]] == ["Chapter\n\nA paragraph."]
    assert [chunk.text for chunk in found["c.html"]] == ["Top\n\nText & more."]
    assert [chunk.text for chunk in found["d.txt"]] == ["Only text."]


@pytest.mark.parametrize("name", ["a.pdf", "a.docx", "a.md"])
def test_broken_files_are_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe\x00broken")
    with pytest.raises(DataError, match=str(tmp_path / name)):
        read_chunks(tmp_path / name, 50, 0.0, count)


def test_folders_of_documents_are_told_from_tables(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("text")
    assert is_documents(tmp_path)
    assert is_documents(tmp_path / "a.md")
    (tmp_path / "b.txt").write_text("text")
    assert is_documents(tmp_path)
    assert not is_documents(tmp_path / "b.txt")
    (tmp_path / "c.jsonl").write_text("{}")
    assert not is_documents(tmp_path)


def test_rows_keep_their_other_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('sku,body,price\ns1,"one, two",3\ns2,three,\n')
    found = list(read_document_rows(tmp_path / "a.csv", "text=body&id=sku"))
    assert [(row["id"], row["text"]) for row in found] == [("s1", "one, two"), ("s2", "three")]
    assert [json.loads(row["metadata"]) for row in found] == [{"price": "3"}, {"price": ""}]
    (tmp_path / "b.jsonl").write_text('{"text": "x", "id": 4, "tags": ["a"]}\n{"text": "y"}\n')
    found = list(read_document_rows(tmp_path / "b.jsonl", ""))
    assert [row["id"] for row in found] == ["4", "d1"]
    assert json.loads(found[0]["metadata"]) == {"tags": ["a"]}
    (tmp_path / "c.txt").write_text("one\n\ntwo\n")
    found = list(read_document_rows(tmp_path / "c.txt", ""))
    assert [row["text"] for row in found] == ["one", "two"]


def test_of_retrieval_data_the_documents_are_read(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text('{"query": "q", "positive": "p", "negative": "n"}\n')
    found = list(read_document_rows(tmp_path / "pairs.jsonl", ""))
    assert [row["text"] for row in found] == ["p", "n"]
    beir = tmp_path / "beir"
    (beir / "qrels").mkdir(parents=True)
    (beir / "corpus.jsonl").write_text(
        '{"_id": "a", "title": "T", "text": "x"}\n{"_id": "b", "text": "y"}\n'
    )
    (beir / "queries.jsonl").write_text('{"_id": "q", "text": "question"}\n')
    (beir / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t1\n")
    found = list(read_document_rows(beir, ""))
    assert [(row["id"], row["text"]) for row in found] == [("a", "T\nx"), ("b", "y")]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ('{"title": "x"}\n', "", "no column for the text"),
        ('{"text": "x"}\n', "text=body", "no column for the text; found text; expected body"),
        ('{"text": " "}\n', "", "text is empty"),
        ('{"text": "x", "id": 1}\n{"text": "y", "id": 1}\n', "", "document id '1' is also at"),
    ],
)
def test_bad_rows_are_named(text: str, options: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(DataError, match=f"a.jsonl:[12]: {said}"):
        list(read_document_rows(tmp_path / "a.jsonl", options))
