"""BEIR folders: `corpus.jsonl`, `queries.jsonl` and `qrels/{train,dev,test}.tsv`."""

from __future__ import annotations

from pathlib import Path

from ratchet.data.formats.text_files import read_field, read_json_objects, read_text
from ratchet.data.retrieval import Document, Query, RetrievalData
from ratchet.errors import DataError

SPLITS = {"train": "train", "dev": "valid", "valid": "valid", "test": "test"}


def read(folder: Path) -> RetrievalData:
    """Read a folder. Documents are title and text; grades above 0 are relevant. Raises DataError
    naming file and line.

    With one qrels file the queries have no split; with several, the name of the file is the split (dev is valid).
    """
    corpus = [
        Document(
            read_field(where, row, "_id", str),
            f"{row.get('title') or ''}\n{read_field(where, row, 'text', str)}".strip(),
        )
        for where, row in read_json_objects(folder / "corpus.jsonl")
    ]
    texts = {
        read_field(where, row, "_id", str): read_field(where, row, "text", str)
        for where, row in read_json_objects(folder / "queries.jsonl")
    }
    documents = {document.id for document in corpus}
    files = sorted((folder / "qrels").glob("*.tsv"))
    if not files:
        raise DataError(f"{folder / 'qrels'}: no .tsv file in it; expected train.tsv, dev.tsv or test.tsv")
    queries: list[Query] = []
    ungraded = 0
    for path in files:
        if path.stem not in SPLITS:
            raise DataError(f"{path}: split '{path.stem}' given; expected train, dev or test; rename the file")
        graded: dict[str, dict[str, int]] = {}
        first: dict[str, str] = {}
        for number, line in enumerate(read_text(path).split("\n"), start=1):
            where = f"{path}:{number}"
            fields = line.split("\t")
            if not line.strip() or (number == 1 and not fields[-1].strip().lstrip("-").isdigit()):
                continue
            if len(fields) != 3 or not fields[2].strip().lstrip("-").isdigit():
                raise DataError(
                    f"{where}: '{line[:60]}' given; expected query-id, corpus-id and an integer score, separated"
                    " by tabs"
                )
            query, document, grade = fields[0], fields[1], int(fields[2])
            if query not in texts:
                raise DataError(f"{where}: query '{query}' is not in queries.jsonl; add it or remove the line")
            if document not in documents:
                raise DataError(f"{where}: document '{document}' is not in corpus.jsonl; add it or remove the line")
            first.setdefault(query, where)
            graded.setdefault(query, {})[document] = grade
        for name, grades in graded.items():
            relevant = {document: grade for document, grade in grades.items() if grade > 0}
            if not relevant:
                ungraded += 1
                continue
            split = SPLITS[path.stem] if len(files) > 1 else None
            queries.append(
                Query(
                    name,
                    texts[name],
                    tuple(relevant),
                    tuple(relevant.values()),
                    group=name,
                    split=split,
                    where=first[name],
                )
            )
    return RetrievalData(corpus, queries, notes={"queries without a relevant document, left out": ungraded})
