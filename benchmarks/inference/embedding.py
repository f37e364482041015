"""Embedding throughput on one machine: models/embedder/encoder.py compared with sentence-transformers.

    python -m benchmarks.inference.embedding                               # generated questions
    python -m benchmarks.inference.embedding --data EEDI    # Eedi's queries and misconceptions
    python -m benchmarks.inference.embedding --dtype float32 --model PATH

Both use the same model, texts, dtype and number of threads in one process, in alternating rounds. On a shared machine
only the ratio of neighbouring rounds is meaningful. Tokens are counted without padding.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.misconceptions import RULES, format_query, generate_questions
from ratchet.data.formats.detection import load_retrieval
from ratchet.models.embedder import encoder
from ratchet.models.model_files import MINILM, resolve


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, help="Eedi's folder, a FlagEmbedding .jsonl or a BEIR folder"
    )
    parser.add_argument("--model", default=MINILM, help="a folder or a hub id")
    parser.add_argument("--dtype", choices=["both", "float32", "bfloat16"], default="both")
    parser.add_argument("--texts", type=int, default=1000, help="drawn evenly from all; 0: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    texts = load_texts(given.data)
    if 0 < given.texts < len(texts):
        texts = [texts[i] for i in np.linspace(0, len(texts) - 1, given.texts).astype(int)]
    base = resolve(given.model)
    dtypes = ["float32", "bfloat16"] if given.dtype == "both" else [given.dtype]
    results = [compare(base, texts, dtype, given.rounds) for dtype in dtypes]
    print(f"{len(texts)} texts, {given.threads} threads, {given.rounds} rounds; medians")
    print(
        f"{'':9} {'tokens/s':>9} {'peer':>7} {'ratio':>7} {'least..most':>12} {'CPU time':>9} {'|diff|':>8} "
        f"{'cosine':>9}"
    )
    for dtype, found in zip(dtypes, results, strict=True):
        ours, theirs = found.tokens / np.median(found.wall_R2, axis=0)
        ratio_R, cpu_R = (
            seconds_R2[:, 1] / seconds_R2[:, 0] for seconds_R2 in (found.wall_R2, found.cpu_R2)
        )
        span = f"{ratio_R.min():.2f}..{ratio_R.max():.2f}"
        print(
            f"{dtype:9} {ours:9,.0f} {theirs:7,.0f} {np.median(ratio_R):6.2f}x {span:>12} {np.median(cpu_R):8.2f}x"
            f" {found.difference:8.1e} {found.cosine:9.6f}"
        )
    print(
        "peer: sentence-transformers; CPU time: theirs over ours; |diff|: the largest; cosine: the least"
    )


@dataclass
class Comparison:
    """Results of R rounds; column 0 is ours, column 1 is the peer."""

    tokens: int
    wall_R2: np.ndarray
    """Seconds."""
    cpu_R2: np.ndarray
    """CPU seconds of all threads: with --threads 1 nearly independent of other programs on the machine."""
    difference: float
    """Largest absolute difference between two elements."""
    cosine: float
    """Smallest cosine similarity between the two vectors of a text."""


def compare(base: Path, texts: list[str], dtype: str, rounds: int) -> Comparison:
    """Measure both on the same texts, in alternating order."""
    ours = encoder.load(base, dtype=dtype, device="cpu")
    tokens = sum(len(row) for row in ours.tokenize(texts, "passage"))
    ways = [lambda: ours.encode(texts, "passage"), load_peer(base, texts, dtype)]
    vectors = [way() for way in ways]  # the round that warms up
    wall_R2, cpu_R2 = np.empty((rounds, 2)), np.empty((rounds, 2))
    for turn in range(rounds):
        for number in (0, 1) if turn % 2 == 0 else (1, 0):
            wall, cpu = time.perf_counter(), time.process_time()
            ways[number]()
            wall_R2[turn, number], cpu_R2[turn, number] = (
                time.perf_counter() - wall,
                time.process_time() - cpu,
            )
    difference = float(np.abs(vectors[0] - vectors[1]).max())
    lengths = [np.linalg.norm(one, axis=1) for one in vectors]
    cosine = float(((vectors[0] * vectors[1]).sum(axis=1) / (lengths[0] * lengths[1])).min())
    return Comparison(tokens, wall_R2, cpu_R2, difference, cosine)


def load_peer(base: Path, texts: list[str], dtype: str) -> Callable[[], np.ndarray]:
    """Return a function that embeds the texts with the peer."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(
        str(base), device="cpu", model_kwargs={"dtype": getattr(torch, dtype)}
    )
    return lambda: np.asarray(
        model.encode(texts, convert_to_tensor=True, show_progress_bar=False).float()
    )


def load_texts(path: Path | None) -> list[str]:
    """Return the texts of queries and corpus in `path`, or generated ones."""
    if path is None:
        queries = [
            format_query(question, option)
            for question in generate_questions(800, seed=42)
            for option, rule in enumerate(question.rules)
            if rule is not None
        ]
        return queries + [rule.sentence for rule in RULES]
    retrieval = load_retrieval(path)
    return [query.text for query in retrieval.queries] + [
        document.text for document in retrieval.corpus
    ]


if __name__ == "__main__":
    main()
