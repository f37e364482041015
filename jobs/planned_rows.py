"""Rows that a plan knows, and the needs of searches over them. Imports no model: searches do not depend on one."""

from ratchet.models.pass_size import LIBRARIES
from ratchet.orchestrator.job_interface import Needs, Parents, Result

LARGE_SEARCH = 10**5
"""Rows from which the needs of a search are counted: a smaller one fits on any machine."""
SEARCH_ROW = 200
"""Bytes per row of a search: ids, their index, and hashes of texts. `mine` took 135 with a million queries."""
BM25_CHARACTER = 10
"""Bytes per character of the documents while BM25 indexes them: 8.8 with a million texts of 230, 6 with longer ones."""


def count(parents: Parents, field: str, *names: str) -> int | None:
    """Return the first of the metrics `names` that the step behind an input has; None if it has none of them."""
    metrics = parents.get(field, Result()).metrics
    for name in names:
        if name in metrics:
            return int(metrics[name])
    return None


def count_rows(parents: Parents, field: str) -> int:
    """Return the rows of an input: queries or statements of a split, or documents. 0: not known."""
    part = parents.get(field, Result()).part
    return count(parents, field, f"{part}/queries", f"{part}/statements", "documents") or 0


def estimate_search(rows: int, *, texts: int = 0, disk: float = 0.0) -> Needs | None:
    """Return the needs of a step that ranks documents; on GPUs its tiles are small. rows: documents and queries whose
    ids a worker holds. texts, disk: bytes of texts in memory, and of files."""
    if rows < LARGE_SEARCH:
        return None
    return Needs(0.0, (LIBRARIES + SEARCH_ROW * rows + texts) / 1e9, disk / 1e9)
