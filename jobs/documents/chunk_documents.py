"""chunk_documents: divide the documents of a folder into chunks, with file, heading and page as metadata.

The id of a chunk is the path of its file in the folder with its number, `guide/start.md#3`. Workers take several files
at a time. Files that cannot be read, and those without text, are left out and listed.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Interval

from ratchet.data.formats.documents import list_documents, read_chunks
from ratchet.errors import DataError
from ratchet.extras import require_extra
from ratchet.orchestrator.job_interface import MAP_RESOURCES, Context, Job, Parents, Result, Tokens

if TYPE_CHECKING:
    from ratchet.jobs.distributed.piece_runner import ReportProgress
    from ratchet.jobs.distributed.pieces import Piece

FILES_PER_SHARD = 16
PLAN_SECONDS = 3.0
"""Time for which a plan reads files, to estimate the rest."""
CHARACTERS_PER_TOKEN = 4
LEFT_OUT = "left out: "
"""Beginning of the names of counts that are files without text, or that cannot be read."""
SHOWN = 20

CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class Config:
    size: Tokens = 200
    """Maximum length of a chunk, with the headings above it."""
    overlap: Annotated[float, Interval(ge=0, le=0.5)] = 0.1
    """The part of a chunk that the next one of the same section repeats."""


@dataclass(frozen=True)
class Inputs:
    documents: Path
    """A document, or a folder of Markdown, text, HTML, PDF, Word, EPUB and notebook files."""
    model: Path | None = None
    """The model whose tokenizer counts tokens. None: a token is 4 characters."""


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Read files for some seconds, and estimate the rest."""
    path = inputs.documents
    packages = ("semchunk", "markdown_it", "markitdown", "pypdfium2")
    require_extra(f"{path}: documents given", "documents", *packages)
    files = list_documents(path)
    count_tokens = load_token_count(inputs.model)
    counts: Counter[str] = Counter()
    start = time.monotonic()
    for file in files[:: max(1, len(files) // 64)]:
        for row in read_rows(file, path, config, count_tokens, counts):
            counts["tokens"] += count_tokens(row["text"])
        if time.monotonic() - start > PLAN_SECONDS:
            break
    refuse_nothing(path, counts)
    share = counts["rows"] / len(files)
    about = "" if share == 1 else "about "
    chunks = round(counts["chunks"] / share)
    tokens = round(counts["tokens"] / share)
    note = f"{len(files):,} files, {about}{chunks:,} chunks, {about}{tokens:,} tokens"
    left_out = list_left_out(counts)
    if left_out:
        note += f"; left out: {len(left_out)}, such as {left_out[0]}"
    characters = counts["characters"] // counts["chunks"]
    known = {"files": len(files), "documents": chunks, "characters": characters}
    return Result(known, note=note)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import pyarrow as pa

    from ratchet.data.tables import write_shards
    from ratchet.jobs.distributed.shard_map import map_shards

    listed = context.work / "files"
    files = [{"file": str(file)} for file in list_documents(inputs.documents)]
    schema = pa.schema({"file": pa.string()})
    shards = write_shards(listed, files, schema, FILES_PER_SHARD)
    context.files.send(listed)
    arguments = {"config": config, "inputs": inputs}
    found = map_shards(context, shards, Worker, arguments, context.out, pieces=0)
    counts = Counter(found)
    refuse_nothing(inputs.documents, counts)
    left_out = list_left_out(counts)
    metrics = {
        "files": len(files),
        "documents": counts["chunks"],
        "characters": counts["characters"] // counts["chunks"],
        "left_out": len(left_out),
    }
    if not left_out:
        return Result(metrics)
    return Result(metrics, {"left out": [{"file": text} for text in left_out[:SHOWN]]})


class Worker:
    """Divides the documents of a piece, a shard of their paths."""

    def __init__(self, config: Config, inputs: Inputs) -> None:
        self.config = config
        self.folder = inputs.documents
        self.count_tokens = load_token_count(inputs.model)

    def __call__(self, piece: "Piece", target: Path, report: "ReportProgress") -> dict[str, int]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from ratchet.data.tables import DOCUMENTS, write_table

        counts: Counter[str] = Counter()
        rows: list[dict[str, str]] = []
        for file in pq.read_table(piece.source)["file"].to_pylist():
            rows += read_rows(Path(file), self.folder, self.config, self.count_tokens, counts)
            report(counts["rows"])
        write_table(target, pa.Table.from_pylist(rows, DOCUMENTS))
        return counts


def read_rows(
    file: Path, folder: Path, config: Config, count_tokens: CountTokens, counts: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a file as rows of DOCUMENTS. Adds to counts: `rows` (files), `chunks`, and files that are
    left out."""
    name = file.name if file == folder else file.relative_to(folder).as_posix()
    counts["rows"] += 1
    try:
        chunks = read_chunks(file, config.size, config.overlap, count_tokens)
    except DataError as error:
        counts[f"{LEFT_OUT}{str(error).removeprefix(str(file.parent)).lstrip('/')}"] += 1
        return
    if not chunks:
        counts[f"{LEFT_OUT}{name}: no text; scanned pages need a text layer (OCR)"] += 1
    for number, chunk in enumerate(chunks):
        counts["chunks"] += 1
        counts["characters"] += len(chunk.text)
        metadata = {"file": name, "heading": chunk.heading, "page": chunk.page}
        yield {
            "id": f"{name}#{number}",
            "text": chunk.text,
            "metadata": json.dumps(metadata, ensure_ascii=False),
        }


def load_token_count(model: Path | None) -> CountTokens:
    """Return a function that counts the tokens of a text with the model's tokenizer."""
    file = model / "tokenizer.json" if model else None
    if file is None or not file.exists():
        return lambda text: len(text) // CHARACTERS_PER_TOKEN
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def refuse_nothing(path: Path, counts: Counter[str]) -> None:
    """Raise DataError if no document has text."""
    if not counts["chunks"]:
        raise DataError(
            f"{path}: no document has text ({'; '.join(list_left_out(counts)[:3])}); expected at least one; check the"
            " path"
        )


def list_left_out(counts: Counter[str]) -> list[str]:
    """Return `file: reason` of each file that is left out."""
    return [name.removeprefix(LEFT_OUT) for name in counts if name.startswith(LEFT_OUT)]


JOB = Job(
    "chunk_documents",
    Config,
    Inputs,
    run,
    resources=MAP_RESOURCES,
    check=check,
    metrics=("files", "documents", "characters", "left_out"),
)
