"""Which format a path holds, and the data in it."""

from __future__ import annotations

from pathlib import Path

from data import beir, eedi, flag_embedding
from data.errors import DataError
from data.retrieval import Retrieval, checked


def load(path: Path) -> Retrieval:
    """Eedi CSVs, FlagEmbedding JSONL or a BEIR folder, checked. Raises DataError naming file and line."""
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; expected data; check the path")
    if (path / eedi.MAPPING).exists() or (path / "train.csv").exists():
        data = eedi.read(path)
    elif (path / "corpus.jsonl").exists() or (path / "queries.jsonl").exists():
        data = beir.read(path)
    elif path.is_file() and path.suffix in (".jsonl", ".json"):
        data = flag_embedding.read(path)
    elif (
        path.is_dir() and len(files := [p for p in sorted(path.glob("*.jsonl")) if p.name != flag_embedding.POOL]) == 1
    ):
        data = flag_embedding.read(files[0])
    else:
        raise DataError(
            f"{path}: no known format; expected a folder with train.csv and {eedi.MAPPING} (Eedi), one with"
            " corpus.jsonl, queries.jsonl and qrels/ (BEIR), or a .jsonl file (FlagEmbedding)"
        )
    return checked(data, str(path))
