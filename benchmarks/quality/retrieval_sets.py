"""The data sets of the benchmarks in this folder, and their splits: one split for each seed, by group, with unseen
labels."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ratchet.data.negative_settings import NegativeSettings
from ratchet.data.negatives import choose_negatives
from ratchet.data.retrieval import Document, Query, RetrievalData
from ratchet.data.retrieval.splits import leave_out_labels, split_queries
from ratchet.data.tables import CORPUS, GROUPED, IDS, MINED, RANKED, hash_texts, write_shards


def load(source: str) -> RetrievalData:
    from ratchet.jobs.retrieval.prepare import Config, Inputs
    from ratchet.jobs.retrieval.splits import load_data

    kind, _, rest = source.partition("=")
    readers = {
        "squad": read_squad,
        "squad-sentences": read_squad_sentences,
        "stacks": read_statements,
    }
    if kind in readers:
        return readers[kind](Path(rest))
    if source == "generated":
        return load_data(Config(questions=320), Inputs())
    path, _, options = source.partition("?")
    return load_data(Config(reading=(options,)), Inputs(data=(Path(path),)))


def read_squad(path: Path) -> RetrievalData:
    corpus: list[Document] = []
    queries: list[Query] = []
    for article in json.loads(path.read_text())["data"]:
        for paragraph in article["paragraphs"]:
            corpus.append(Document(f"{len(corpus)}", paragraph["context"]))
            queries += [
                Query(one["id"], one["question"], (corpus[-1].id,), (1,), group=article["title"])
                for one in paragraph["qas"]
            ]
    return RetrievalData(corpus, queries)


def read_squad_sentences(path: Path) -> RetrievalData:
    """Return SQuAD's questions against the sentences of its paragraphs: that of the answer is relevant (the task of
    GLUE's QNLI)."""
    corpus: list[Document] = []
    queries: list[Query] = []
    for article in json.loads(path.read_text())["data"]:
        for paragraph in article["paragraphs"]:
            ends = [one.end() for one in re.finditer(r"[.!?]\s+(?=[A-Z])", paragraph["context"])]
            starts, first = [0, *ends], len(corpus)
            texts = [
                paragraph["context"][start:end]
                for start, end in zip(starts, [*ends, None], strict=True)
            ]
            corpus += [
                Document(str(first + number), text.strip()) for number, text in enumerate(texts)
            ]
            for one in paragraph["qas"]:
                number = bisect_right(starts, one["answers"][0]["answer_start"]) - 1
                own = (corpus[first + number].id,)
                queries.append(Query(one["id"], one["question"], own, (1,), group=article["title"]))
    return RetrievalData(corpus, queries)


def read_statements(path: Path) -> RetrievalData:
    corpus, queries = [], []
    for number, line in enumerate(path.read_text().splitlines()):
        row = json.loads(line)
        texts = [text for name in ("lemmas", "theorems") for text in row.get(name) or ()]
        if len(texts) > 1:
            names = tuple(f"{number}_{at}" for at in range(1, len(texts)))
            corpus += [Document(name, text) for name, text in zip(names, texts[1:], strict=True)]
            queries.append(
                Query(str(number), texts[0], names, (1,) * len(names), group=str(number))
            )
    return RetrievalData(corpus, queries)


def split(
    queries: Sequence[Query],
    seed: int,
    most: Mapping[str, int],
    unseen: float,
    valid_fraction: float = 0.0,
) -> dict[str, list[Query]]:
    """Return the splits train, valid (unless its fraction is 0) and test, which share no group. Of each, at most so
    many are drawn. At least a fraction `unseen` of the held-out queries has no label of a training query."""
    order = np.random.default_rng(seed)
    found = {
        name: [
            own[i] for i in sorted(order.permutation(len(own))[: most.get(name, len(own))].tolist())
        ]
        for name, own in split_queries(queries, 0.2, valid_fraction, seed, "split").items()
    }
    held_out = [query for name in ("valid", "test") for query in found.get(name, ())]
    return {**found, "train": list(leave_out_labels(found["train"], held_out, unseen))}


def write_beir(
    folder: Path, corpus: Sequence[Document], splits: Mapping[str, Sequence[Query]]
) -> None:
    """Write a BEIR folder, with the groups of the queries. The split valid is its `dev`."""
    (folder / "qrels").mkdir(parents=True)
    documents = [json.dumps({"_id": one.id, "text": one.text}) for one in corpus]
    (folder / "corpus.jsonl").write_text("\n".join(documents) + "\n")
    queries = [
        {"_id": one.id, "text": one.text} | ({"group": one.group} if one.group else {})
        for own in splits.values()
        for one in own
    ]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)) + "\n")
    for name, own in splits.items():
        lines = [f"{query.id}\t{document}\t1" for query in own for document in query.positives]
        path = folder / "qrels" / f"{'dev' if name == 'valid' else name}.tsv"
        path.write_text("query-id\tcorpus-id\tscore\n" + "\n".join(lines) + "\n")


def write_case(
    folder: Path, source: str, seed: int, most: Mapping[str, int], unseen: float
) -> tuple[list[Document], dict[str, list[Query]]]:
    """Write the shards corpus, train, valid and test of a data set. Return the documents, and the splits."""
    data = load(source)
    documents, splits = list(data.corpus), split(data.queries, seed, most, unseen, 0.15)
    write_corpus(folder / "corpus", documents)
    for name, own in splits.items():
        write_queries(folder / name, own)
    return documents, splits


def write_corpus(folder: Path, corpus: Sequence[Document]) -> None:
    write_shards(folder, [{"id": one.id, "text": one.text} for one in corpus], CORPUS, 100_000)


def write_queries(folder: Path, queries: Sequence[Query]) -> None:
    rows = [
        {"id": q.id, "text": q.text, "positives": q.positives, "grades": q.grades, "group": q.group}
        for q in queries
    ]
    write_shards(folder, rows, GROUPED, 100_000)


def write_mined(
    folder: Path,
    corpus: Sequence[Document],
    queries: Sequence[Query],
    score_QN: np.ndarray,
    *,
    seed: int,
    window: tuple[int, int] = (2, 200),
    num_mined: int = 15,
    labelled: bool = False,
    **limits: Any,
) -> None:
    """Write queries with negatives that are drawn as `mine` draws them. score_QN: of all documents. labelled: only
    documents that have queries are drawn. limits: see `NegativeSettings`."""
    row_of = {one.id: row for row, one in enumerate(corpus)}
    text_N, text_Q = (
        hash_texts(pa.chunked_array([[one.text for one in own]])) for own in (corpus, queries)
    )
    options = NegativeSettings(window, num_mined, **limits)
    allowed_N = np.full(len(corpus), not labelled)
    allowed_N[[row_of[name] for query in queries for name in query.positives]] = True
    mined = []
    for query, text, score_N in zip(queries, text_Q.tolist(), score_QN, strict=True):
        rows = np.argsort(-score_N, kind="stable")
        rows = rows[allowed_N[rows]][: window[1]]
        own = [row_of[name] for name in query.positives]
        forbidden = {*text_N[own].tolist(), text}
        best = float(score_N[own].max())
        chosen = choose_negatives(
            options, rows, score_N[rows], best, forbidden, text_N, seed, query.id
        )
        found = {
            name: [corpus[row].id for row in getattr(chosen, name)] for name in ("rows", "suspects")
        }
        negatives = {"negatives": found["rows"], "suspects": found["suspects"]}
        mined.append(
            {"id": query.id, "text": query.text, "positives": query.positives, **negatives}
        )
    write_shards(folder, mined, pa.schema([*MINED, ("suspects", IDS)]), 100_000)


def write_ranking(
    folder: Path,
    corpus: Sequence[Document],
    queries: Sequence[Query],
    score_QN: np.ndarray,
    depth: int,
) -> None:
    """Write the best `depth` documents of queries as `evaluate_retrieval` does."""
    row_of = {one.id: row for row, one in enumerate(corpus)}
    ranking = []
    for query, score_N in zip(queries, score_QN, strict=True):
        order = np.argsort(-score_N, kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(1, len(order) + 1)
        best = order[:depth]
        lists = {"documents": [corpus[row].id for row in best], "scores": score_N[best]}
        ranks = [int(place[row_of[name]]) for name in query.positives]
        ranking.append({"id": query.id, "text": query.text, **lists, "ranks": ranks})
    write_shards(folder, ranking, RANKED, 100_000)


def compute_average_precision(hits: np.ndarray, relevant: int) -> float:
    """Return AP@25 of a list of at most 25 documents. hits: which are relevant, bool. relevant: documents that are."""
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return float((precision * hits).sum() / min(relevant, 25))
