"""Hard negatives for shards of queries: the workers of `mine`.

Legend: Q queries of a shard, K ranked documents, D dimensions, N documents of the corpus.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ratchet.data import tables
from ratchet.data.negatives import ChosenNegatives, choose_negatives
from ratchet.data.triplets import KnownPositives, find_corpus_rows, find_own_rows
from ratchet.data.vectors import read_blocks
from ratchet.errors import InputError
from ratchet.jobs.distributed.piece_runner import ReportProgress
from ratchet.jobs.distributed.pieces import Piece
from ratchet.models.search.ranks import Relevant, score_relevant
from ratchet.models.search.top_k import top_k

if TYPE_CHECKING:
    from ratchet.jobs.retrieval.mine import Config, Inputs


MINED = pa.schema(
    [
        *tables.MINED,
        ("random_fill", pa.int32()),
        ("suspects", tables.IDS),
        ("suspect_scores", tables.SCORES),
    ]
)


class Worker:
    """Mines negatives for pieces of shards of queries."""

    def __init__(self, config: "Config", inputs: "Inputs", device: str) -> None:
        self.config = config
        self.inputs = inputs
        self.device = device
        self.ids = tables.read_shards(inputs.corpus, ["id"])["id"].combine_chunks()
        self.text_N = tables.hash_shards(inputs.corpus)
        self.corpus = tables.DocumentRows(pa.chunked_array([self.ids]))
        self.known = KnownPositives.read(inputs.queries, self.corpus, inputs.corpus)
        self.candidates = choose_candidates(config, self.known.list_rows(), len(self.ids))

    def __call__(self, piece: Piece, target: Path, report: ReportProgress) -> dict[str, int]:
        source = piece.source
        whole = tables.read_queries(source)
        query_QD = piece.take_vectors(self.inputs.query_embeddings, whole)
        shard = piece.take(whole)
        positives = Relevant(
            *find_corpus_rows(shard, "positives", self.corpus, str(source), self.inputs.corpus)
        )
        without = np.flatnonzero(np.diff(positives.indptr) == 0)
        if len(without):
            row = int(without[0])
            raise InputError(
                f"{source}: row {piece.first + row}, query '{shard['id'][row]}': no positive given; expected at least"
                " one; remove the query from the training data"
            )
        positive_scores = self._score(query_QD, positives)
        scores_QK, rows_QK = top_k(
            query_QD, self._read(), self.config.window[1], device=self.device
        )
        if self.candidates is not None:
            rows_QK = self.candidates[rows_QK]
        chosen = []
        for q, forbidden in enumerate(self._list_forbidden(shard)):
            best = float(positive_scores[q].max())
            chosen.append(
                choose_negatives(
                    self.config,
                    rows_QK[q],
                    scores_QK[q],
                    best,
                    forbidden,
                    self.text_N,
                    self.config.seed,
                    shard["id"][q].as_py(),
                    self.candidates,
                )
            )
            report(q + 1)
        table = self._make_table(shard, query_QD, positive_scores, chosen)
        tables.write_table(target, table)
        return {
            "rows": len(chosen),
            # Of each query, since counts are added up.
            "candidates": len(chosen)
            * len(self.ids if self.candidates is None else self.candidates),
            "negatives": sum(len(own.rows) for own in chosen),
            "random_fill": sum(own.random_fill for own in chosen),
            "suspects": sum(len(own.suspects) for own in chosen),
        }

    def _list_forbidden(self, shard: pa.Table) -> Iterator[set[int]]:
        """Yield the text hashes that no negative of a query may have: those of the query itself, of the document that
        it is, and of the positives of equal queries."""
        own_Q = find_own_rows(shard, self.corpus)
        text_Q = tables.hash_texts(shard["text"])
        for own, text, query in zip(own_Q, text_Q, tables.hash_queries(shard), strict=True):
            forbidden = {int(text), *self.text_N[self.known.find(query)].tolist()}
            if own >= 0:
                forbidden.add(int(self.text_N[own]))
            yield forbidden

    def _make_table(
        self,
        shard: pa.Table,
        query_QD: np.ndarray,
        positive_scores: list[np.ndarray],
        chosen: list[ChosenNegatives],
    ) -> pa.Table:
        negatives = [own.rows.tolist() for own in chosen]
        suspects = [own.suspects.tolist() for own in chosen]
        columns = {
            "negatives": self._name(negatives),
            "positive_scores": positive_scores,
            "negative_scores": self._score(query_QD, Relevant.from_lists(negatives)),
            "random_fill": [own.random_fill for own in chosen],
            "suspects": self._name(suspects),
            "suspect_scores": self._score(query_QD, Relevant.from_lists(suspects)),
        }
        return tables.complete(columns, shard, MINED)

    def _name(self, rows: list[list[int]]) -> list[list[str]]:
        """Return the ids of corpus rows."""
        return [self.ids.take(pa.array(own, pa.int64())).to_pylist() for own in rows]

    def _score(self, query_QD: np.ndarray, pairs: Relevant) -> list[np.ndarray]:
        """Return the similarities of each query's documents."""
        blocks = read_blocks(self.inputs.corpus_embeddings, self.ids, mapped=True)
        return np.split(score_relevant(query_QD, pairs, blocks), pairs.indptr[1:-1])

    def _read(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the vectors of the candidates, as (index of the first candidate, [n, D] float32)."""
        for first, block_ND in read_blocks(self.inputs.corpus_embeddings, self.ids):
            if self.candidates is None:
                yield first, block_ND
                continue
            start, stop = np.searchsorted(self.candidates, [first, first + len(block_ND)]).tolist()
            if start < stop:
                yield start, block_ND[self.candidates[start:stop] - first]


def choose_candidates(config: "Config", labelled: np.ndarray, documents: int) -> np.ndarray | None:
    """Return the corpus rows that may be negatives, int64, ascending. None: all. labelled: rows of all positives."""
    enough = len(labelled) >= documents / 4 and len(labelled) > config.num_negatives
    if config.candidates == "labelled" or (config.candidates == "auto" and enough):
        return labelled
    return None


def average_scores(folder: Path) -> dict[str, float]:
    """Return the mean similarities of the positives and of the negatives in mined shards."""
    found = {}
    for kind in ("positive", "negative"):
        scores = tables.read_shards(folder, [f"{kind}_scores"])[f"{kind}_scores"]
        found[f"{kind}_similarity"] = round(pc.mean(pc.list_flatten(scores)).as_py() or 0.0, 6)
    return found


def write_suspects(folder: Path, corpus: Path) -> None:
    """Write the suspected false negatives of mined shards as `suspects.jsonl`."""
    text_of = tables.read_texts(corpus, tables.read_listed(folder))
    with (folder / "suspects.jsonl").open("w", encoding="utf-8") as file:
        for path in tables.list_shards(folder):
            for row in pq.read_table(path).to_pylist():
                suspects = []
                for name, score in zip(row["suspects"], row["suspect_scores"], strict=True):
                    suspects.append(
                        {"id": name, "text": text_of[name], "similarity": round(score, 6)}
                    )
                line = {
                    "query_id": row["id"],
                    "query": row["text"],
                    "positives": text_of.find(row["positives"]),
                    "positive_similarity": round(max(row["positive_scores"]), 6),
                    "suspects": suspects,
                }
                if suspects:
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
