"""Documents as people have them: Markdown, text, HTML, PDF and Word files, divided into chunks.

PDFium reads the pages of PDF files, and markitdown converts other files to Markdown. semchunk divides the text of a
section at the largest structure that fits: paragraphs, sentences, words. A chunk begins with the headings above it."""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import is_zipfile

from ratchet.errors import DataError
from ratchet.files import read_text

TEXTS = (".md", ".markdown", ".txt", ".rst")
ZIPPED = (".docx", ".epub")
TABLES = (".jsonl", ".json", ".csv", ".parquet", ".arrow")
SUFFIXES = (*TEXTS, *ZIPPED, ".html", ".htm", ".ipynb", ".pdf")
FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)


class Chunk(NamedTuple):
    text: str
    """The headings, a blank line, and the chunk's own text."""
    heading: str
    """`Title > Section`, or empty."""
    page: int | None
    """Page of a PDF file, from 1."""


def list_documents(path: Path) -> list[Path]:
    """List a file, or the documents in a folder and the folders below it, without hidden ones, in order."""
    if path.is_file():
        return [path]
    found = []
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.suffix.lower() in SUFFIXES and file.is_file() and not hidden:
            found.append(file)
    return found


def is_documents(path: Path) -> bool:
    """Whether a path is a document, or a folder with some and without tables. A text file alone is a table, which has a
    row in each line."""
    if not path.is_dir():
        return path.suffix.lower() in SUFFIXES and path.suffix != ".txt"
    names = {file.suffix for file in path.rglob("*")}
    return not names.intersection(TABLES) and bool(list_documents(path))


def read_chunks(path: Path, size: int, overlap: float, count: Callable[[str], int]) -> list[Chunk]:
    """Divide a document into chunks. size: maximum tokens, with the headings. overlap: part of a chunk that the
    next one repeats. count: counts the tokens of a text. Raises DataError for a file that cannot be read."""
    from semchunk.semchunk import chunk

    found = []
    for page, text in _read_pages(path):
        for headings, body in _split_sections(text):
            above = "\n".join(headings)
            body = body.strip()
            if body and count(above) > size // 2:
                # No room for text: the headings are text themselves.
                body = f"{above}\n\n{body}"
                above = ""
            room = size - count(above)
            parts: Any = chunk(body, room, count, overlap=overlap or None)
            for part in parts:
                if any(letter.isalnum() for letter in part):
                    whole = f"{above}\n\n{part}".strip()
                    found.append(Chunk(whole, " > ".join(headings), page))
    return found


def _read_pages(path: Path) -> list[tuple[int | None, str]]:
    """Return (page, text) of a PDF file's pages, or (None, Markdown) of another document."""
    suffix = path.suffix.lower()
    if suffix in TEXTS:
        return [(None, read_text(path))]
    try:
        if suffix == ".pdf":
            import pypdfium2

            with pypdfium2.PdfDocument(path) as document:
                texts = [page.get_textpage().get_text_bounded() for page in document]
            return list(enumerate(texts, 1))
        if suffix in ZIPPED and not is_zipfile(path):
            raise ValueError("no ZIP archive")  # markitdown would take it for a text
        from markitdown import MarkItDown

        return [(None, MarkItDown().convert_local(path).markdown)]
    except Exception as error:  # of one of many parsers
        said = " ".join(str(error).split())[:200]
        raise DataError(
            f"{path}: cannot be read ({said}); expected a complete {suffix} file without a password; write it again"
        ) from None


def _split_sections(markdown: str) -> Iterator[tuple[list[str], str]]:
    """Yield (headings from the outermost one, text) of each section. The last heading of a section without text and
    without sections below it is its text, such as a paragraph above a line of hyphens."""
    from markdown_it import MarkdownIt

    text = FRONT_MATTER.sub("", markdown.replace("\r\n", "\n"))
    lines = text.split("\n")
    above: dict[int, str] = {}
    start = 0

    def close_section(end: int, level: int) -> tuple[list[str], str]:
        """Return the section that the line `end` ends, with a heading of this level or the document's end."""
        headings = list(above.values())
        body = "\n".join(lines[start:end])
        is_empty = not any(letter.isalnum() for letter in body)
        if is_empty and headings and level <= max(above):
            body = headings.pop()
        return headings, body

    for token, content in pairwise(MarkdownIt().parse(text)):
        if token.type == "heading_open" and token.level == 0 and token.map:
            level = int(token.tag[1])
            yield close_section(token.map[0], level)
            above = {other: title for other, title in above.items() if other < level}
            above[level] = content.content
            start = token.map[1]
    yield close_section(len(lines), 0)
