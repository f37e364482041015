"""Few-shot examples of queries: training queries with an answer, of the same topic where the data has topics."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from ratchet.data.retrieval import Query


class ExampleDraw:
    """Draws examples from training queries. Never an example of the query's own group, or with its own text."""

    def __init__(self, train: Sequence[Query], seed: int) -> None:
        self.train = train
        self.seed = seed
        self.rows_of: dict[tuple[str, ...], list[int]] = defaultdict(list)
        """The last topics of a query, from one of them on -> rows of `train`. The empty tuple has all rows."""
        for row, query in enumerate(train):
            for start in range(len(query.topics) + 1):
                self.rows_of[query.topics[start:]].append(row)

    def draw(self, query: Query, place: int, count: int, *, trains: bool = False) -> list[Query]:
        """Draw `count` training queries for a query, from its most specific topic first. Fewer if there are not as
        many. place: the index of the query, from which and the seed the draw follows. trains: the query is a training
        query, and no example has one of its answers."""
        random = np.random.default_rng([self.seed, place])
        known = set(query.positives)
        drawn = dict[int, Query]()
        for row in self._list_candidates(query, random, count):
            other = self.train[row]
            is_own = other.text == query.text or (query.group and other.group == query.group)
            tells = trains and not known.isdisjoint(other.positives)
            if not is_own and not tells:
                drawn[row] = other
            if len(drawn) == count:
                break
        return list(drawn.values())

    def _list_candidates(
        self, query: Query, random: np.random.Generator, count: int
    ) -> Iterator[int]:
        """Yield rows, those that share the most specific topic first. Of each topic some come in random order, which
        are enough where most qualify, then all."""
        for start in range(len(query.topics) + 1):
            rows = self.rows_of[query.topics[start:]]
            size = min(len(rows), 64 + 4 * count)
            for place in random.choice(len(rows), size, replace=False).tolist() if rows else ():
                yield rows[place]
            if size < len(rows):
                yield from rows
