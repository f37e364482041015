"""Texts with their vectors in databases and files, kept up to date by id, and searched.

A table has the columns id, text, those of the data, digest (which tells whether a row has changed) and vector. Its
address is `lancedb://FOLDER/TABLE`, `qdrant://FOLDER/COLLECTION` (Qdrant's local mode), `qdrant://HOST:PORT/COLLECTION`,
`pgvector://USER@HOST/DATABASE/TABLE` or `parquet://FOLDER`.
"""

import importlib
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

from ratchet.errors import InputError
from ratchet.extras import require_extra

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

Dtype = Literal["float32", "float16", "int8", "binary"]
OWN_COLUMNS = ("id", "text", "digest", "vector")

PACKAGES = {
    "lancedb": ("lancedb",),
    "qdrant": ("qdrant_client",),
    "pgvector": ("psycopg", "pgvector"),
    "parquet": (),
}
"""Scheme of an address -> the packages of the extra of this name."""


class Found(NamedTuple):
    """A row of a table that was found."""

    id: str
    text: str
    score: float
    """A higher one is better."""


class VectorTable(Protocol):
    """A table, which need not exist before it is written."""

    dtypes: Sequence[Dtype]
    """What vectors can be stored as."""

    def read_digests(self) -> Mapping[str, str]:
        """Return id -> digest of each row; empty for a table that does not exist."""

    def write(self, rows: "pa.Table", dtype: Dtype) -> None:
        """Add rows; those with known ids replace the old ones. vector: fixed-size lists of what `convert_vectors` made
        (of float32 for Qdrant, which converts them itself)."""

    def delete(self, ids: Sequence[str]) -> None: ...

    def find(self, query_D: "np.ndarray", k: int) -> list[Found]:
        """Return the k rows nearest to a float32 vector of length 1, the best first."""


def is_address(text: str) -> bool:
    """Whether a text is the address of a table."""
    return urlsplit(text).scheme in PACKAGES


def open_table(where: str, address: str) -> VectorTable:
    """Open a table. Raises InputError, beginning with `where`, for an address of another form, a missing package, and a
    database that does not answer."""
    parts = urlsplit(address)
    place, _, name = f"{parts.netloc}{parts.path}".rpartition("/")
    if parts.scheme == "parquet":
        place = f"{parts.netloc}{parts.path}"
    if parts.scheme not in PACKAGES or not place or not (name or parts.scheme == "parquet"):
        raise InputError(
            f"{where}: {address} given; expected lancedb://FOLDER/TABLE, qdrant://FOLDER/COLLECTION,"
            " qdrant://HOST:PORT/COLLECTION, pgvector://USER@HOST/DATABASE/TABLE or parquet://FOLDER"
        )
    require_extra(f"{where}: {address} given", parts.scheme, *PACKAGES[parts.scheme])
    module = importlib.import_module(f"{__name__}.{parts.scheme}_table")
    try:
        return module.Table(place, name, parts.query)  # type: ignore[no-any-return]
    except Exception as error:  # of one of several clients
        said = " ".join(str(error).split())[:200]
        raise InputError(
            f"{where}: {address} cannot be opened ({said}); expected a database; start it, or correct the address"
        ) from None


def compute_state(table: VectorTable) -> str:
    """Return a digest of the ids and digests of all rows."""
    state = sha256()
    for name, digest in sorted(table.read_digests().items()):
        state.update(f"{name}\n{digest}\n".encode())
    return state.hexdigest()


def open_unchanged(where: str, address: str, state: str) -> VectorTable:
    """Open a table. Raises InputError if its rows are not those of `compute_state`."""
    table = open_table(where, address)
    if compute_state(table) != state:
        raise InputError(
            f"{where}: {address} has changed since the run was planned; expected one run at a time; run the command"
            " again"
        )
    return table


def find_address(address: str) -> str:
    """Return an address with the absolute path of its folder, for processes that run elsewhere."""
    parts = urlsplit(address)
    is_server = parts.scheme == "pgvector" or (parts.scheme == "qdrant" and parts.port)
    if parts.scheme not in PACKAGES or is_server:
        return address
    return f"{parts.scheme}://{Path(parts.netloc + parts.path).expanduser().absolute()}"
