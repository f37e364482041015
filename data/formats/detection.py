"""Detection of the format of a path, and loading of the data in it."""

from __future__ import annotations

from pathlib import Path

from ratchet.data.formats import beir, eedi, flag_embedding
from ratchet.data.retrieval import RetrievalData, check_data
from ratchet.errors import DataError
from ratchet.files import open_regular


def load_retrieval(path: Path) -> RetrievalData:
    """Load and check Eedi CSVs, a FlagEmbedding JSONL or a BEIR folder. Raises DataError naming file and line."""
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; expected data; check the path")
    if not path.is_dir():
        open_regular(path).close()
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
    return check_data(data, str(path))
