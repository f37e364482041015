"""generate: a model's answers to a task's questions, several samples each; conversations turn by turn.

Shards of prompts are dealt to workers. An answer's randomness follows from (seed, example, sample, turn): the samples
are the same for any number of workers, and a run that was killed goes on shard by shard.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jobs.job import BadInput, Context, Job, Result
from jobs.shards import Tell, map_shards, rows_of

if TYPE_CHECKING:
    from data.tasks.task import Example


@dataclass(frozen=True)
class Config:
    samples: int = 1
    """Answers to each question."""
    temperature: float = 0.0
    """0: the likeliest token always (then one sample says it all)."""
    top_p: float = 1.0
    """Draw from the likeliest tokens that together have this probability."""
    top_k: int = 0
    """Draw from so many of the likeliest tokens; 0: from all."""
    max_new_tokens: int = 512
    """Of an answer."""
    max_prompt: int = 4096
    """Tokens; a longer prompt is an error, never cut."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of weights and arithmetic."""
    timed: bool = False
    """Answer a group at a time and note the seconds it took: for latency, not for speed. The result then differs from
    run to run."""
    seed: int = 42
    """Of the samples."""


@dataclass(frozen=True)
class Inputs:
    model: Path
    """A Hugging Face folder of a causal language model."""
    examples: Path
    """As `prepare_tasks` writes them."""
    adapter: Path | None = None
    """A LoRA adapter for it."""


def check(config: Config, inputs: Inputs) -> None:
    rules = [
        ("samples", config.samples >= 1, "1 or more"),
        ("temperature", config.temperature >= 0, "0 (the likeliest token) or more"),
        ("samples", config.samples == 1 or config.temperature > 0, "1 at temperature 0, where all would be the same"),
        ("top_p", 0 < config.top_p <= 1, "more than 0, up to 1"),
        ("top_k", config.top_k >= 0, "0 (all) or more"),
        ("max_new_tokens", config.max_new_tokens >= 1, "1 or more"),
        ("max_prompt", config.max_prompt >= 1, "1 or more"),
    ]
    for name, holds, expected in rules:
        if not holds:
            raise BadInput(f"generate.{name}: {getattr(config, name)} given; expected {expected}")
    if inputs.model is not None:
        from models import decoder
        from models.weights import check_folder

        check_folder(inputs.model)
        decoder.check(inputs.model)


class Worker:
    """Answers shards of examples. Writes data.tasks.answers.COMPLETIONS."""

    def __init__(self, config: Config, inputs: Inputs, batch_tokens: int, device: str) -> None:
        from data.tasks import named
        from data.tasks.task import read_name
        from models import decoder
        from models.sampling import Sampling

        self.config, self.batch_tokens = config, batch_tokens
        self.decoder = decoder.load(inputs.model, inputs.adapter, dtype=config.dtype, device=device)
        self.sampling = Sampling(
            temperature=config.temperature,
            top_p=config.top_p,
            top_k=config.top_k,
            max_new_tokens=config.max_new_tokens,
            stop=named(read_name(inputs.examples)).stop,
            seed=config.seed,
        )

    def __call__(self, source: Path, target: Path, tell: Tell) -> dict[str, int]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from data.tables import write_table
        from data.tasks.answers import COMPLETIONS
        from data.tasks.task import example_of

        examples = [example_of(row) for row in pq.read_table(source).to_pylist()]
        rows: list[dict[str, Any]] = []
        tokens = 0
        for part in self._parts(examples):
            answers = self.config.samples * sum(len(example.turns) for example in part)
            before = len(rows), tokens

            def progress(
                done: int, new: int, part: list[Example] = part, of: int = answers, before: Any = before
            ) -> None:
                tell(before[0] + len(part) * done // of, before[1] + new)

            start = time.perf_counter()
            made = self._answered(part, progress)
            seconds = time.perf_counter() - start
            tokens += sum(sum(row["generated_tokens"]) for row in made)
            rows += [row | {"seconds": seconds / len(part) if self.config.timed else None} for row in made]
        write_table(target, pa.Table.from_pylist(rows, COMPLETIONS))
        return {"rows": len(rows), "tokens": tokens}

    def _parts(self, examples: list[Example]) -> list[list[Example]]:
        """All at once, or what belongs together by itself."""
        if not self.config.timed:
            return [examples] if examples else []
        groups: dict[str, list[Example]] = {}
        for example in examples:
            groups.setdefault(example.group, []).append(example)
        return list(groups.values())

    def _answered(self, examples: Sequence[Example], progress: Callable[[int, int], None]) -> list[dict[str, Any]]:
        """Rows of COMPLETIONS. A turn of all conversations is answered before the next is asked."""
        from data.tasks.answers import COMPLETIONS
        from data.tasks.task import row_of
        from models.answering import Talk, converse

        talks = [
            [Talk(f"{one.id}/{sample}", one.system, [q for q, _ in one.turns]) for sample in range(self.config.samples)]
            for one in examples
        ]
        flat = [talk for own in talks for talk in own]
        limits = {"batch_tokens": self.batch_tokens, "max_prompt": self.config.max_prompt}
        converse(self.decoder, flat, self.sampling, progress=progress, **limits)
        return [
            {
                **{name: value for name, value in row_of(example).items() if name in COMPLETIONS.names},
                "answers": [talk.answers for talk in own],
                "prompt_tokens": [talk.prompt_tokens for talk in own],
                "new_prompt_tokens": [talk.new_prompt_tokens for talk in own],
                "shared_tokens": self._shared(example),
                "generated_tokens": [talk.generated_tokens for talk in own],
            }
            for example, own in zip(examples, talks, strict=True)
        ]

    def _shared(self, example: Example) -> int:
        """Tokens of what stands before the last line of the first question: a passage, asked about more than once."""
        head, newline, _ = example.turns[0][0].rpartition("\n\n")
        return len(self.decoder.tokenizer(head + newline, add_special_tokens=False)["input_ids"])


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from data.tables import shard_paths
    from data.tasks.task import EXAMPLES, read_name, write_name

    task = read_name(inputs.examples)
    _same_task("adapter", inputs.adapter, task)
    _same_task("model", inputs.model, task)
    shards = shard_paths(inputs.examples)
    total = rows_of(shards, EXAMPLES.names)
    device = "cuda" if context.resources.gpus else "cpu"
    arguments = {"config": config, "inputs": inputs, "batch_tokens": context.resources.batch_tokens, "device": device}
    counts = map_shards(context, shards, Worker, arguments, context.out, total_rows=total)
    write_name(context.out, task)
    (context.out / "sampling.json").write_text(json.dumps(asdict(config), indent=2, sort_keys=True) + "\n")
    return Result({"examples": counts["rows"], "samples": config.samples, "tokens": counts.get("tokens", 0)})


def _same_task(kind: str, folder: Path | None, task: str) -> None:
    """Raises BadInput for an adapter or a model that learned another task's format here."""
    from data.tasks.task import TASK_FILE, read_name

    if folder is None or not (folder / TASK_FILE).exists():
        return
    learned = read_name(folder)
    if learned != task:
        raise BadInput(
            f"generate.{kind}: {folder} was trained on task {learned}, the examples are of task {task}; expected the"
            f" same, or answers are judged in a format that was never learned; prepare the examples as {learned}"
        )


JOB = Job("generate", version=1, config=Config, inputs=Inputs, run=run, check=check)
