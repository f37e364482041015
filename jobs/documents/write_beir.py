"""write_beir: write chunks of documents with queries for them as a BEIR folder, which `prepare` splits.

Queries of a document are a group, so they are in one split; of few documents, those of a chunk. With real queries, only
these are split; synthetic ones are for training.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.errors import DataError, InputError
from ratchet.orchestrator.job_interface import Context, Job, Parents, Result

FEW_DOCUMENTS = 40
"""Fewer documents leave too few groups for a valid split that decides."""
LEAST_WORDS = 5
"""Fewer words of a text do not tell where they are from."""


@dataclass(frozen=True)
class Config:
    pass


@dataclass(frozen=True)
class Inputs:
    corpus: Path
    """Shards of chunks, as written by `chunk_documents`."""
    queries: Path | None = None
    """Shards of synthetic queries."""
    real: Path | None = None
    """JSON Lines, CSV or Parquet with `query`, and with `document` (the path of a file in the folder, or the id of a
    chunk) or `positive` (a text of a file)."""


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    if inputs.real is not None:
        counts = {"real": len(read_real_queries(inputs.real))}
        return Result({**parents.get("corpus", Result()).metrics, **counts})
    return Result(parents.get("corpus", Result()).metrics)


def read_real_queries(path: Path) -> list[tuple[str, str, str]]:
    """Return (`file:line`, query, document or text) of each row. Raises DataError for another row."""
    from ratchet.data.formats.pairs import read_objects
    from ratchet.data.formats.text_files import read_filled

    found = []
    for where, row, _, _ in read_objects(path, {}, False):
        name = "document" if "document" in row else "positive"
        found.append((where, read_filled(where, row, "query"), read_filled(where, row, name)))
    if not found:
        raise DataError(f"{path}: there are no queries; expected at least one; check the path")
    return found


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.data.tables import read_shards

    chunks = read_shards(inputs.corpus).to_pylist()
    text_of = {chunk["id"]: " ".join(chunk["text"].split()) for chunk in chunks}
    files = {chunk["id"].rpartition("#")[0] for chunk in chunks}
    note = ""
    if len(files) < FEW_DOCUMENTS:
        note = f"{len(files)} documents are too few to hold some out: queries of a chunk are held out together"
    with (context.out / "corpus.jsonl").open("w") as file:
        for chunk in chunks:
            metadata = json.loads(chunk["metadata"])
            row = {"_id": chunk["id"], "text": chunk["text"], "metadata": metadata}
            file.write(json.dumps(row) + "\n")
    synthetic = []
    if inputs.queries is not None:
        synthetic = read_shards(inputs.queries).to_pylist()
    real = []
    for number, (where, text, document) in enumerate(
        read_real_queries(inputs.real) if inputs.real else ()
    ):
        positives = find_chunks(where, document, text_of)
        real.append({"id": f"real/{number}", "text": text, "positives": positives})
    if not real and not synthetic:
        raise InputError("write_beir: no queries given; expected synthetic or real ones")
    with (context.out / "queries.jsonl").open("w") as file:
        for query in (*synthetic, *real):
            group = query["positives"][0]
            if not note:
                group = group.rpartition("#")[0]
            row = {"_id": query["id"], "text": query["text"], "group": group}
            file.write(json.dumps(row) + "\n")
    (context.out / "qrels").mkdir()
    write_qrels(context.out / "qrels" / "all.tsv", real or synthetic)
    if real and synthetic:
        write_qrels(context.out / "qrels" / "train.tsv", synthetic)
    counts = {"documents": len(chunks), "synthetic": len(synthetic), "real": len(real)}
    return Result(counts, note=note)


def find_chunks(where: str, document: str, text_of: Mapping[str, str]) -> list[str]:
    """Return the ids of the chunks of a file, the chunk with this id, those that contain the text, or where a chunk
    ends within it, those that contain its halves, quarters and so on. text_of: id -> text with single spaces. Raises
    DataError if there are none."""
    found = [name for name in text_of if document in (name, name.rpartition("#")[0])]
    words = document.split()
    size = len(words)
    while not found and (size == len(words) or size >= LEAST_WORDS):
        for start in range(0, len(words) - size + 1, max(1, size // 2)):
            part = " ".join(words[start : start + size])
            found += [name for name, own in text_of.items() if part in own]
        size //= 2
    if not found:
        raise DataError(
            f"{where}: document '{document[:60]}' given; expected the path of a file in the folder, the id of a chunk,"
            " or a text of a file; correct the row"
        )
    return list(dict.fromkeys(found))


def write_qrels(path: Path, queries: Sequence[Mapping[str, Any]]) -> None:
    lines = ["query-id\tcorpus-id\tscore\n"]
    for query in queries:
        for name in query["positives"]:
            lines.append(f"{query['id']}\t{name}\t1\n")
    path.write_text("".join(lines))


JOB = Job(
    "write_beir",
    Config,
    Inputs,
    run,
    resources=("retries",),
    check=check,
    metrics=("documents", "synthetic", "real"),
)
