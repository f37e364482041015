"""Contrastive training with large batches: time and peak memory of Ratchet, sentence-transformers and GradCache.

    python -m benchmarks.training.contrastive                       # both parts
    python -m benchmarks.training.contrastive --part loss --batches 1024,4096,16384

loss: the symmetric InfoNCE of B given pairs of vectors (384 dimensions), and its gradient. Compared are Ratchet's tiled
loss, a plain loss (the B x B matrix under autograd, as GradCache's reference computes it between its two passes), and
sentence-transformers' CachedMultipleNegativesRankingLoss (both directions; tiles of 32 rows, its default, and of 256
rows, as in Ratchet). Each is a separate process; its memory is the peak above the memory before the loss.

step: a whole training step with MiniLM and LoRA on generated pairs, with the same objective, batch and micro batch. The
job's own task is compared with SentenceTransformerTrainer, and with GradCache's own class (Gao et al. 2021) in a
PyTorch loop. SentenceTransformerTrainer trains with MiniLM's dropout, so its loss differs. `make bench` installs the
other libraries.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.training.finetune import clocks, steps, summary

DIM, TEMPERATURE = 384, 0.05
LOSSES = {
    "ours": "ratchet",
    "plain": "B x B matrix",
    "peer": "sentence-transformers",
    "peer-256": "the same, rows of 256",
}
PLAIN_MOST = 16_384
"""A larger batch's matrix, with its gradient, fills an ordinary machine."""
STEPS = {
    "ours": "ratchet, bfloat16",
    "ours-float32": "ratchet, float32",
    "peer": "sentence-transformers, float32",
    "peer-bf16": "sentence-transformers, bf16=True",
    "reference": "GradCache, float32",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=["both", "loss", "step"], default="both")
    parser.add_argument("--batches", default="1024,4096,16384,65536", help="of the loss alone")
    parser.add_argument("--batch", type=int, default=128, help="pairs of a whole step")
    parser.add_argument(
        "--micro-batch", type=int, default=32, help="texts of a forward pass of a whole step"
    )
    parser.add_argument("--steps", type=int, default=2, help="counted; one more is done before")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        import torch

        torch.set_num_threads(given.threads)
        part, way = given.way.split("/")
        run: dict[str, Callable[[], dict[str, float]]] = {
            "loss": lambda: loss(way, int(given.batches)),
            "step": lambda: {"ours": our_step, "peer": peer_step, "reference": reference_step}[
                way.split("-")[0]
            ](given, way),
        }
        print(json.dumps(run[part]()))
        return
    if given.part != "step":
        print(
            f"{'loss and gradient':28}{'B':>8}{'seconds':>10}{'peak MiB':>10}{'a pair, KiB':>12}{'loss':>10}"
        )
        for batch in map(int, given.batches.split(",")):
            for way, label in LOSSES.items():
                if way == "plain" and batch > PLAIN_MOST:
                    continue
                runs = [
                    measured(f"loss/{way}", "--batches", str(batch)) for _ in range(given.rounds)
                ]
                best = min(runs, key=lambda found: found["seconds"])
                each = best["mib"] * 1024 / batch
                numbers = (
                    f"{best['seconds']:10.2f}{best['mib']:10,.0f}{each:12,.1f}{best['loss']:10.5f}"
                )
                print(f"{label:28}{batch:8,}{numbers}", flush=True)
    if given.part != "loss":
        print(f"\n{'whole step':36}{'tokens/s':>10}{'peak MiB':>10}{'loss':>9}{'of ours':>9}")
        found = {way: [] for way in STEPS}  # type: dict[str, list[dict[str, float]]]
        for _ in range(given.rounds):
            for way in STEPS:
                found[way].append(measured(f"step/{way}", *sys.argv[1:]))
        best_of = {way: max(run["tokens_per_s"] for run in runs) for way, runs in found.items()}
        for way, runs in found.items():
            share = best_of[way] / best_of["ours"]
            numbers = f"{best_of[way]:10,.0f}{runs[-1]['peak_mib']:10,.0f}{runs[-1]['loss']:9.4f}{share:9.2f}"
            print(f"{STEPS[way]:36}{numbers}")


def measured(way: str, *arguments: str) -> dict[str, float]:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.training.contrastive",
        *arguments,
        "--way",
        way,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[2]
    )
    if done.returncode:
        raise SystemExit(f"{way}: {(done.stderr.strip() or 'failed').splitlines()[-1]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def loss(way: str, batch: int) -> dict[str, float]:
    import torch

    from ratchet.models.losses.tiled_contrastive_loss import symmetric_info_nce_gradient

    generator = torch.Generator().manual_seed(0)
    left = torch.nn.functional.normalize(torch.randn(batch, DIM, generator=generator))
    right = torch.nn.functional.normalize(torch.randn(batch, DIM, generator=generator) + left * 20)
    peer = None
    if way.startswith("peer"):
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.losses import CachedMultipleNegativesRankingLoss

        from ratchet.models.model_files import MINILM, resolve

        peer = CachedMultipleNegativesRankingLoss(
            SentenceTransformer(str(resolve(MINILM)), device="cpu"),
            scale=1 / TEMPERATURE,
            mini_batch_size=256 if way.endswith("256") else 32,
            directions=("query_to_doc", "doc_to_query"),
            partition_mode="per_direction",
        )
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    if way == "ours":
        value = symmetric_info_nce_gradient(left, right, temperature=TEMPERATURE)[0]
    else:
        left.requires_grad_()
        right.requires_grad_()
        if peer is not None:
            value = torch.as_tensor(peer.calculate_loss([[left], [right]], with_backward=True))
        else:
            logits, own = left @ right.T / TEMPERATURE, torch.arange(batch)
            cross_entropy = torch.nn.functional.cross_entropy
            value = (cross_entropy(logits, own) + cross_entropy(logits.T, own)) / 2
            value.backward()
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "mib": (after - before) / 1024, "loss": float(value.detach())}


def pairs(given: argparse.Namespace) -> list[tuple[str, str]]:
    """Generated questions, two of each mistake."""
    from benchmarks.misconceptions import format_query, generate_questions

    of_rule: dict[str, list[str]] = {}
    for question in generate_questions(1500, 0):
        for n, rule in enumerate(question.rules):
            if rule:
                of_rule.setdefault(rule, []).append(format_query(question, n))
    made = [
        pair for texts in of_rule.values() for pair in zip(texts[::2], texts[1::2], strict=False)
    ]
    return made[: given.batch * (given.steps + 1)]


def tokens_of(rows: list[tuple[str, str]]) -> int:
    from transformers import AutoTokenizer

    from ratchet.models.model_files import MINILM, resolve

    tokenizer = AutoTokenizer.from_pretrained(resolve(MINILM))
    return sum(
        map(
            len,
            tokenizer(
                [text for pair in rows for text in pair], truncation=True, max_length=256
            ).input_ids,
        )
    )


def our_step(given: argparse.Namespace, way: str) -> dict[str, float]:
    os.environ["LOCAL_RANK"] = "0"
    import pyarrow as pa
    import torch

    from ratchet.data.formats.papers import STATEMENTS
    from ratchet.data.tables import write_mapped, write_table
    from ratchet.jobs.statements.finetune_embedder_pairs import Config, Inputs
    from ratchet.jobs.statements.pair_training import PairTask
    from ratchet.jobs.training.worker import WorkerInfo
    from ratchet.models import engine
    from ratchet.models.model_files import MINILM, resolve
    from ratchet.orchestrator.job_interface import Resources

    engine.silence_libraries()
    rows = pairs(given)
    kind = "float32" if way.endswith("float32") else "bfloat16"
    config = Config(
        epochs=1,
        batch_size=given.batch,
        lora_r=32,
        lora_alpha=64.0,
        temperature=TEMPERATURE,
        dtype=kind,  # type: ignore[arg-type]
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = [
            {"id": f"{n}#{side}", "text": text, "paper": str(n)}
            for n, pair in enumerate(rows)
            for side, text in enumerate(pair)
        ]
        table = pa.Table.from_pylist(made, STATEMENTS)
        write_mapped(folder / "train/shard-00000.arrow", table)
        write_table(folder / "valid/shard-00000.parquet", table.slice(0, 4))
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        inputs = Inputs(resolve(MINILM), folder / "train", folder / "valid")
        resources = Resources(
            1, cpus=float(given.threads), gpus=0.0, micro_batch_size=given.micro_batch_size
        )
        return steps(PairTask(WorkerInfo(0, 1, "cpu"), config, inputs, resources), tokens_of(rows))


def peer_step(given: argparse.Namespace, way: str) -> dict[str, float]:
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    import transformers
    from datasets import Dataset, disable_progress_bars
    from peft import LoraConfig
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import CachedMultipleNegativesRankingLoss

    from ratchet.models.model_files import MINILM, resolve

    disable_progress_bars()
    rows = pairs(given)
    model = SentenceTransformer(str(resolve(MINILM)), device="cpu")
    model.add_adapter(
        LoraConfig(r=32, lora_alpha=64, lora_dropout=0.0, target_modules="all-linear")
    )
    objective = CachedMultipleNegativesRankingLoss(
        model,
        scale=1 / TEMPERATURE,
        mini_batch_size=given.micro_batch_size,
        directions=("query_to_doc", "doc_to_query"),
        partition_mode="per_direction",
    )
    ends: list[tuple[float, float]] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(clocks())

    with tempfile.TemporaryDirectory() as folder:
        trainer = SentenceTransformerTrainer(
            model=model,
            args=SentenceTransformerTrainingArguments(
                folder,
                num_train_epochs=1,
                per_device_train_batch_size=given.batch,
                learning_rate=2e-5,
                lr_scheduler_type="constant",
                bf16=way.endswith("bf16"),
                use_cpu=True,
                report_to="none",
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict(
                {"left": [row[0] for row in rows], "right": [row[1] for row in rows]}
            ),
            loss=objective,
            callbacks=[Clock()],
        )
        found = trainer.train().training_loss
    return summary(tokens_of(rows), ends[0], ends[-1], len(ends), [found])


def reference_step(given: argparse.Namespace, way: str) -> dict[str, float]:
    """GradCache's class does the two passes and the cache between them; the loop around it is its README's."""
    import gradcache
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model

    from ratchet.models.model_files import MINILM, resolve

    sys.modules["grad_cache"] = gradcache  # the name under which the package imports its own parts
    from gradcache.grad_cache import GradCache
    from gradcache.loss import SimpleContrastiveLoss

    tokenizer = transformers.AutoTokenizer.from_pretrained(resolve(MINILM))
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    base = transformers.AutoModel.from_pretrained(resolve(MINILM), add_pooling_layer=False, **still)
    adapter = LoraConfig(r=32, lora_alpha=64, lora_dropout=0.0, target_modules="all-linear")

    class Embedder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = get_peft_model(base, adapter)

        def forward(self, **inputs: Any) -> Any:
            hidden_BLD = self.model(**inputs).last_hidden_state
            return torch.nn.functional.normalize(
                (hidden_BLD * inputs["attention_mask"][:, :, None]).sum(1), dim=1
            )

    one_way = SimpleContrastiveLoss()

    def objective(left: Any, right: Any) -> Any:
        return (one_way(left / TEMPERATURE, right) + one_way(right / TEMPERATURE, left)) / 2

    model = Embedder()
    cache = GradCache(models=[model, model], chunk_sizes=given.micro_batch_size, loss_fn=objective)
    optimizer = torch.optim.AdamW(
        [one for one in model.parameters() if one.requires_grad], lr=2e-5, weight_decay=0.0
    )
    rows = pairs(given)
    random.Random(0).shuffle(rows)  # as the others do: pairs of one mistake stand side by side
    losses, ends = [], []
    for start in range(0, len(rows), given.batch):
        left, right = (
            tokenizer(
                list(side), padding=True, truncation=True, max_length=256, return_tensors="pt"
            )
            for side in zip(*rows[start : start + given.batch], strict=True)
        )
        optimizer.zero_grad()
        losses.append(float(cache(left, right)))
        optimizer.step()
        ends.append(clocks())
    return summary(tokens_of(rows), ends[0], ends[-1], len(ends), losses)


if __name__ == "__main__":
    main()
