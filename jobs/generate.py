"""generate: a model's answers to a task's questions, several samples each; conversations turn by turn.

Shards of prompts are dealt to workers. An answer's randomness follows from (seed, example, sample, turn): the samples
are the same for any number of workers, and a run that was killed goes on shard by shard. By Hugging Face `generate`, or
by vLLM, which draws other samples into the same artifact.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jobs.job import BadInput, Context, Job, Result
from jobs.shards import Tell, map_shards, rows_of
from jobs.vllm_shards import ask_shards

if TYPE_CHECKING:
    from data.tasks.task import Example
    from models.answering import Talk
    from models.sampling import Sampling


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
    engine: Literal["transformers", "vllm"] = "transformers"
    """`vllm` batches prompts as they come and go, for many of them on GPUs; questions must stand alone. An adapter is
    merged first."""
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
    if config.engine == "vllm":
        _check_vllm(config, inputs)
    if inputs.model is not None:
        from models import decoder
        from models.weights import check_folder

        check_folder(inputs.model)
        decoder.check(inputs.model)


def _check_vllm(config: Config, inputs: Inputs) -> None:
    if importlib.util.find_spec("vllm") is None:
        raise BadInput(
            "generate.engine: 'vllm' given; expected it to be installed (the extra: pip install '.[vllm]'); or set"
            " engine=transformers"
        )
    if config.timed:
        raise BadInput(
            "generate.timed: True given, with engine 'vllm', which answers all groups at once; expected False there; or"
            " set engine=transformers"
        )
    if 0 < config.temperature < 0.01:
        raise BadInput(
            f"generate.temperature: {config.temperature} given; expected 0, or 0.01 and more with engine 'vllm', which"
            " would take another; or set engine=transformers"
        )
    if inputs.examples is not None:
        _check_single_turns(inputs.examples)


def _check_single_turns(examples: Path) -> None:
    from data.tables import read_shards

    turns = max(map(len, read_shards(examples, ["questions"])["questions"].to_pylist()), default=0)
    if turns > 1:
        raise BadInput(
            f"generate.engine: 'vllm' given, for conversations of up to {turns} turns ({examples}); expected questions"
            " that stand alone, as requests pass through Ray Data's engines once and a next question needs the answer"
            " before it; set engine=transformers"
        )


class Worker:
    """Answers shards of examples. Writes data.tasks.answers.COMPLETIONS."""

    def __init__(self, config: Config, inputs: Inputs, batch_tokens: int, device: str) -> None:
        from models import decoder

        self.config, self.batch_tokens = config, batch_tokens
        self.decoder = decoder.load(inputs.model, inputs.adapter, dtype=config.dtype, device=device)
        self.sampling = _sampling(config, inputs)

    def __call__(self, source: Path, target: Path, tell: Tell) -> dict[str, int]:
        import pyarrow as pa

        from data.tables import write_table
        from data.tasks.answers import COMPLETIONS

        examples = _examples(source)
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
        """Rows of COMPLETIONS, without the seconds. A turn of all conversations is answered before the next."""
        from models.answering import converse

        talks = _talks(examples, self.config.samples)
        flat = [talk for own in talks for talk in own]
        limits = {"batch_tokens": self.batch_tokens, "max_prompt": self.config.max_prompt}
        converse(self.decoder, flat, self.sampling, progress=progress, **limits)
        return _rows(examples, talks, self.decoder.tokenizer)


class Asker:
    """Has shards of examples answered elsewhere, by requests that stand alone. Writes the same."""

    def __init__(self, config: Config, inputs: Inputs, device: str) -> None:
        from models import decoder

        self.config, self.inputs, self.device = config, inputs, device
        self.conversations = decoder.conversations(inputs.model)
        self.sampling = _sampling(config, inputs)

    def requests(self, source: Path) -> list[tuple[list[int], dict[str, Any]]]:
        from models import vllm

        return [
            (
                talk.prompt(self.conversations, self.config.max_prompt),
                vllm.parameters(self.sampling, self.conversations.ends, talk.next_name),
            )
            for own in _talks(_examples(source), self.config.samples)
            for talk in own
        ]

    def settings(self, longest: int) -> dict[str, Any]:
        from models import vllm

        return vllm.settings(self.inputs.model, dtype=self.config.dtype, device=self.device, longest=longest)

    def write(self, source: Path, target: Path, answers: Sequence[Sequence[int]]) -> dict[str, int]:
        import pyarrow as pa

        from data.tables import write_table
        from data.tasks.answers import COMPLETIONS

        examples = _examples(source)
        talks = _talks(examples, self.config.samples)
        for talk, ids in zip((talk for own in talks for talk in own), answers, strict=True):
            talk.add(talk.prompt(self.conversations), ids, self.conversations.text(ids))
        rows = [row | {"seconds": None} for row in _rows(examples, talks, self.conversations.tokenizer)]
        write_table(target, pa.Table.from_pylist(rows, COMPLETIONS))
        return {"rows": len(rows), "tokens": sum(map(len, answers))}


def _sampling(config: Config, inputs: Inputs) -> Sampling:
    from data.tasks import named
    from data.tasks.task import read_name
    from models.sampling import Sampling

    return Sampling(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        max_new_tokens=config.max_new_tokens,
        stop=named(read_name(inputs.examples)).stop,
        seed=config.seed,
    )


def _examples(shard: Path) -> list[Example]:
    import pyarrow.parquet as pq

    from data.tasks.task import example_of

    return [example_of(row) for row in pq.read_table(shard).to_pylist()]


def _talks(examples: Sequence[Example], samples: int) -> list[list[Talk]]:
    """Of each example, of each sample: nothing answered yet."""
    from models.answering import Talk

    return [
        [Talk(f"{one.id}/{sample}", one.system, [q for q, _ in one.turns]) for sample in range(samples)]
        for one in examples
    ]


def _rows(examples: Sequence[Example], talks: Sequence[Sequence[Talk]], tokenizer: Any) -> list[dict[str, Any]]:
    """Of COMPLETIONS, without the seconds."""
    from data.tasks.answers import COMPLETIONS
    from data.tasks.task import row_of

    return [
        {
            **{name: value for name, value in row_of(example).items() if name in COMPLETIONS.names},
            "answers": [talk.answers for talk in own],
            "prompt_tokens": [talk.prompt_tokens for talk in own],
            "new_prompt_tokens": [talk.new_prompt_tokens for talk in own],
            "shared_tokens": shared_tokens(example, tokenizer),
            "generated_tokens": [talk.generated_tokens for talk in own],
        }
        for example, own in zip(examples, talks, strict=True)
    ]


def shared_tokens(example: Example, tokenizer: Any) -> int:
    """Tokens of what stands before the last line of the first question: a passage, asked about more than once."""
    head, newline, _ = example.turns[0][0].rpartition("\n\n")
    return len(tokenizer(head + newline, add_special_tokens=False)["input_ids"])


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from data.tables import shard_paths
    from data.tasks.task import EXAMPLES, read_name, write_name

    task = read_name(inputs.examples)
    _same_task("adapter", inputs.adapter, task)
    _same_task("model", inputs.model, task)
    shards = shard_paths(inputs.examples)
    total = rows_of(shards, EXAMPLES.names)
    device = "cuda" if context.resources.gpus else "cpu"
    if config.engine == "vllm":
        _check_vllm(config, inputs)  # the examples were perhaps still to come at plan time
        asker = Asker(config, inputs, device)
        model = _merged(context, config, inputs, device)
        counts = ask_shards(context, shards, model, asker, context.out, total_rows=total, each=config.samples)
    else:
        arguments = {"config": config, "inputs": inputs, "device": device}
        arguments |= {"batch_tokens": context.resources.batch_tokens}
        counts = map_shards(context, shards, Worker, arguments, context.out, total_rows=total)
    write_name(context.out, task)
    (context.out / "sampling.json").write_text(json.dumps(asdict(config), indent=2, sort_keys=True) + "\n")
    return Result({"examples": counts["rows"], "samples": config.samples, "tokens": counts.get("tokens", 0)})


def _merged(context: Context, config: Config, inputs: Inputs, device: str) -> Path:
    """The model's folder, with the adapter in its weights where there is one: what the other engine answers with."""
    from models import decoder

    if inputs.adapter is None:
        return inputs.model
    merged = context.work / "merged"
    decoder.merge(inputs.model, inputs.adapter, merged, dtype=config.dtype, device=device)
    return merged


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
