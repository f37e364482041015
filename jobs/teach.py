"""teach: a teacher's likeliest tokens at every label of a task's examples, once per teacher and data, for `sft`.

Teacher and student must have the same tokens: log-probabilities of other ones mean nothing. (A teacher with another
vocabulary teaches by its answers: `accept`.)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jobs.job import BadInput, Context, Job, Result
from jobs.shards import Tell, map_shards, rows_of


@dataclass(frozen=True)
class Config:
    top: int = 32
    """Tokens that are kept of each distribution."""
    max_length: int = 2048
    """Tokens of an example; longer ones are an error."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of weights and arithmetic."""


@dataclass(frozen=True)
class Inputs:
    model: Path
    """The teacher: a Hugging Face folder of a causal language model."""
    examples: Path
    """As `prepare_tasks` writes them."""
    student: Path
    """The model that will learn; only its tokenizer is read."""
    adapter: Path | None = None
    """A LoRA adapter of the teacher."""


def check(config: Config, inputs: Inputs) -> None:
    if config.top < 2:
        raise BadInput(f"teach.top: {config.top} given; expected 2 or more")
    if inputs.model is None or inputs.student is None:
        return
    from models import decoder
    from models.weights import check_folder

    for folder in (inputs.model, inputs.student):
        check_folder(folder)
        decoder.check(folder)
    decoder.check_same_tokens(inputs.model, inputs.student)


class Worker:
    """Writes id, ids (int32 [T x K], by label) and logs (float32) of each example."""

    def __init__(self, config: Config, inputs: Inputs, batch_tokens: int, device: str) -> None:
        from models import decoder

        self.config, self.batch_tokens = config, batch_tokens
        self.decoder = decoder.load(inputs.model, inputs.adapter, dtype=config.dtype, device=device)

    def __call__(self, source: Path, target: Path, tell: Tell) -> dict[str, int]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from data.tables import write_table
        from data.tasks.answers import TAUGHT
        from data.tasks.task import example_of
        from models.answer_loss import likeliest
        from models.batching import token_batches

        examples = [example_of(row) for row in pq.read_table(source).to_pylist()]
        tokens = []
        for example in examples:
            questions, targets = zip(*example.turns, strict=True)
            tokens.append(self.decoder.conversations.example(example.system, questions, targets))
            if len(tokens[-1].ids) > self.config.max_length:
                raise BadInput(
                    f"teach.max_length: example {example.id} has {len(tokens[-1].ids)} tokens; expected at most"
                    f" {self.config.max_length}; raise it, or leave the example out"
                )
        rows: list[dict[str, Any]] = [{} for _ in examples]
        done = 0
        batches = token_batches([len(one.ids) for one in tokens], self.batch_tokens) if tokens else []
        for batch in batches:
            for i, found in zip(
                batch, likeliest(self.decoder, [tokens[i] for i in batch], self.config.top), strict=True
            ):
                own = {"ids": found.ids_TK.ravel(), "logs": found.log_TK.ravel(), "top": found.ids_TK.shape[1]}
                rows[i] = {"id": examples[i].id} | own
            done += sum(len(tokens[i].ids) for i in batch)
            tell(sum(bool(row) for row in rows), done)
        write_table(target, pa.Table.from_pylist(rows, TAUGHT))
        return {"rows": len(rows), "tokens": done}


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from data.tables import shard_paths
    from data.tasks.task import EXAMPLES, read_name, write_name

    shards = shard_paths(inputs.examples)
    total = rows_of(shards, EXAMPLES.names)
    device = "cuda" if context.resources.gpus else "cpu"
    arguments = {"config": config, "inputs": inputs, "batch_tokens": context.resources.batch_tokens, "device": device}
    counts = map_shards(context, shards, Worker, arguments, context.out, total_rows=total)
    write_name(context.out, read_name(inputs.examples))
    return Result({"examples": counts["rows"], "tokens": counts.get("tokens", 0), "top": config.top})


JOB = Job("teach", version=1, config=Config, inputs=Inputs, run=run, check=check)
