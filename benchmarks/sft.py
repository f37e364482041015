"""Finetuning a decoder on answers: our step loop beside TRL's SFTTrainer. Tokens per second, peak memory.

    python -m benchmarks.sft [--data gsm8k/train.jsonl] [--steps 4] [--rounds 2] [--packing]

Both get the same examples (GSM8K's JSONL; without `--data` Countdown tasks made anew), the same model (Qwen2's
architecture, 8 layers of 512, a head of 32,768 rows, random weights, a tokenizer trained on the examples), LoRA of rank
16 on all linear layers, the loss on the answers alone, `--batch` examples a step, AdamW. Each run is a process of its
own, in alternation; the first step is not counted. Tokens are those of the examples without padding, counted alike.
`make bench` installs what the peer needs.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.finetune import alternate, arguments, clocks, steps, summary

WAYS = {
    "ours": "ratchet, bfloat16",
    "ours-float32": "ratchet, float32",
    "peer": "trl SFTTrainer, float32",
    "peer-bf16": "trl SFTTrainer, bf16=True",
}
SHAPE = {"hidden": 512, "layers": 8, "heads": 8, "vocabulary": 4096, "positions": 1024, "seed": 0}
HEAD_ROWS = 32_768
LONGEST = 512


def main() -> None:
    given = arguments(__doc__ or "", WAYS, batch=16, negatives=0, flags=("--packing",))
    if given.way:
        print(json.dumps((ours if given.way.startswith("ours") else peer)(given)))
    else:
        alternate("benchmarks.sft", WAYS, given)


def prepared(given: argparse.Namespace, folder: Path) -> list[Any]:
    """train/, valid/ and base/ in the folder; the examples."""
    from data.tables import write_shards
    from data.tasks import TASKS, countdown
    from data.tasks.solver import generate
    from data.tasks.task import EXAMPLES, row_of, write_name
    from models.fresh import save_decoder

    count = given.batch * (given.steps + 1)
    if given.data:
        task = TASKS["gsm8k"]
        examples = [example for example, _ in zip(task.read(given.data), range(count), strict=False)]
    else:
        task = countdown.TASK
        made = generate(count, (3, 4), 99, (10, 99), 0)
        examples = [countdown.example(n, *row) for n, row in enumerate(made)]
    for name, chosen in (("train", examples), ("valid", examples[:1])):
        write_shards(folder / name, [row_of(example) for example in chosen], EXAMPLES, 100_000)
        write_name(folder / name, task.name)
    save_decoder(folder / "base", (text for one in examples for turn in one.turns for text in turn), **SHAPE)
    config = json.loads((folder / "base/config.json").read_text())
    from transformers import Qwen2Config, Qwen2ForCausalLM

    Qwen2ForCausalLM(Qwen2Config(**(config | {"vocab_size": HEAD_ROWS}))).save_pretrained(folder / "base")
    return examples


def tokens_of(folder: Path, examples: list[Any]) -> int:
    from transformers import AutoTokenizer

    from models.conversation import Conversations

    talks = Conversations(AutoTokenizer.from_pretrained(folder / "base"))
    return sum(len(talks.example("", [one.turns[0][0]], [one.turns[0][1]]).ids) for one in examples)


def ours(given: argparse.Namespace) -> dict[str, float]:
    """The job's trainee."""
    os.environ["LOCAL_RANK"] = "0"
    import torch

    from jobs.job import Resources
    from jobs.sft import Config, Inputs, Trainee
    from jobs.trainee import Place
    from models import engine as engines

    engines.quiet()
    engines.keep_memory()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        examples = prepared(given, folder)
        kind = "float32" if given.way.endswith("float32") else "bfloat16"
        config = Config(batch=given.batch, epochs=1, dtype=kind, max_length=LONGEST, packing=given.packing)  # type: ignore[arg-type]
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        inputs = Inputs(folder / "base", folder / "train", folder / "valid")
        place, share = Place(0, 1, "cpu"), Resources(1, float(given.threads), 0.0)
        trainee = Trainee(place, config, inputs, share, folder / "lengths.json")
        return steps(trainee, tokens_of(folder, examples))


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
        examples = prepared(given, folder)
        rows = {
            "prompt": [[{"role": "user", "content": one.turns[0][0]}] for one in examples],
            "completion": [[{"role": "assistant", "content": one.turns[0][1]}] for one in examples],
        }
        model = transformers.AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
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
            packing=given.packing,
            completion_only_loss=True,
            gradient_checkpointing=False,
        )
        SFTTrainer(
            model=model,
            args=settings,
            train_dataset=Dataset.from_dict(rows),
            processing_class=transformers.AutoTokenizer.from_pretrained(folder / "base"),
            peft_config=LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear"),
            callbacks=[Clock()],
        ).train()
        return summary(tokens_of(folder, examples), ends[0], ends[-1], len(ends), losses)


if __name__ == "__main__":
    main()
