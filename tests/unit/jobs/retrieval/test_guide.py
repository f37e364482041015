"""A guide masks the negatives that are nearer to the query than the positive, according to its vectors."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from embedder_finetuning import FAST
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import GISTEmbedLoss

from ratchet.data.guide import Guide
from ratchet.data.tables import read_shards
from ratchet.data.triplets import Triplets
from ratchet.data.vectors import read_selected, write_vectors
from ratchet.errors import DataError, InputError
from ratchet.jobs.retrieval.embedder_training import EmbedderTask
from ratchet.jobs.retrieval.finetune_embedder import Inputs, check
from ratchet.jobs.training.worker import WorkerInfo
from ratchet.models.embedder import encoder
from ratchet.orchestrator.job_interface import Resources

DIM = 6


def write_shards_of(folder: Path, table: pa.Table, vectors: np.ndarray) -> Path:
    folder.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(len(table)), 3)):
        write_vectors(folder / f"shard-{number:05d}.arrow", table["id"].take(rows), vectors[rows])
    return folder


def guided(concepts: Path, folder: Path, query_QD: np.ndarray, corpus_ND: np.ndarray) -> Inputs:
    plain = Inputs(concepts / "base", concepts / "mined", concepts / "corpus", concepts / "valid")
    return dataclasses.replace(
        plain,
        guide_queries=write_shards_of(folder / "queries", read_shards(concepts / "mined"), query_QD),
        guide_corpus=write_shards_of(folder / "corpus", read_shards(concepts / "corpus"), corpus_ND),
    )


@pytest.mark.parametrize("margin", [0.0, 0.3, -0.3])
def test_passages_above_the_positive_are_masked(concepts: Path, tmp_path: Path, margin: float) -> None:
    random, mined, corpus = np.random.default_rng(0), *(read_shards(concepts / name) for name in ("mined", "corpus"))
    # Multiples of 1/8 are exact in float16, and no two cosines are as near to each other as its rounding.
    query_QD, corpus_ND = (
        np.round(random.standard_normal((len(table), DIM)) * 8).astype(np.float32) / 8 for table in (mined, corpus)
    )
    inputs = guided(concepts, tmp_path, query_QD, corpus_ND)
    triplets = Triplets(mined, corpus, batch_size=16, num_negatives=3)
    assert inputs.guide_queries
    assert inputs.guide_corpus
    guide = Guide(triplets, corpus, inputs.guide_queries, inputs.guide_corpus)
    masked = 0
    for step in range(3):
        batch = triplets.batch(0, step)
        found_QP = guide.find_suspects(batch, margin)
        for q, query in enumerate(batch.query_Q):
            cosine_P = [
                float(query_QD[query] @ corpus_ND[row])
                / float(np.linalg.norm(query_QD[query]) * np.linalg.norm(corpus_ND[row]))
                for row in batch.passage_P
            ]
            own = batch.own_Q[q][0]
            for p, cosine in enumerate(cosine_P):
                if abs(cosine - cosine_P[own] + margin) > 2e-3:
                    assert found_QP[q, p] == (p != own and cosine > cosine_P[own] - margin)
                    masked += int(found_QP[q, p])
    assert masked


def test_the_loss_is_that_of_sentence_transformers(concepts: Path, tmp_path: Path) -> None:
    base = encoder.load(concepts / "base", dtype="float32", device="cpu")
    mined, corpus = (read_shards(concepts / name) for name in ("mined", "corpus"))
    vectors = base.encode(mined["text"].to_pylist(), "query"), base.encode(corpus["text"].to_pylist(), "passage")
    inputs = guided(concepts, tmp_path, *vectors)
    config = dataclasses.replace(FAST, method="full", num_negatives=0, batch_size=8, guide_margin=0.01)
    place = WorkerInfo(0, 1, "cpu"), Resources(1, cpus=1.0, gpus=0.0)
    unguided = dataclasses.replace(inputs, guide_queries=None, guide_corpus=None)
    task, without = (EmbedderTask(place[0], config, given, place[1]) for given in (inputs, unguided))
    data = task.triplets
    steps = [(step, data.batch(0, step)) for step in range(task.steps[0])]
    # Where two queries have one positive, its text counts twice there.
    step, batch = next((step, batch) for step, batch in steps if len(batch.passage_P) == len(batch.query_Q))
    ours, plain = (one.loss(one.batch(0, step).microbatches[0]).item() for one in (task, without))

    peer, guide = (SentenceTransformer(str(concepts / "base"), device="cpu") for _ in range(2))
    loss = GISTEmbedLoss(
        peer, guide, temperature=config.temperature, margin=0.01, contrast_anchors=False, contrast_positives=False
    )
    rows = batch.passage_P[[own[0] for own in batch.own_Q]]
    columns = [data.query_text.take(batch.query_Q), data.corpus_text.take(rows)]
    with torch.no_grad():
        features = [peer.preprocess(column.to_pylist()) for column in columns]
        expected = loss(features, torch.zeros(8)).item()
    assert ours == pytest.approx(expected, rel=1e-4)
    assert plain > 1.01 * ours, "the guide masked something"


def test_queries_that_a_weight_repeats_have_their_vectors(tmp_path: Path) -> None:
    ids = pa.chunked_array([["b", "a", "b"], ["c", "a", "b"]])
    vectors = np.array([[ord(name)] * DIM for name in ids.to_pylist()], np.float32)
    folder = write_shards_of(tmp_path / "v", pa.table({"id": ids}), vectors)
    assert np.array_equal(read_selected(folder, ids), vectors)
    with pytest.raises(DataError, match="has no vector of 'd'"):
        read_selected(folder, pa.chunked_array([["a", "d", "d"]]))


def test_half_a_guide_and_texts_without_vectors_are_refused(concepts: Path, tmp_path: Path) -> None:
    mined, corpus = (read_shards(concepts / name) for name in ("mined", "corpus"))
    inputs = guided(concepts, tmp_path, *(np.ones((len(table), DIM), np.float32) for table in (mined, corpus)))
    with pytest.raises(InputError, match="only guide_corpus given; expected both"):
        check(FAST, dataclasses.replace(inputs, guide_queries=None), {})
    with pytest.raises(InputError, match=r"guide_margin: 0.1 given, without a guide"):
        check(
            dataclasses.replace(FAST, guide_margin=0.1),
            dataclasses.replace(inputs, guide_queries=None, guide_corpus=None),
            {},
        )
    with pytest.raises(DataError, match="has no vector of 'q0'"):
        Guide(Triplets(mined, corpus), corpus, tmp_path / "corpus", tmp_path / "corpus")
    write_shards_of(tmp_path / "wider", mined, np.ones((len(mined), DIM + 1), np.float32))
    with pytest.raises(DataError, match=r"vectors of 7 dimensions, and .*: of 6; expected those of one guide"):
        Guide(Triplets(mined, corpus), corpus, tmp_path / "wider", tmp_path / "corpus")
