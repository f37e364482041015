"""Checks of all retrieval data: ids are unique and known, queries are not empty. Documents may be empty, as they
are in published sets. Readers check that each query has a positive, and that no positive is a negative too."""

from collections.abc import Sequence

from ratchet.data.retrieval import Query, RetrievalData
from ratchet.errors import DataError


def check_data(data: RetrievalData, source: str, least: int = 2) -> RetrievalData:
    """Return the data unchanged. Raises DataError for fewer than `least` documents, a document id that is not unique,
    and a positive or negative that is no document; the latter is not checked for a sample of the documents. Queries are
    checked by `check_queries`."""
    places: dict[str, str] = {}
    for document in data.corpus:
        refuse_repeated(places, document.id, document.where or source, "document id")
    if len(data.corpus) < least:
        raise DataError(
            f"{source}: {len(data.corpus)} documents in the corpus; expected at least {least}, to rank; give more"
        )
    check_queries(data.queries, source)
    if data.estimate is None:
        for query in data.queries:
            for name in (*query.positives, *query.negatives):
                if name not in places:
                    raise DataError(
                        f"{query.where or source}: query '{query.id}' names document '{name}', which is not in the"
                        " corpus; add or remove it"
                    )
    return data


def check_queries(queries: Sequence[Query], source: str) -> None:
    """Raise DataError if there are no queries, for one without a text, and for a repeated id."""
    if not queries:
        raise DataError(f"{source}: there are no queries; expected at least one; check the path")
    places: dict[str, str] = {}
    for query in queries:
        where = query.where or source
        if not query.text.strip():
            raise DataError(
                f"{where}: query '{query.id}' has no text; expected some; remove it or fill it"
            )
        refuse_repeated(places, query.id, where, "query id")


def refuse_repeated(places: dict[str, str], name: str, where: str, what: str) -> None:
    """Record the place of a name. Raises DataError, with both places, if it already has another place."""
    first = places.setdefault(name, where)
    if first == where:
        return
    raise DataError(
        f"{where}: {what} '{name[:60]}' is also at {first}; expected unique ids; rename or remove one"
    )
