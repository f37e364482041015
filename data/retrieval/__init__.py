"""Retrieval data: documents, queries, and which documents are relevant to which query."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

LARGE = 256 << 20
"""Bytes of files of which only the first rows are read while planning."""
SAMPLE = 10_000
"""Rows of such files that are read while planning."""

POOL = "candidate_pool.jsonl"
"""Name of FlagEmbedding's file of further documents."""

Teacher = tuple[tuple[float, ...], tuple[float, ...]] | None


@dataclass(frozen=True)
class Document:
    """A document of the corpus. `id` is unique. where: `file:line`, for errors."""

    id: str
    text: str
    where: str = ""


class Query(NamedTuple):
    """A query with its relevant documents.

    group: queries of a group stay in the same split (a question with several wrong answers). split: the split that the
    source assigns. where: `file:line`, for errors. teacher: the teacher scores of the positives and of the negatives,
    if the source has them. task, prompt: the query's instruction for the embedder and for the reranker; empty: the
    model's own. source: the `name` of its data set, or its number, if there are several. topics: from the most
    specific to the most general, such as the construct and the subject of a question; empty: unknown."""

    id: str
    text: str
    positives: tuple[str, ...]
    grades: tuple[int, ...]
    negatives: tuple[str, ...] = ()
    group: str = ""
    split: str | None = None
    where: str = ""
    teacher: Teacher = None
    task: str = ""
    prompt: str = ""
    source: str = ""
    topics: tuple[str, ...] = ()


@dataclass(frozen=True)
class RetrievalData:
    """A corpus and queries with relevance labels. `checks.check_data` checks that ids exist and nothing is empty."""

    corpus: Sequence[Document]
    queries: Sequence[Query]
    notes: dict[str, int] = field(default_factory=dict)
    """Description of what was dropped or merged while reading -> its count."""
    numbered: bool = False
    """Whether the reader numbered the queries, since the data has no ids of them."""
    share: float = 1.0
    """The fraction of the rows that was read: below 1 for a sample."""
    estimate: int | None = None
    """Estimated number of documents, if `corpus` is a sample of them; None: it has all."""
    unread: Sequence[str] = ()
    """Columns and fields of the data that the reader does not use."""

    @property
    def num_documents(self) -> int:
        """Number of documents, estimated for a sample."""
        if self.estimate is None:
            return len(self.corpus)
        return self.estimate
