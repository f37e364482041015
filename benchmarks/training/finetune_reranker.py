"""Finetuning MiniLM as a cross-encoder with LoRA: Ratchet compared with sentence-transformers' trainer.

    python -m benchmarks.training.finetune_reranker [--data PATH] [--steps 5] [--rounds 2]

Both get the same groups: `--batch` queries per training step, with one positive and `--negatives` random negatives
each. Both use the cross-entropy of the softmax over a group's scores as loss (ListNetLoss with one relevant document),
a new head, LoRA of rank 32 on all other linear layers, and AdamW. The rest is as in `benchmarks.training.finetune`; the
tokens of a query count once for each of its pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.training.finetune import (
    alternate,
    arguments,
    clocks,
    steps,
    summary,
    triplets,
    write,
)

WAYS = {
    "ours": "ratchet, bfloat16",
    "ours-float32": "ratchet, float32",
    "peer": "sentence-transformers, float32 (default)",
    "peer-bf16": "sentence-transformers, bf16=True",
}

Groups = list[tuple[str, str, list[str]]]


def main() -> None:
    given = arguments(__doc__ or "", WAYS, batch=16, negatives=7)
    if given.way:
        print(json.dumps(ours(given) if given.way.startswith("ours") else peer(given)))
    else:
        alternate("benchmarks.training.finetune_reranker", WAYS, given)


def tokens_of(rows: Groups) -> int:
    """Count the tokens of all pairs, truncated at 256."""
    from transformers import AutoTokenizer

    from ratchet.models.model_files import MINILM, resolve

    pairs = [(query, text) for query, right, wrong in rows for text in (right, *wrong)]
    return sum(
        map(
            len,
            AutoTokenizer.from_pretrained(resolve(MINILM))(
                pairs, truncation=True, max_length=256
            ).input_ids,
        )
    )


def ours(given: argparse.Namespace) -> dict[str, float]:
    """The job's task."""
    import torch

    from ratchet.data.tables import RANKED, write_shards
    from ratchet.jobs.retrieval.finetune_reranker import Config, Inputs
    from ratchet.jobs.retrieval.reranker_training import RerankerTask
    from ratchet.jobs.training.worker import WorkerInfo
    from ratchet.models import engine
    from ratchet.models.model_files import MINILM, resolve
    from ratchet.orchestrator.job_interface import Resources

    engine.silence_libraries()
    rows = triplets(given)
    kind: Any = "float32" if given.way.endswith("float32") else "bfloat16"
    config = Config(
        batch_size=given.batch, num_negatives=given.negatives, dtype=kind, max_length=256
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, rows)
        listed = {"id": "0", "text": rows[0][0], "documents": ["0"], "scores": [0.0], "ranks": [1]}
        write_shards(folder / "ranking", [listed], RANKED, 100_000)
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        shards = (folder / kind for kind in ("mined", "corpus", "valid", "ranking"))
        inputs = Inputs(resolve(MINILM), *shards)
        task = RerankerTask(
            WorkerInfo(0, 1, "cpu"),
            config,
            inputs,
            Resources(1, cpus=float(given.threads), gpus=0.0),
        )
        return steps(task, tokens_of(rows))


def peer(given: argparse.Namespace) -> dict[str, float]:
    """CrossEncoderTrainer with ListNetLoss and PEFT's LoRA."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    import transformers
    from datasets import Dataset, disable_progress_bars
    from peft import LoraConfig
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder import (
        CrossEncoderTrainer,
        CrossEncoderTrainingArguments,
    )
    from sentence_transformers.cross_encoder.losses import ListNetLoss

    from ratchet.models.model_files import MINILM, resolve

    disable_progress_bars()
    rows = triplets(given)
    certain = 100.0  # whose softmax beside zeros is 1
    columns: dict[str, list[Any]] = {
        "query": [query for query, _, _ in rows],
        "docs": [[right, *wrong] for _, right, wrong in rows],
        "labels": [[certain, *[0.0] * len(wrong)] for _, _, wrong in rows],
    }
    model = CrossEncoder(str(resolve(MINILM)), num_labels=1, max_length=256, device="cpu")
    heads = ["classifier", "pooler.dense"]
    lora = LoraConfig(
        r=32,
        lora_alpha=64,
        lora_dropout=0.0,
        target_modules="all-linear",
        modules_to_save=heads,
        exclude_modules=heads,
    )
    model.add_adapter(lora)
    losses: list[float] = []
    ends: list[tuple[float, float]] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(clocks())

    class Kept(ListNetLoss):
        def forward(self, *given: Any, **named: Any) -> Any:
            loss = super().forward(*given, **named)
            losses.append(float(loss.detach()))
            return loss

    with tempfile.TemporaryDirectory() as folder:
        settings = CrossEncoderTrainingArguments(
            folder,
            num_train_epochs=1,
            per_device_train_batch_size=given.batch,
            learning_rate=2e-5,
            lr_scheduler_type="constant",
            bf16=given.way.endswith("bf16"),
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        CrossEncoderTrainer(
            model=model,
            args=settings,
            train_dataset=Dataset.from_dict(columns),
            loss=Kept(model),
            callbacks=[Clock()],
        ).train()
    return summary(tokens_of(rows), ends[0], ends[-1], len(ends), losses)


if __name__ == "__main__":
    main()
