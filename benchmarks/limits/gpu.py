"""Decoders of 0.5B and 7B on one GPU, beside sentence-transformers with the same weights: tokens per second, FLOP/s as
a share of the GPU's measured bfloat16 matmul rate, and memory beside what the plan foresees. Takes about 8 minutes.

    python -m benchmarks.limits.gpu          # shapes of Qwen2.5, random weights: embedding, scoring, finetuning, QLoRA
    python -m benchmarks.limits.gpu --tiny   # the same code at a toy's shape, on any machine

Exact search is measured too, with torch and, where faiss-gpu is installed, with its `knn_gpu`.

Only necessary FLOPs are counted: with N weights in the layers, the forward pass of a token takes 2 N, and its backward
pass with LoRA 2 N more (the frozen weights need no gradient). Attention, the head and padding are left out. Scoring
computes the tokens of a query once for all its pairs; `pairs/s` shows the effect. The matmul rate is measured in the
same run, with a product of two matrices of 8192 x 8192.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.inference.scoring import Lists, load_lists, save_tokenizer
from ratchet.jobs.inference import InferenceConfig
from ratchet.models.embedder import encoder
from ratchet.models.meta import footprint
from ratchet.models.presets import PROMPT
from ratchet.models.reranker import reranker

QWEN = {
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152_064,
}
"""Qwen2.5-7B's."""

SMALL = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
}
"""Qwen2.5-0.5B's."""

TINY = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 8192,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tiny", action="store_true", help="a toy's shape, on the CPU if there is no GPU"
    )
    parser.add_argument(
        "--data", type=Path, help="Eedi's folder, a FlagEmbedding .jsonl or a BEIR folder"
    )
    parser.add_argument("--queries", type=int, default=256)
    parser.add_argument("--batch-tokens", type=int, default=16_384)
    parser.add_argument(
        "--steps", type=int, default=4, help="of finetuning; one more is done before"
    )
    given = parser.parse_args()
    if not torch.cuda.is_available() and not given.tiny:
        sys.exit(
            "benchmarks.limits.gpu: no CUDA device found; expected one; run it where there is one, or give --tiny"
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lists = load_lists(given.data, given.queries, 25)
    peak = matmul_flops(device, 512 if given.tiny else 8192)
    print(
        f"{torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}: matmul {peak / 1e12:.1f} TFLOP/s"
    )
    search(device, 10_000 if given.tiny else 1_000_000)
    for shape in (TINY,) if given.tiny else (SMALL, QWEN):
        with tempfile.TemporaryDirectory() as name:
            measure(Path(name), shape, lists, device, given, peak)


def measure(
    folder: Path,
    shape: dict[str, int],
    lists: Lists,
    device: str,
    given: argparse.Namespace,
    peak: float,
) -> None:
    base = save_model(folder / "base", shape, lists, device)
    print(f"{weights_of(shape) / 1e9:.2f} billion weights in layers")
    print(f"{'':20} {'tokens/s':>10} {'TFLOP/s':>8} {'of peak':>8} {'peak GB':>9} {'foreseen':>9}")
    row("embedding", *embedding(base, lists, device, given.batch_tokens), peak)
    row("  sentence-transf.", *other_embedding(base, lists, device), peak)
    row("scoring", *scoring(base, lists, device, given.batch_tokens), peak)
    for quantization in ("none", "nf4"):
        label = "finetuning" if quantization == "none" else "finetuning, QLoRA"
        made = finetuning(base, folder / quantization, lists, device, quantization, given.steps)
        row(label, *made, peak)


def search(device: str, documents: int) -> None:
    """Time an exact search of the 100 best of the documents for 4,096 queries, in 768 dimensions."""
    import faiss
    import numpy as np

    from ratchet.models.search.top_k import top_k

    random = np.random.default_rng(0)
    corpus_ND = random.standard_normal((documents, 768), dtype=np.float32)
    query_QD = random.standard_normal((4096, 768), dtype=np.float32)
    blocks = [(first, corpus_ND[first : first + 65_536]) for first in range(0, documents, 65_536)]
    ours = timed(lambda: top_k(query_QD, blocks, 100, device=device), device)
    print(f"search in {documents:,}: torch {ours:.2f} s", end="")
    if faiss.get_num_gpus():
        resources = faiss.StandardGpuResources()
        metric = faiss.METRIC_INNER_PRODUCT
        theirs = timed(
            lambda: faiss.knn_gpu(resources, query_QD, corpus_ND, 100, metric=metric), device
        )
        print(f", knn_gpu {theirs:.2f} s", end="")
    print()


def row(
    label: str,
    tokens: float,
    seconds: float,
    flops_per_token: float,
    more: str,
    foreseen: float,
    peak: float,
) -> None:
    """foreseen: GB of GPU memory."""
    memory = torch.cuda.max_memory_reserved() / 1e9 if torch.cuda.is_available() else float("nan")
    rate = tokens / seconds
    flops = rate * flops_per_token
    print(
        f"{label:20} {rate:10,.0f} {flops / 1e12:8.2f} {flops / peak:8.1%} {memory:9.1f} {foreseen:9.1f}  {more}",
        flush=True,
    )
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def save_model(folder: Path, shape: dict[str, Any], lists: Lists, device: str) -> Path:
    """Random weights, drawn where they are fast to draw."""
    config = transformers.Qwen2Config(**shape, max_position_embeddings=4096, pad_token_id=0)
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    save_tokenizer(folder, [*lists[0], *(text for own in lists[1] for text in own), PROMPT])
    return folder


def matmul_flops(device: str, size: int) -> float:
    """FLOP/s of a product of two square bfloat16 matrices."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = timed(lambda: [a @ b for _ in range(10)], device)
    return 10 * 2 * size**3 / seconds


def timed(work: Callable[[], Any], device: str) -> float:
    """Seconds of the second of two rounds."""
    for _ in range(2):
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
    return time.perf_counter() - start


def layer_weights(model: Any) -> int:
    """Weights that every token is multiplied with: those of the layers."""
    return sum(
        p.numel() for name, p in model.named_parameters() if "layers." in name and p.ndim == 2
    )


def weights_of(shape: dict[str, int]) -> int:
    """The same, of a shape: weights in 4 bits do not tell their number."""
    d, keys = (
        shape["hidden_size"],
        shape["hidden_size"] // shape["num_attention_heads"] * shape["num_key_value_heads"],
    )
    return shape["num_hidden_layers"] * (
        2 * d * d + 2 * d * keys + 3 * d * shape["intermediate_size"]
    )


def foresee(base: Path, kind: Any, length: int, batch_tokens: int) -> float:
    """Return the GB of GPU memory that the plan foresees for inference with passes of this many tokens."""
    config = InferenceConfig(dtype="bfloat16")
    rows = max(1, batch_tokens // length)
    found = footprint.estimate_inference(
        base, kind, config, 1.0, rows=rows, length=length, has_adapter=False
    )
    return found["gpu_memory"] if found else float("nan")


def other_embedding(
    base: Path, lists: Lists, device: str
) -> tuple[float, float, float, str, float]:
    """Embed the same texts with sentence-transformers, in its batches of 32 and in bfloat16."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    options = {"dtype": torch.bfloat16}
    layers = Transformer(str(base), model_args=options)
    pooling = Pooling(layers.get_word_embedding_dimension(), "lasttoken")
    model = SentenceTransformer(modules=[layers, pooling], device=device)
    texts = [*lists[0], *(text for own in lists[1] for text in own)]
    tokens = sum(map(len, model.tokenizer(texts)["input_ids"]))
    seconds = timed(lambda: model.encode(texts, show_progress_bar=False), device)
    weights = weights_of(json.loads((base / "config.json").read_text()))
    return tokens, seconds, 2 * weights, f"{len(texts) / seconds:,.0f} texts/s", float("nan")


def embedding(
    base: Path, lists: Lists, device: str, batch_tokens: int
) -> tuple[float, float, float, str, float]:
    ours = encoder.load(base, dtype="bfloat16", device=device)
    texts = [*lists[0], *(text for own in lists[1] for text in own)]
    lengths = [len(ids) for ids in ours.tokenize(texts, "passage")]
    seconds = timed(lambda: ours.encode(texts, "passage", batch_tokens=batch_tokens), device)
    foreseen = foresee(base, "backbone", max(lengths), batch_tokens)
    speed = f"{len(texts) / seconds:,.0f} texts/s"
    return sum(lengths), seconds, 2 * layer_weights(ours.model), speed, foreseen


def scoring(
    base: Path, lists: Lists, device: str, batch_tokens: int
) -> tuple[float, float, float, str, float]:
    ours = reranker.load(base, dtype="bfloat16", device=device)
    lengths = [len(one.ids) for one in ours.tokenize(*lists)]
    seconds = timed(lambda: ours.score(*lists, batch_tokens=batch_tokens), device)
    speed = f"{sum(map(len, lists[1])) / seconds:,.0f} pairs/s"
    foreseen = foresee(base, ours.reranker_config.model_kind, max(lengths), batch_tokens)
    return sum(lengths), seconds, 2 * layer_weights(ours.model), speed, foreseen


def finetuning(
    base: Path, folder: Path, lists: Lists, device: str, quantization: Any, steps: int
) -> tuple[float, float, float, str, float]:
    """The reranker's training loop on groups of 1 + 7, without DeepSpeed."""
    from ratchet.data.tables import CORPUS, MINED, QUERIES, RANKED, write_shards
    from ratchet.jobs.retrieval.finetune_reranker import Config, Inputs
    from ratchet.jobs.retrieval.reranker_training import RerankerTask
    from ratchet.jobs.training.worker import WorkerInfo
    from ratchet.orchestrator.job_interface import Resources

    os.environ["LOCAL_RANK"] = "0"
    config = Config(
        batch_size=8,
        num_negatives=7,
        dtype="bfloat16",
        quantization=quantization,
        learning_rate=1e-5,
    )
    ids: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    for number, (query, own) in enumerate(zip(*lists, strict=True)):
        names = [ids.setdefault(text, f"d{len(ids)}") for text in dict.fromkeys(own)]
        about = {"id": f"q{number}", "text": query, "positives": names[:1], "negatives": names[1:]}
        rows.append(about | {"grades": [1], "positive_scores": [], "negative_scores": []})
    write_shards(
        folder / "corpus",
        [{"id": name, "text": text} for text, name in ids.items()],
        CORPUS,
        100_000,
    )
    write_shards(folder / "mined", rows, MINED, 100_000)
    write_shards(folder / "valid", rows[:1], QUERIES, 100_000)
    ranking = {"documents": rows[0]["positives"], "scores": [1.0], "ranks": [1]}
    write_shards(folder / "ranking", [rows[0] | ranking], RANKED, 100_000)
    inputs = Inputs(base, folder / "mined", folder / "corpus", folder / "valid", folder / "ranking")
    task = RerankerTask(
        WorkerInfo(0, 1, device),
        config,
        inputs,
        Resources(1, cpus=1.0, gpus=1.0 if device == "cuda" else 0.0),
    )
    trained = [p for p in task.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=config.learning_rate)
    tokens, start, longest = 0, time.perf_counter(), 1
    count = min(steps, task.steps[0] - 1)
    for step in range(count + 1):
        if step == 1:
            if device == "cuda":
                torch.cuda.synchronize()
            tokens, start = 0, time.perf_counter()
        batch = task.batch(0, step)
        for microbatch in batch.microbatches:
            longest = max(longest, *(len(one.ids) for one in microbatch.rows))
            task.loss(microbatch).backward()
        tokens += batch.num_tokens
        optimizer.step()
        optimizer.zero_grad()
    if device == "cuda":
        torch.cuda.synchronize()
    weights = weights_of(json.loads((base / "config.json").read_text()))
    seconds = time.perf_counter() - start
    kind = task.reranker.reranker_config.model_kind
    # As many tokens at a time as the groups of `GROUPS_PER_PASS` queries have.
    found = footprint.estimate_training(
        base, kind, config, 1.0, 1, rows=8 * config.batch_size, length=longest
    )
    foreseen = found["gpu_memory"] if found else float("nan")
    what = f"{count} steps of {config.batch_size} x 8 pairs"
    return tokens, seconds, 4 * weights, what, foreseen


if __name__ == "__main__":
    main()
