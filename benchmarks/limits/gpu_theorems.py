"""The two largest parts of the published theorem run, on one GPU: a training step of 16,384 pairs, and 787,684 exact
rankings.

    python -m benchmarks.limits.gpu_theorems                     # the whole of both: a quarter of an hour or more
    python -m benchmarks.limits.gpu_theorems --batch 1024        # a smaller step; tokens/s hardly depends on it
    python -m benchmarks.limits.gpu_theorems --tiny              # the same code at a toy's size, on any machine

The training step: Qwen2.5-7B's shape with random weights in nf4, LoRA of rank 8 on q, k, v, o, a projection to 2,048
dimensions, 256 tokens per text, gradient checkpointing. Only necessary FLOPs are counted: with N weights in the layers,
2 N per token in each of two forward passes (gradient caching embeds a text twice) and in LoRA's backward pass. The
repeated forward pass of checkpointing is not counted. The rankings: unit vectors in float32, where each statement is a
query for the other statements of its paper, all against all (half of N x N products). The peak rate is that of a
bfloat16 matmul, measured in the same run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from benchmarks.inference.scoring import load_lists
from benchmarks.limits.gpu import QWEN, TINY, matmul_flops, save_model, weights_of


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tiny", action="store_true", help="a toy's size, on the CPU if there is no GPU"
    )
    parser.add_argument("--batch", type=int, help="pairs of the step; 16,384")
    parser.add_argument("--batch-tokens", type=int, default=16_384, help="of a micro batch")
    parser.add_argument("--rows", type=int, help="statements that are ranked; 787,684")
    parser.add_argument("--dim", type=int, help="of their vectors; 2,048")
    parser.add_argument("--part", choices=["step", "ranks", "both"], default="both")
    given = parser.parse_args()
    if not torch.cuda.is_available() and not given.tiny:
        sys.exit(
            "benchmarks.limits.gpu_theorems: no CUDA device found; expected one; run it where there is one, or --tiny"
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    given.batch = given.batch or (32 if given.tiny else 16_384)
    given.rows = given.rows or (3000 if given.tiny else 787_684)
    given.dim = given.dim or (64 if given.tiny else 2048)
    peak = matmul_flops(device, 512 if given.tiny else 8192)
    print(
        f"{torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}: matmul {peak / 1e12:.1f} TFLOP/s",
        flush=True,
    )
    if given.part != "ranks":
        step(given, device, peak)
    if given.part != "step":
        ranks(given, device)


def step(given: argparse.Namespace, device: str, peak: float) -> None:
    from ratchet.data.formats.papers import STATEMENTS
    from ratchet.data.tables import write_mapped, write_table
    from ratchet.jobs.statements.finetune_embedder_pairs import Config, Inputs
    from ratchet.jobs.statements.pair_training import PairTask
    from ratchet.jobs.training.worker import WorkerInfo
    from ratchet.orchestrator.job_interface import Resources

    lists = load_lists(None, 256, 25)
    shape, length = (TINY, 32) if given.tiny else (QWEN, 256)
    config = Config(
        epochs=1,
        batch_size=given.batch,
        lora_r=8,
        lora_alpha=16.0,
        lora_dropout=0.05,
        target_modules="q_proj,k_proj,v_proj,o_proj",
        quantization="nf4",
        dtype="bfloat16",
        projection=32 if given.tiny else 2048,
        gradient_checkpointing=True,
        max_length=length,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = save_model(folder / "base", shape, lists, device)
        table = pa.Table.from_pylist(
            statements([text for own in lists[1] for text in own], given.batch), STATEMENTS
        )
        write_mapped(folder / "train/shard-00000.arrow", table)
        write_table(folder / "valid/shard-00000.parquet", table.slice(0, 4))
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        torch.distributed.init_process_group(
            backend, init_method=f"file://{folder}/group", rank=0, world_size=1
        )
        resources = Resources(
            1, cpus=1.0, gpus=1.0 if device == "cuda" else 0.0, batch_tokens=given.batch_tokens
        )
        inputs = Inputs(base, folder / "train", folder / "valid")
        task = PairTask(WorkerInfo(0, 1, device), config, inputs, resources)
        optimizer = torch.optim.AdamW(
            [p for p in task.model.parameters() if p.requires_grad], lr=1e-3
        )
        task.encoder.encode(table["text"].slice(0, 64).to_pylist(), "passage")  # warms up
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        batch = task.batch(0, 0)
        cached = clock(device) - start
        for microbatch in batch.microbatches:
            task.loss(microbatch).backward()
        tokens, parts = batch.num_tokens, batch.microbatches
        optimizer.step()
        seconds = clock(device) - start
        torch.distributed.destroy_process_group()
    flops = 3 * 2 * weights_of(shape) * tokens / seconds
    print(
        f"step of {given.batch:,} pairs, {tokens:,} tokens in {len(parts):,} micro batches: {seconds:.1f} s (embedding "
        f"and loss {cached:.1f} s), {tokens / seconds:,.0f} tokens/s, {flops / 1e12:.2f} TFLOP/s, {flops / peak:.1%} "
        f"of peak{memory()}",
        flush=True,
    )


def statements(texts: list[str], papers: int) -> list[dict[str, Any]]:
    """Two long statements a paper, of sentences in random order."""
    random = np.random.default_rng(0)
    return [
        {"id": f"{paper}#{n}", "text": " ".join(random.choice(texts, 40)), "paper": str(paper)}
        for paper in range(papers)
        for n in range(2)
    ]


def ranks(given: argparse.Namespace, device: str) -> None:
    from ratchet.data.formats.papers import other_statements
    from ratchet.models.search.rank_metrics import compute_rank_metrics
    from ratchet.models.search.ranks import Relevant, rank_relevant

    paper_S = np.sort(np.random.default_rng(0).integers(0, given.rows // 6, given.rows))
    torch.manual_seed(0)
    centre = torch.randn(given.rows // 6, given.dim)
    vectors_SD = torch.empty(given.rows, given.dim)
    for start in range(0, given.rows, 65_536):
        here = vectors_SD[start : start + 65_536]
        here.normal_().mul_(2.5).add_(centre[paper_S[start : start + 65_536]])
        torch.nn.functional.normalize(here, dim=1, out=here)
    relevant = Relevant(*other_statements(paper_S, np.arange(given.rows)))
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start_at = time.perf_counter()
    ranks_R = rank_relevant(
        vectors_SD.numpy(),
        relevant,
        lambda: [(0, vectors_SD.numpy())],
        exclude_Q=np.arange(given.rows),
        device=device,
    )
    values = compute_rank_metrics(ranks_R, relevant, (1, 10, 100, 1000)).values
    seconds = clock(device) - start_at
    flops = 2 * given.rows**2 * given.dim / seconds
    print(
        f"ranks of {given.rows:,} x {given.rows:,} x {given.dim:,}: {seconds:.1f} s, {flops / 1e12:.2f} TFLOP/s in "
        f"float32, MRR {values['mrr']:.4f}{memory()}"
    )


def clock(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def memory() -> str:
    return (
        f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"
        if torch.cuda.is_available()
        else ""
    )


if __name__ == "__main__":
    main()
