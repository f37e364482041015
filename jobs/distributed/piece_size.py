"""The size of the pieces of a map: small maps are cut into pieces, so that all workers have work.

The size does not depend on the number of workers, since it is part of what the result is. Planning imports this module.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ratchet.errors import RatchetError
from ratchet.orchestrator.job_interface import Division

LEAST_ROWS = 64
"""Rows of the smallest pieces: about one forward pass."""
MODEL_PIECES = 64
"""Number of pieces of a small map with a model, so that eight workers end at about the same time."""
GENERATION_PIECES = 16
"""The same for generation: at the end of a piece, few of its answers are still being written."""
SEARCH_PIECES = 16
"""The same for a map whose workers read the whole corpus for each piece."""

SMALL_SEARCH = 10**8
"""Products of a query and a document in a small search: seconds on one core, which is less than a GPU's start."""


def choose_piece_rows(total_rows: int, pieces: int) -> int | None:
    """Return the rows of a piece if a map of `total_rows` has about so many pieces, and at least `LEAST_ROWS`. A shard
    with fewer rows is one piece. pieces: 0: each shard is a piece, and the result is None."""
    if not pieces:
        return None
    return max(LEAST_ROWS, math.ceil(total_rows / pieces))


def divide_input(name: str, pieces: int) -> Callable[[Any, Any], Division]:
    """Return a `Job.divide` for a map over the shards in the input `name`."""

    def divide(config: Any, inputs: Any) -> Division:
        return Division(most=count_pieces(getattr(inputs, name, None), pieces))

    return divide


def divide_search(queries: Path | None, corpus: Path | None) -> Division:
    """Divide the queries of a search in a corpus. A small search is left to one worker without a GPU."""
    rows = count_rows_of_shards(queries)
    documents = count_rows_of_shards(corpus)
    if rows is None or documents is None:
        return Division()
    if sum(rows) * sum(documents) <= SMALL_SEARCH:
        return Division(most=1, gpus=False)
    return Division(most=count_pieces(queries, SEARCH_PIECES))


def count_pieces(folder: Path | None, pieces: int) -> int | None:
    """Return the number of pieces of the shards in a folder; None if they do not exist yet, or cannot be read."""
    rows = count_rows_of_shards(folder)
    if rows is None:
        return None
    size = choose_piece_rows(sum(rows), pieces)
    return sum(1 if size is None else max(1, math.ceil(own / size)) for own in rows)


def count_rows_of_shards(folder: Path | None) -> list[int] | None:
    """Return the number of rows of each shard in a folder; None if they do not exist yet, or cannot be read, which the
    job reports."""
    if folder is None or not folder.is_dir():
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ratchet.data.tables import list_shards

    with suppress(RatchetError, OSError, pa.ArrowInvalid):
        return [pq.read_metadata(path).num_rows for path in list_shards(folder)]
    return None
