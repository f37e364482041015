"""Finetuning a decoder on answers: tokens per second and peak memory of Ratchet and of TRL's SFTTrainer.

    python -m benchmarks.training.sft [--data gsm8k/train.jsonl] [--steps 4] [--rounds 2]

Both get the same samples (GSM8K's JSONL; without `--data` generated Countdown tasks) and the same model (Qwen2's
architecture, 8 layers of 512 dimensions, a head of 32,768 rows, random weights, a tokenizer trained on the samples).
Both use LoRA of rank 16 on all linear layers, the loss on the answers alone, `--batch` samples per training step, and
AdamW. Each run is a separate process, in alternation; the first training step is not timed. Tokens are those of the
samples without padding, counted in the same way for both. `make bench` installs TRL.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.training.finetune import alternate, arguments, clocks, steps, summary

WAYS = {
    "ours": "ratchet, bfloat16",
    "ours-float32": "ratchet, float32",
    "peer": "trl SFTTrainer, float32",
    "peer-bf16": "trl SFTTrainer, bf16=True",
}
SHAPE = {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8}
SHAPE |= {"vocab_size": 4096, "max_position_embeddings": 1024, "seed": 0}
HEAD_ROWS = 32_768
LONGEST = 512


def main() -> None:
    given = arguments(__doc__ or "", WAYS, batch=16, negatives=0)
    if given.way:
        print(json.dumps((ours if given.way.startswith("ours") else peer)(given)))
    else:
        alternate("benchmarks.training.sft", WAYS, given)


def prepared(given: argparse.Namespace, folder: Path) -> list[Any]:
    """train/, valid/ and base/ in the folder; the samples."""
    from ratchet.data.tables import write_shards
    from ratchet.data.tasks import TASKS, countdown
    from ratchet.data.tasks.solver import generate_tasks
    from ratchet.data.tasks.task import SAMPLES, sample_to_row, write_task_name
    from ratchet.models.decoder.tiny_decoder import save_decoder

    count = given.batch * (given.steps + 1)
    if given.data:
        task = TASKS["gsm8k"]
        samples = [sample for sample, _ in zip(task.read(given.data), range(count), strict=False)]
    else:
        task = countdown.TASK
        tasks = generate_tasks(count, (3, 4), 99, (10, 99), 0)
        samples = [countdown.make_sample(n, *row) for n, row in enumerate(tasks)]
    for name, chosen in (("train", samples), ("valid", samples[:1])):
        write_shards(folder / name, [sample_to_row(sample) for sample in chosen], SAMPLES, 100_000)
        write_task_name(folder / name, task.name)
    save_decoder(
        folder / "base", (text for one in samples for turn in one.turns for text in turn), **SHAPE
    )
    config = json.loads((folder / "base/config.json").read_text())
    from transformers import Qwen2Config, Qwen2ForCausalLM

    Qwen2ForCausalLM(Qwen2Config(**(config | {"vocab_size": HEAD_ROWS}))).save_pretrained(
        folder / "base"
    )
    return samples


def tokens_of(folder: Path, samples: list[Any]) -> int:
    from transformers import AutoTokenizer

    from ratchet.models.decoder.conversation import Conversations

    talks = Conversations(AutoTokenizer.from_pretrained(folder / "base"))
    return sum(
        len(talks.tokenize_sample("", [one.turns[0][0]], [one.turns[0][1]]).ids) for one in samples
    )


def ours(given: argparse.Namespace) -> dict[str, float]:
    """The job's task."""
    import torch

    from ratchet.jobs.answers.sft import Config, Inputs
    from ratchet.jobs.answers.sft_training import SftTask
    from ratchet.jobs.training.worker import WorkerInfo
    from ratchet.models import engine
    from ratchet.orchestrator.job_interface import Resources

    engine.silence_libraries()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples = prepared(given, folder)
        kind: Any = "float32" if given.way.endswith("float32") else "bfloat16"
        config = Config(batch_size=given.batch, epochs=1, dtype=kind, max_length=LONGEST)
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        inputs = Inputs(folder / "base", folder / "train", folder / "valid")
        worker, resources = (
            WorkerInfo(0, 1, "cpu"),
            Resources(1, cpus=float(given.threads), gpus=0.0),
        )
        task = SftTask(worker, config, inputs, resources)
        return steps(task, tokens_of(folder, samples))


def peer(given: argparse.Namespace) -> dict[str, float]:
    """SFTTrainer with completion-only loss and PEFT's LoRA."""
    import torch
    import transformers
    from datasets import Dataset, disable_progress_bars
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    disable_progress_bars()
    ends: list[tuple[float, float]] = []
    losses: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(clocks())

        def on_log(self, *_: Any, logs: dict[str, float] | None = None, **__: Any) -> None:
            if logs and "loss" in logs:
                losses.append(float(logs["loss"]))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples = prepared(given, folder)
        rows = {
            "prompt": [[{"role": "user", "content": one.turns[0][0]}] for one in samples],
            "completion": [[{"role": "assistant", "content": one.turns[0][1]}] for one in samples],
        }
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder / "base", dtype=torch.float32
        )
        settings = SFTConfig(
            str(folder / "out"),
            num_train_epochs=1,
            per_device_train_batch_size=given.batch,
            learning_rate=2e-5,
            lr_scheduler_type="constant",
            bf16=given.way.endswith("bf16"),
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            max_length=LONGEST,
            completion_only_loss=True,
            gradient_checkpointing=False,
        )
        SFTTrainer(
            model=model,
            args=settings,
            train_dataset=Dataset.from_dict(rows),
            processing_class=transformers.AutoTokenizer.from_pretrained(folder / "base"),
            peft_config=LoraConfig(
                r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear"
            ),
            callbacks=[Clock()],
        ).train()
        return summary(tokens_of(folder, samples), ends[0], ends[-1], len(ends), losses)


if __name__ == "__main__":
    main()
