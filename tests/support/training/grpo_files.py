"""Questions with a verifier that a random decoder satisfies now and then, the decoder, and settings to train it."""

from __future__ import annotations

from pathlib import Path

from tiny_models import save_chat_model

from ratchet.data.tables import write_shards
from ratchet.data.tasks.chat import make_task
from ratchet.data.tasks.task import SAMPLES, Sample, sample_to_row, write_task_name
from ratchet.jobs.on_policy import grpo

VERIFIER = "def verify(gold, answers):\n    return '' < answers[0][:1] <= '~'\n"
FAST = grpo.Config(
    steps=6,
    batch_size=3,
    num_completions=4,
    max_new_tokens=6,
    learning_rate=1e-2,
    method="full",
    dtype="float32",
    valid_samples=4,
    save_steps=2,
)


def make_grpo_files(folder: Path) -> grpo.Inputs:
    """Write train/, valid/ and base/."""
    verifier = folder / "mine.py"
    verifier.write_text(VERIFIER)
    texts = []
    for name, count in (("train", 7), ("valid", 4)):
        turns = [
            (f"{name} {'question ' * (number % 3 + 1)}{number}", "so") for number in range(count)
        ]
        rows = [
            sample_to_row(Sample(str(i), "", "", (turn,), "so")) for i, turn in enumerate(turns)
        ]
        write_shards(folder / name, rows, SAMPLES, 10)
        write_task_name(folder / name, "chat", **make_task("verify", verifier).source)
        texts += [question for question, _ in turns]
    save_chat_model(folder / "base", texts)
    given = (folder / "base", folder / "train", folder / "valid")
    return grpo.Inputs(*given, verifier_file=verifier)
