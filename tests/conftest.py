"""Fixtures for jobs: a small local Ray, contexts to run jobs in, and small retrieval problems and models."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
import torch
from nodes import Nodes, environment_of

from ratchet.data.tables import (
    CORPUS,
    MINED,
    QUERIES,
    embeddings_schema,
    write_mapped,
    write_shards,
)
from ratchet.orchestrator.job_interface import Context, Resources

MakeContext = Callable[..., Context]

CONCEPTS = 12

# Trainings are compared byte by byte, and two processes of tests share the cores.
os.environ.setdefault("RATCHET_FIXED_THREADS", "1")

# A time is no property: machines are slow at times.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All integration tests are slow ones."""
    for item in items:
        if item.nodeid.startswith("tests/integration/"):
            item.add_marker("slow")


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """One cluster for the whole session. Ray ends the process without a message when a second cluster of the same
    process cannot be reached in time."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def shared_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """The option of the command that names a Ray which runs for the whole session. Starting and ending a Ray of its own
    is most of the time of a short run."""
    from ratchet.orchestrator.execution.cluster import SYSTEM

    home = tmp_path_factory.mktemp("shared-ray")
    options = ("--num-cpus=2", "--include-dashboard=false", f"--system-config={json.dumps(SYSTEM)}")
    nodes = Nodes(home, environment_of(home), *options)
    yield "--address", nodes.address
    nodes.end()


@pytest.fixture
def context(tmp_path: Path) -> MakeContext:
    """Make a context: context(attempt=1, ...). Attempts share `work`; each has its own empty `out`."""
    made = 0

    def make(attempt: int = 1, name: str = "step", **resources: float) -> Context:
        nonlocal made
        made += 1
        out, work = tmp_path / f"{name}-out-{made}", tmp_path / f"{name}-work"
        out.mkdir()
        work.mkdir(exist_ok=True)
        asked = Resources(**{"workers": 1, "cpus": 2.0, "gpus": 0.0, "retries": 2} | resources)  # type: ignore[arg-type]
        return Context(name, "0" * 64, attempt, out, work, asked)

    return make


class Problem:
    """A small retrieval problem with embeddings, written as shards: `queries`, `corpus` and `*_embeddings`."""

    def __init__(
        self, folder: Path, queries: int = 60, documents: int = 200, dim: int = 8, seed: int = 0
    ) -> None:
        random = np.random.default_rng(seed)
        # Few distinct values give ties.
        self.corpus_ND = random.integers(-2, 3, (documents, dim)).astype(np.float32)
        self.query_QD = random.integers(-2, 3, (queries, dim)).astype(np.float32)
        self.ids = [f"d{number}" for number in range(documents)]
        # Some documents share a text with another, and some queries with a document.
        self.texts = [f"document {number % (documents - 10)}" for number in range(documents)]
        self.positives = [
            sorted(random.choice(documents, int(random.integers(1, 4)), replace=False).tolist())
            for _ in range(queries)
        ]
        self.query_texts = [f"document {q}" if q % 7 == 0 else f"query {q}" for q in range(queries)]
        self.grades = [random.integers(1, 4, len(rows)).tolist() for rows in self.positives]
        self.queries, self.corpus = folder / "queries", folder / "corpus"
        self.query_embeddings, self.corpus_embeddings = (
            folder / "query_vectors",
            folder / "corpus_vectors",
        )
        documents_rows = [{"id": i, "text": t} for i, t in zip(self.ids, self.texts, strict=True)]
        queries_rows = [
            {
                "id": f"q{q}",
                "text": self.query_texts[q],
                "positives": [self.ids[row] for row in rows],
                "grades": self.grades[q],
                "negatives": [],
            }
            for q, rows in enumerate(self.positives)
        ]
        for name, rows, schema, each in (
            (self.corpus, documents_rows, CORPUS, 64),
            (self.queries, queries_rows, QUERIES, 25),
        ):
            write_shards(name, rows, schema, each)
        self.write_vectors(self.corpus_embeddings, self.ids, self.corpus_ND, 64)
        self.write_vectors(
            self.query_embeddings, [f"q{q}" for q in range(queries)], self.query_QD, 25
        )

    @staticmethod
    def write_vectors(folder: Path, ids: list[str], vectors_ND: np.ndarray, each: int) -> None:
        dim = vectors_ND.shape[1]
        for number, start in enumerate(range(0, len(ids), each)):
            part = pa.FixedSizeListArray.from_arrays(
                pa.array(vectors_ND[start : start + each].ravel()), dim
            )
            table = pa.Table.from_arrays(
                [pa.array(ids[start : start + each]), part], schema=embeddings_schema(dim)
            )
            write_mapped(folder / f"shard-{number:05d}.arrow", table)

    def ranking(self, q: int) -> list[int]:
        """Rows of all documents for a query by a full sort: best score first, ties by row."""
        scores = self.corpus_ND @ self.query_QD[q]
        return sorted(range(len(self.ids)), key=lambda row: (-scores[row], row))


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    return Problem(tmp_path / "problem")


@pytest.fixture(scope="session")
def concepts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with base/ (a tiny BERT), corpus/, mined/ and valid/. The queries of a concept share no word with its
    text, so lexical search finds nothing."""
    folder = tmp_path_factory.mktemp("concepts")
    save_tiny_bert(folder / "base")
    random = np.random.default_rng(0)
    corpus = [
        {"id": f"c{c}", "text": " ".join(f"t{c}x{w}" for w in range(3 + c % 5))}
        for c in range(CONCEPTS)
    ]
    corpus += [{"id": "twin", "text": corpus[0]["text"]}]

    def queries(start: int, count: int) -> list[dict[str, Any]]:
        made = []
        for q in range(start, start + count):
            c = q % CONCEPTS
            words = [f"q{c}x{w}" for w in random.permutation(6)[:3]] + [
                f"n{random.integers(40)}" for _ in range(q % 7)
            ]
            right = [f"c{c}", "twin"] if c == 0 else [f"c{c}"]
            wrong = [f"c{d}" for d in random.permutation(CONCEPTS)[:6] if d != c]
            made.append(
                {"id": f"q{q}", "text": " ".join(words), "positives": right, "negatives": wrong}
            )
        return made

    write_shards(folder / "corpus", corpus, CORPUS, 10)
    scores = {"positive_scores": [], "negative_scores": []}
    write_shards(folder / "mined", [row | scores for row in queries(0, 96)], MINED, 50)
    held_out = [row | {"grades": [1] * len(row["positives"])} for row in queries(96, 36)]
    write_shards(folder / "valid", held_out, QUERIES, 50)
    return folder


def save_tiny_bert(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"n{i}" for i in range(40))]
    words += [f"{kind}{c}x{w}" for kind in "tq" for c in range(CONCEPTS) for w in range(8)]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(folder)
    torch.manual_seed(1)
    size = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    shape = BertConfig(
        vocab_size=len(words), max_position_embeddings=64, initializer_range=0.2, **size
    )
    BertModel(shape, add_pooling_layer=False).save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return an encoder and decoders with relative and with absolute positions."""
    from tiny_models import save_model

    return {
        kind: save_model(tmp_path_factory.mktemp(kind), kind) for kind in ("bert", "qwen2", "gpt2")
    }


@pytest.fixture(scope="session")
def tiny_decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2. Its tokens are bytes and the words Yes and No; its width is the block size of 4-bit weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("decoder")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: i for i, name in enumerate(["<pad>", "<end>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    names = {
        "pad_token": "<pad>",
        "eos_token": "<end>",
        "unk_token": "<end>",
    }  # Qwen2 would add its own
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    fast.add_tokens(["Yes", "No"])
    fast.save_pretrained(folder)
    size = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    heads = {"num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.2}
    torch.manual_seed(0)
    Qwen2ForCausalLM(
        Qwen2Config(vocab_size=len(fast), pad_token_id=0, **size, **heads)
    ).save_pretrained(folder)
    return folder
