"""Tables of databases, and documents, as parameters of recipes."""

from typing import Any

from ratchet.data.formats.documents import is_documents
from ratchet.data.vector_tables import Dtype, compute_state, find_address, is_address, open_table
from ratchet.errors import InputError

__all__ = ["Dtype", "describe_table", "is_address", "is_documents", "refuse_empty_table"]


def describe_table(address: str, dtype: Dtype) -> dict[str, Any]:
    """Return the settings `to`, `dtype` and `state` of the jobs that update a table. Raises InputError for a database
    that cannot be opened."""
    where = find_address(address)
    return {"to": where, "dtype": dtype, "state": compute_state(open_table("to", where))}


def refuse_empty_table(parameter: str, address: str) -> None:
    """Raise InputError for a table that does not exist or has no rows."""
    if not open_table(parameter, address).read_digests():
        raise InputError(
            f"{parameter}: {address} given, a table without rows; expected one that `ratchet embed MODEL FILE --to"
            f" {address}` has written"
        )
