"""How near embedding, scoring and search are to the lower limit of their time, the time of their matrix products alone.

    python -m benchmarks.limits.roofline [--data EEDI] [--texts 500] [--rounds 5]

The products of one run (linear layers, and attention as a whole) are recorded with their shapes, and then computed
alone, on random numbers of the same shapes. The rest of the time is tokenization, norms, activations and selection. The
measured limit is lower than a real run could reach: the products alone use one weight matrix for each shape, which
stays in the processor's caches.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.inference.embedding import load_texts
from benchmarks.inference.mining import unit
from benchmarks.inference.scoring import cross_encoder, load_lists
from ratchet.models.embedder import encoder
from ratchet.models.model_files import MINILM, resolve
from ratchet.models.search.top_k import top_k

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "scaled_dot_product", "linear")
"""In the names of torch's operators."""

Call = tuple[Any, tuple[Any, ...], tuple[tuple[str, Any], ...]]
"""An operator, its arguments with shapes for tensors, and its options."""


class Shape(NamedTuple):
    """The shape and dtype of a tensor among the arguments of an operator."""

    sizes: tuple[int, ...]
    dtype: torch.dtype


def shape_of(value: Any) -> Any:
    """Return the shape of a tensor, and any other value as it is."""
    return Shape(tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else value


class Recorder(TorchDispatchMode):
    """Counts the products of the operators that run in it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[Call] = Counter()

    def __torch_dispatch__(
        self, operator: Any, types: Any, given: Any = (), options: Any = None
    ) -> Any:
        if any(part in operator.name() for part in PRODUCTS):
            arguments = tuple(map(shape_of, given))
            named = {name: shape_of(value) for name, value in (options or {}).items()}
            self.calls[operator, arguments, tuple(named.items())] += 1
        return operator(*given, **(options or {}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, help="Eedi's folder, a FlagEmbedding .jsonl or a BEIR folder"
    )
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--queries", type=int, default=8, help="with 25 passages each, to score")
    parser.add_argument(
        "--rows",
        type=int,
        default=50_000,
        help="vectors of 384 dimensions, searched by 2,000 queries",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--dtype",
        default="float32",
        choices=["float32", "bfloat16"],
        help="of embedding and scoring",
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    texts = load_texts(given.data)
    texts = [
        texts[i] for i in np.linspace(0, len(texts) - 1, min(given.texts, len(texts))).astype(int)
    ]
    model = encoder.load(resolve(MINILM), dtype=given.dtype, device="cpu")
    print(f"{'':12} {'seconds':>9} {'products':>9} {'share':>6} {'Gflop/s':>9} {'limit':>9}")
    report("embedding", lambda: model.encode(texts, "passage"), given.rounds)
    lists = load_lists(given.data, given.queries, 25)
    with tempfile.TemporaryDirectory() as folder:
        ours, _ = cross_encoder(Path(folder), lists, given.dtype, 32)
        report("scoring", ours, given.rounds)
    random = np.random.default_rng(0)
    query_QD, corpus_ND = unit(random, 2000, 384), unit(random, given.rows, 384)
    left, right = torch.from_numpy(query_QD), torch.from_numpy(corpus_ND).T

    def multiply() -> None:
        for part in right.split(4096, dim=1):
            left @ part

    compare(
        "search",
        lambda: top_k(query_QD, [(0, corpus_ND)], 200),
        multiply,
        2 * left.numel() * given.rows,
        given.rounds,
    )


def report(name: str, work: Callable[[], Any], rounds: int) -> None:
    """Print what `compare` finds for work of one thread of Python."""
    with Recorder() as recorder, FlopCounterMode(display=False) as counter:
        work()
    compare(name, work, replay(recorder.calls), counter.get_total_flops(), rounds)


def compare(
    name: str, work: Callable[[], Any], products: Callable[[], None], operations: int, rounds: int
) -> None:
    """Print the medians of the work and of its products alone, in turns."""
    seconds_R2 = np.array([[clock(work), clock(products)] for _ in range(rounds + 1)][1:])
    whole, alone = np.median(seconds_R2, axis=0)
    rates = [operations / seconds / 1e9 for seconds in (whole, alone)]
    share = np.median(seconds_R2[:, 1] / seconds_R2[:, 0])
    print(
        f"{name:12} {whole:9.3f} {alone:9.3f} {share:6.2f} {rates[0]:9.1f} {rates[1]:9.1f}",
        flush=True,
    )


def replay(calls: Counter[Call]) -> Callable[[], None]:
    """Return a function that does the products on random numbers."""
    known: dict[Shape, torch.Tensor] = {}

    def fill(value: Any) -> Any:
        if isinstance(value, Shape) and value not in known:
            known[value] = torch.randn(value.sizes).to(value.dtype)
        return known[value] if isinstance(value, Shape) else value

    made = [
        (
            operator,
            [fill(one) for one in arguments],
            {name: fill(one) for name, one in options},
            times,
        )
        for (operator, arguments, options), times in calls.items()
    ]

    @torch.inference_mode()
    def run() -> None:
        for operator, arguments, options, times in made:
            for _ in range(times):
                operator(*arguments, **options)

    return run


def clock(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
