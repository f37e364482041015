"""The memory of steps: the prediction of `ratchet plan`, compared with the peak of a process that does the work.

    python -m benchmarks.limits.memory [--cases "0.5B embed;1.5B merge"]      every case: half an hour on two cores

Qwen2 in the shapes of 0.5B and 1.5B with random weights in bfloat16, texts of exactly `max_length` tokens, on CPUs.
Each case is a separate process; the peak is its largest resident set. `merge alone` writes the merged model without
comparing it with the base and its adapter; `peft` does the same with PEFT's `merge_and_unload` and `save_pretrained`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHAPES = {
    "0.5B": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
    },
    "1.5B": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
    },
}
LENGTH = 128
TEXT = "x" * 4 * LENGTH  # a token each
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "embed": ("embed", {"dtype": "bfloat16"}, {}),
    "embed float32": ("embed", {"dtype": "float32"}, {}),
    "embed nf4": ("embed", {"dtype": "bfloat16", "quantization": "nf4"}, {}),
    "rerank": ("rerank", {"dtype": "bfloat16"}, {}),
    "rerank nf4": ("rerank", {"dtype": "bfloat16", "quantization": "nf4"}, {}),
    "finetune": ("finetune_embedder", {"dtype": "bfloat16"}, {}),
    "finetune float32": ("finetune_embedder", {"dtype": "float32"}, {}),
    "finetune checkpointing": ("finetune_embedder", {"dtype": "bfloat16", "gradient_checkpointing": True}, {}),
    "finetune nf4": ("finetune_embedder", {"dtype": "bfloat16", "quantization": "nf4"}, {}),
    "finetune micro batches": ("finetune_embedder", {"dtype": "bfloat16"}, {"micro_batch_size": 4}),
    "finetune micro batches, rank 128": (
        "finetune_embedder", {"dtype": "bfloat16", "lora_r": 128, "lora_alpha": 256.0}, {"micro_batch_size": 4},
    ),
    "merge": ("merge", {}, {}),
    "merge alone": ("merge alone", {}, {}),
    "peft": ("peft", {}, {}),
}  # fmt: skip
DEFAULT = [
    *(
        "0.5B embed",
        "0.5B embed float32",
        "0.5B embed nf4",
        "0.5B rerank",
        "0.5B rerank nf4",
        "0.5B finetune",
    ),
    *(
        "0.5B finetune float32",
        "0.5B finetune checkpointing",
        "0.5B finetune nf4",
        "0.5B finetune micro batches",
    ),
    *("0.5B finetune micro batches, rank 128", "0.5B merge", "0.5B merge alone", "0.5B peft"),
    *(
        "1.5B embed",
        "1.5B embed nf4",
        "1.5B rerank",
        "1.5B finetune micro batches",
        "1.5B finetune checkpointing",
    ),
    *("1.5B finetune nf4", "1.5B merge", "1.5B merge alone", "1.5B peft"),
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=";".join(DEFAULT), help="separated by semicolons")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        size, _, case = given.case.partition(" ")
        print(json.dumps(measure(given.folder, size, case)))
        return
    print(f"{'':44}{'predicted GB':>14}{'peak GB':>10}{'ratio':>8}{'seconds':>9}")
    with tempfile.TemporaryDirectory() as name:
        for case in given.cases.split(";"):
            command = [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "benchmarks.limits.memory",
                "--case",
                case,
                "--folder",
                name,
            ]
            done = subprocess.run(
                command, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[2]
            )
            if done.returncode:
                print(
                    f"{case}: {(done.stderr.strip() or 'failed').splitlines()[-1]}", file=sys.stderr
                )
                continue
            found = json.loads(done.stdout.strip().splitlines()[-1])
            predicted, peak, seconds = found["predicted"], found["peak"], found["seconds"]
            known = (
                f"{predicted:14.2f}{peak:10.2f}{predicted / peak:8.2f}"
                if predicted
                else f"{'':14}{peak:10.2f}{'':8}"
            )
            print(f"{case:44}{known}{seconds:9.0f}", flush=True)


def measure(folder: Path, size: str, case: str) -> dict[str, float | None]:
    job, settings, resources = CASES[case]
    base, data = folder / size, folder / "data"
    if (
        not base.exists() and os.fork() == 0
    ):  # in another process: its memory is not that of the case
        save(base, data, SHAPES[size])
        os._exit(0)
    if not data.exists() or not base.exists():
        os.wait()
    import ray  # noqa: F401 - every worker imports it

    from ratchet.orchestrator.job_interface import Resources

    given = Resources(1, cpus=float(os.cpu_count() or 1), gpus=0.0, **resources)
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    prepare, work, needs = WORK[job](base, data, folder / f"{size}-out", settings, given)
    prepare()
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    estimated = needs()
    return {
        "predicted": None if estimated is None else estimated.memory,
        "peak": peak,
        "seconds": seconds,
    }


Parts = tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]
"""What is done before the clock starts, the work, and the prediction."""


def nothing() -> None:
    pass


def embed(base: Path, data: Path, out: Path, settings: dict[str, Any], given: Any) -> Parts:
    from ratchet.jobs.distributed.pieces import Piece
    from ratchet.jobs.retrieval import embed as job
    from ratchet.jobs.retrieval.embed import Worker

    config = job.Config(max_length=LENGTH, **settings)
    inputs = job.Inputs(base, data / "corpus")

    def work() -> None:
        worker = Worker(inputs, config, given.batch_tokens, "cpu")
        [source] = (data / "corpus").glob("*.parquet")
        piece = Piece.whole(source, out.with_suffix(".parquet"))
        worker(piece, piece.target, lambda *_: None)

    return nothing, work, lambda: job.estimate_needs(config, inputs, given, {})


def rerank(base: Path, data: Path, out: Path, settings: dict[str, Any], given: Any) -> Parts:
    from dataclasses import replace

    from ratchet.jobs.retrieval import rerank as job
    from ratchet.models.reranker import reranker
    from ratchet.models.reranker.reranker_config import read_reranker_config

    length = 4 * LENGTH  # the prompt is long in bytes
    config = job.Config(max_length=length, **settings)
    inputs = job.Inputs(base, data / "mined", data / "corpus")

    def work() -> None:
        limits = replace(read_reranker_config(base), max_length=length)
        options: dict[str, Any] = {"dtype": config.dtype, "quantization": config.quantization}
        one = reranker.load(base, None, device="cpu", reranker_config=limits, **options)
        one.score([TEXT] * 2, [[TEXT] * 12] * 2, batch_tokens=given.batch_tokens)

    return nothing, work, lambda: job.estimate_needs(config, inputs, given, {})


def finetune_embedder(
    base: Path, data: Path, out: Path, settings: dict[str, Any], given: Any
) -> Parts:
    import torch

    from ratchet.jobs.retrieval import finetune_embedder as job
    from ratchet.jobs.retrieval.embedder_training import EmbedderTask
    from ratchet.jobs.training.worker import WorkerInfo
    from ratchet.models import engine

    engine.silence_libraries()
    config = job.Config(epochs=1, batch_size=8, num_negatives=1, max_length=LENGTH, **settings)
    inputs = job.Inputs(base, data / "mined", data / "corpus", data / "valid")

    def work() -> None:
        with tempfile.TemporaryDirectory() as meeting:
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{meeting}/m", rank=0, world_size=1
            )
            task = EmbedderTask(WorkerInfo(0, 1, "cpu"), config, inputs, given)
            engine.configure_malloc(task.model)
            options: dict[str, Any] = {
                "learning_rate": 1e-4,
                "weight_decay": 0.0,
                "max_grad_norm": 1.0,
            }
            training = engine.start_engine(task.model, **options, zero_stage=1, device="cpu")
            for step in range(2):
                microbatches = task.batch(0, step).microbatches
                for number, microbatch in enumerate(microbatches, 1):
                    loss = task.loss(microbatch)
                    training.set_gradient_accumulation_boundary(number == len(microbatches))
                    training.backward(loss)
                training.step()

    return nothing, work, lambda: job.estimate_needs(config, inputs, given, {})


def merge(base: Path, data: Path, out: Path, settings: dict[str, Any], given: Any) -> Parts:
    from ratchet.models import merging

    def work() -> None:
        target = out.with_name(f"{out.name}-merged")
        target.mkdir()
        merging.merge(base, base / "adapter", target)
        merging.check(base, base / "adapter", target, [TEXT] * 8)  # a batch

    return nothing, work, lambda: None


def merge_alone(base: Path, data: Path, out: Path, settings: dict[str, Any], given: Any) -> Parts:
    from ratchet.models import merging

    target = out.with_name(f"{out.name}-alone")
    return target.mkdir, lambda: merging.merge(base, base / "adapter", target), lambda: None


def peft(base: Path, data: Path, out: Path, settings: dict[str, Any], given: Any) -> Parts:
    import transformers
    from peft import PeftModel

    def work() -> None:
        model = transformers.AutoModel.from_pretrained(base, dtype="bfloat16")
        PeftModel.from_pretrained(model, str(base / "adapter")).merge_and_unload().save_pretrained(
            f"{out}-peft"
        )

    return nothing, work, lambda: None


WORK: dict[str, Callable[..., Parts]] = {
    "embed": embed,
    "rerank": rerank,
    "finetune_embedder": finetune_embedder,
    "merge": merge,
    "merge alone": merge_alone,
    "peft": peft,
}


def save(base: Path, data: Path, shape: dict[str, Any]) -> None:
    """The model with random weights, an adapter of rank 32 that changes it, and rows of texts."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    from ratchet.data.tables import CORPUS, MINED, QUERIES, write_shards
    from ratchet.models.adapters import lora

    config = transformers.Qwen2Config(
        **shape, num_key_value_heads=2, vocab_size=151_936, tie_word_embeddings=True, pad_token_id=0
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    fresh = base.with_name(f"{base.name}-unfinished")
    model.save_pretrained(fresh)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(
        models.BPE({name: i for i, name in enumerate(["<pad>", "<end>", *alphabet])}, [])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<end>"
    )
    fast.add_tokens(["Yes", "No"])
    fast.save_pretrained(fresh)
    with_adapter = lora.attach(
        model.base_model,
        lora_r=32,
        lora_alpha=64,
        lora_dropout=0.0,
        target_modules="all-linear",
        seed=0,
    )
    for name, weight in with_adapter.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.01)
    lora.save(with_adapter, fresh / "adapter")
    fresh.rename(base)
    if data.exists():
        return
    write_shards(
        data / "corpus", [{"id": str(n), "text": f"{n} {TEXT}"} for n in range(48)], CORPUS, 100
    )
    rows = [
        {"id": str(n), "text": f"q{n} {TEXT}", "positives": [str(n)], "negatives": [str(n + 16)]}
        for n in range(16)
    ]
    scores: dict[str, Any] = {"positive_scores": [], "negative_scores": []}
    write_shards(data / "mined", [row | scores for row in rows], MINED, 100)
    write_shards(data / "valid", [row | {"grades": [1]} for row in rows[:1]], QUERIES, 100)


if __name__ == "__main__":
    main()
