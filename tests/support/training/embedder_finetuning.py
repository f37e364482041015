"""Finetuning of a tiny BERT as an embedder: settings, contexts, and a worker that is killed."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from ray import cloudpickle
from step_process import run_step

from ratchet.jobs.retrieval import finetune_embedder
from ratchet.jobs.retrieval.finetune_embedder import Config, Inputs
from ratchet.orchestrator.job_interface import Context, Progress, Resources, Result

FAST = Config(
    epochs=5,
    batch_size=16,
    num_negatives=3,
    lora_r=16,
    lora_alpha=32.0,
    learning_rate=5e-3,
    temperature=0.1,
    dtype="float32",
    seed=3,
    significance_level=1.0,  # few queries are held out
)

LONG = dataclasses.replace(FAST, epochs=1, batch_size=2, save_steps=8, learning_rate=2e-3)

SHOWN = dataclasses.replace(
    FAST,
    num_examples=3,
    example_query_max_length=5,
    example_answer_max_length=5,
    query_template="t0x7 {text} t1x7 ",
    query_max_length=6,
)


def write_examples(folder: Path) -> Path:
    """Write two few-shot examples."""
    file = folder / "examples.jsonl"
    lines = [{"query": f"q{n}x1 q{n}x2", "answer": f"t{n}x1"} for n in (1, 2)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


class Lines:
    """Writes Context.progress to a file, with the id of the reporting process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, progress: Progress) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([os.getpid(), progress.done, progress.stage]) + "\n")

    def read(self) -> list[tuple[int, float, str]]:
        return (
            [tuple(json.loads(line)) for line in self.path.read_text().splitlines()]
            if self.path.exists()
            else []
        )


def context(
    folder: Path, workers: int = 1, retries: int = 1, micro_batch_size: int | None = None
) -> Context:
    cloudpickle.register_pickle_by_value(
        sys.modules[__name__]
    )  # Ray workers cannot import tests/support
    for name in ("out", "work"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    resources = Resources(
        workers, cpus=2 / workers, gpus=0.0, retries=retries, micro_batch_size=micro_batch_size
    )
    return Context(
        "tune", "cd" * 32, 1, folder / "out", folder / "work", resources, Lines(folder / "progress")
    )


def losses(result: Result) -> list[float]:
    return result.curves["loss against step"]["y"]


def train_with_a_killed_worker(
    folder: Path, config: Config, inputs: Inputs, workers: int
) -> Result:
    """Kill one worker after the first checkpoint; the training resumes from it."""
    here = context(folder, workers)
    told = here.progress
    killed: list[int] = []

    def kill() -> None:
        while not killed:
            time.sleep(0.02)
            killed.extend(
                pid for pid, done, _ in told.read() if done >= 20
            )  # Ray has the first checkpoint
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    result = run_step(finetune_embedder.run, here, config, inputs)
    thread.join(timeout=1)
    after = [done for pid, done, _ in told.read() if pid != killed[0]]
    assert after, "the worker was not killed in time"
    assert min(after) >= 8, "steps before the last checkpoint were not done again"
    return result
