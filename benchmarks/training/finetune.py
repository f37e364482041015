"""Finetuning MiniLM with LoRA: tokens per second and peak memory of Ratchet and of sentence-transformers' trainer.

    python -m benchmarks.training.finetune [--data PATH] [--steps 5] [--rounds 2]

Both get the same triplets: `--batch` queries per training step, with one positive and `--negatives` random negatives
each. Texts have their natural lengths (Eedi's CSVs, FlagEmbedding JSONL or a BEIR folder; without `--data` generated
questions). Both use LoRA of rank 32 on all linear layers, and AdamW. Each run is a separate process, in alternation;
the first training step is not timed. Tokens are those of the texts of a training step, without padding, counted in the
same way for both. The last two ways embed each text twice (GradCache) to limit the memory to `--micro-batch` texts at a
time. `make bench` installs the other library.
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
from pathlib import Path
from statistics import median
from typing import Any

WAYS = {
    "ours": "ratchet, bfloat16",
    "ours-float32": "ratchet, float32",
    "peer": "sentence-transformers, float32 (default)",
    "peer-bf16": "sentence-transformers, bf16=True",
    "ours-cached-float32": "ratchet, float32, micro batches",
    "peer-cached": "sentence-transformers, its GradCache loss",
}


def main() -> None:
    given = arguments(__doc__ or "", WAYS, batch=64, negatives=4)
    if given.way:
        print(json.dumps(ours(given) if given.way.startswith("ours") else peer(given)))
    else:
        alternate("benchmarks.training.finetune", WAYS, given)


def arguments(
    about: str, ways: dict[str, str], *, batch: int, negatives: int, flags: tuple[str, ...] = ()
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=5, help="counted; one more is done before")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--negatives", type=int, default=negatives)
    parser.add_argument(
        "--micro-batch", type=int, default=32, help="texts, of the ways with micro batches"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--ways", default=",".join(ways))
    parser.add_argument("--way", help=argparse.SUPPRESS)
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    given = parser.parse_args()
    if given.way:
        import torch

        torch.set_num_threads(given.threads)
    return given


def alternate(module: str, ways: dict[str, str], given: argparse.Namespace) -> None:
    """Runs each way as a process of its own, round by round, and prints the table."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in given.ways.split(",")}
    for _ in range(given.rounds):
        for way in found:
            command = [sys.executable, "-W", "ignore", "-m", module, *sys.argv[1:], "--way", way]
            done = subprocess.run(
                command, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[2]
            )
            if done.returncode:
                print(
                    f"{ways[way]}: {(done.stderr.strip() or 'failed').splitlines()[-1]}",
                    file=sys.stderr,
                )
                continue
            found[way].append(json.loads(done.stdout.strip().splitlines()[-1]))
            print(f"{ways[way]}: {found[way][-1]['tokens_per_s']:,.0f} tokens/s", file=sys.stderr)
    best = {way: max(run["tokens_per_s"] for run in runs) for way, runs in found.items() if runs}
    print(
        f"{'':44}{'tokens/s':>10}{'best':>10}{'a CPU-s':>10}{'peak MiB':>10}{'loss':>9}{'of ours':>9}"
    )
    for way, runs in found.items():
        if runs:
            names = ("tokens_per_s", "tokens_per_cpu_s", "peak_mib")
            speed, each, memory = (median(run[name] for run in runs) for name in names)
            share = f"{best[way] / best['ours']:.2f}" if "ours" in best else ""
            numbers = f"{speed:10,.0f}{best[way]:10,.0f}{each:10,.0f}{memory:10,.0f}{runs[-1]['loss']:9.4f}{share:>9}"
            print(f"{ways[way]:44}{numbers}")


def triplets(given: argparse.Namespace) -> list[tuple[str, str, list[str]]]:
    """(query, positive, negatives) of all steps: queries at random, once each."""
    if given.data:
        from ratchet.data.formats.detection import load_retrieval

        found = load_retrieval(given.data)
        text_of = {document.id: document.text for document in found.corpus}
        pairs = [
            (query.text, text_of[query.positives[0]]) for query in found.queries if query.positives
        ]
    else:
        from benchmarks.misconceptions import RULES, format_query, generate_questions

        sentence = {rule.id: rule.sentence for rule in RULES}
        text_of = sentence
        made = [
            (question, n, rule)
            for question in generate_questions(800, 0)
            for n, rule in enumerate(question.rules)
            if rule
        ]
        pairs = [(format_query(question, n), sentence[rule]) for question, n, rule in made]
    chance = random.Random(0)
    chosen = chance.sample(pairs, min(len(pairs), given.batch * (given.steps + 1)))
    texts = sorted(set(text_of.values()))
    return [
        (query, right, [chance.choice(texts) for _ in range(given.negatives)])
        for query, right in chosen
    ]


def tokens_of(rows: list[tuple[str, str, list[str]]]) -> int:
    """Count the tokens of all texts, each truncated at MiniLM's 256."""
    from transformers import AutoTokenizer

    from ratchet.models.model_files import MINILM, resolve

    tokenizer = AutoTokenizer.from_pretrained(resolve(MINILM))
    texts = [text for query, right, wrong in rows for text in (query, right, *wrong)]
    return sum(map(len, tokenizer(texts, truncation=True, max_length=256)["input_ids"]))


def ours(given: argparse.Namespace) -> dict[str, float]:
    """The job's task."""
    import torch

    from ratchet.jobs.retrieval.embedder_training import EmbedderTask
    from ratchet.jobs.retrieval.finetune_embedder import Config, Inputs
    from ratchet.jobs.training.worker import WorkerInfo
    from ratchet.models import engine
    from ratchet.models.model_files import MINILM, resolve
    from ratchet.orchestrator.job_interface import Resources

    engine.silence_libraries()
    rows = triplets(given)
    config = Config(
        batch_size=given.batch,
        num_negatives=given.negatives,
        temperature=0.05,
        dtype="float32" if given.way.endswith("float32") else "bfloat16",
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, rows)
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        inputs = Inputs(resolve(MINILM), folder / "mined", folder / "corpus", folder / "valid")
        cached = {"micro_batch_size": given.micro_batch} if "cached" in given.way else {}
        resources = Resources(1, cpus=float(given.threads), gpus=0.0, **cached)
        task = EmbedderTask(WorkerInfo(0, 1, "cpu"), config, inputs, resources)
        return steps(task, tokens_of(rows))


def write(folder: Path, rows: list[tuple[str, str, list[str]]]) -> None:
    """The shards corpus, mined and valid (one query), as the jobs want them."""
    from ratchet.data.tables import CORPUS, MINED, QUERIES, write_shards

    texts = sorted({text for _, right, wrong in rows for text in (right, *wrong)})
    number = {text: str(n) for n, text in enumerate(texts)}
    write_shards(
        folder / "corpus", [{"id": number[text], "text": text} for text in texts], CORPUS, 100_000
    )
    mined: list[dict[str, Any]] = [
        {
            "id": str(n),
            "text": query,
            "positives": [number[right]],
            "negatives": [number[text] for text in wrong],
        }
        for n, (query, right, wrong) in enumerate(rows)
    ]
    scores: dict[str, Any] = {"positive_scores": [], "negative_scores": []}
    write_shards(folder / "mined", [row | scores for row in mined], MINED, 100_000)
    write_shards(folder / "valid", [row | {"grades": [1]} for row in mined[:1]], QUERIES, 100_000)


def steps(task: Any, tokens: int) -> dict[str, float]:
    """An epoch of a job's task under DeepSpeed's engine, as a worker of Ray Train runs it."""
    from ratchet.models.engine import configure_malloc, start_engine

    engine = start_engine(
        task.model,
        learning_rate=2e-5,
        weight_decay=0.0,
        max_grad_norm=1.0,
        zero_stage=1,
        device="cpu",
    )
    configure_malloc(task.model)
    losses: list[float] = []
    started = clocks()
    for step in range(task.steps[0]):
        if step == 1:
            started = clocks()
        total, parts = 0.0, task.batch(0, step).microbatches
        for number, part in enumerate(parts, 1):
            share = task.loss(part)
            engine.set_gradient_accumulation_boundary(number == len(parts))
            engine.backward(share)
            total += float(share.detach())
        engine.step()
        losses.append(total)
    return summary(tokens, started, clocks(), task.steps[0], losses)


def peer(given: argparse.Namespace) -> dict[str, float]:
    """SentenceTransformerTrainer with MultipleNegativesRankingLoss and PEFT's LoRA."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    import transformers
    from datasets import Dataset, disable_progress_bars
    from peft import LoraConfig
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import (
        CachedMultipleNegativesRankingLoss,
        MultipleNegativesRankingLoss,
    )

    from ratchet.models.model_files import MINILM, resolve

    disable_progress_bars()
    rows = triplets(given)
    columns: dict[str, list[str]] = {
        "anchor": [row[0] for row in rows],
        "positive": [row[1] for row in rows],
    }
    columns |= {f"negative_{n}": [row[2][n] for row in rows] for n in range(given.negatives)}
    model = SentenceTransformer(str(resolve(MINILM)), device="cpu")
    model.add_adapter(
        LoraConfig(r=32, lora_alpha=64, lora_dropout=0.0, target_modules="all-linear")
    )
    losses: list[float] = []
    ends: list[tuple[float, float]] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(clocks())

    cached = given.way.endswith("cached")
    size = {"mini_batch_size": given.micro_batch} if cached else {}

    class Kept(CachedMultipleNegativesRankingLoss if cached else MultipleNegativesRankingLoss):  # type: ignore[misc]
        def forward(self, *given: Any, **named: Any) -> Any:
            loss = super().forward(*given, **named)
            losses.append(float(loss.detach()))
            return loss

    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
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
        SentenceTransformerTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict(columns),
            loss=Kept(model, scale=20.0, **size),
            callbacks=[Clock()],
        ).train()
    return summary(tokens_of(rows), ends[0], ends[-1], len(ends), losses)


def clocks() -> tuple[float, float]:
    """Seconds of the wall, and of this process's CPUs: the second says more where others use the machine too."""
    return time.perf_counter(), time.process_time()


def summary(
    tokens: int,
    started: tuple[float, float],
    ended: tuple[float, float],
    steps: int,
    losses: list[float],
) -> dict[str, float]:
    """The first step is neither in the clocks nor, by its share, in the tokens."""
    counted = tokens * (steps - 1) / steps
    return {
        "tokens_per_s": counted / (ended[0] - started[0]),
        "tokens_per_cpu_s": counted / (ended[1] - started[1]),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "loss": sum(losses) / len(losses),
    }


if __name__ == "__main__":
    main()
