"""sft: supervised finetuning on a task's answers, by LoRA or of all weights; the loss is on the answers' tokens only.

The model is measured on held-out examples as it trains (loss, and the judge's verdict on what it writes); the best is
kept, and, where asked for, the model after each of some steps.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jobs import finetuning
from jobs.job import BadInput, Context, Job, Resources, Result
from jobs.trainee import Place, gathered

if TYPE_CHECKING:
    from torch import Tensor

    from models.conversation import Tokens

CPU_TOKENS = 2048
"""Padded tokens of a forward pass on CPUs: what is larger leaves the caches."""
LONGEST = 2048
"""Tokens of an example, where `max_length` says nothing."""


@dataclass(frozen=True)
class Config(finetuning.Settings):
    batch: int = 16
    """Examples per optimizer step, over all workers."""
    method: Literal["lora", "full"] = "lora"
    """`full` trains all weights, and writes a model instead of an adapter."""
    rank: int = 16
    """Of the LoRA matrices."""
    alpha: float = 32.0
    """LoRA's update is scaled by alpha / rank."""
    max_length: int | None = None
    """Tokens of an example; None: 2,048. Longer ones are left out whole, and counted."""
    packing: bool = False
    """Put short examples into rows of `max_length` tokens, where none sees the others: no padding, the same loss."""
    checkpoints: tuple[int, ...] = ()
    """Steps after which the model is measured and kept, beside the best one; empty: it is measured after each epoch."""
    share: float = 1.0
    """Of the loss on the targets; the rest is on the teacher's distributions (lambda x CE + (1 - lambda) x KL)."""
    teacher_temperature: float = 1.0
    """Teacher's and student's logits are divided by it in the latter."""
    valid_rows: int = 64
    """Held-out examples that the model answers at each measuring; 0: their loss alone is measured, on all of them."""
    max_new_tokens: int = 512
    """Of such an answer."""
    metric: str = "accuracy"
    """On `valid`: accuracy (the judge's), or eval_loss."""


@dataclass(frozen=True)
class Inputs:
    base: Path
    """A Hugging Face folder of a causal language model."""
    train: Path
    """Examples as `prepare_tasks` writes them."""
    valid: Path
    """Held-out examples of the same task."""
    teacher: Path | None = None
    """A teacher's distributions over the tokens of `train`, by `teach`."""
    incumbent: Path | None = None
    """The adapter to beat; None: the base as it is."""


def check(config: Config, inputs: Inputs) -> None:
    rising = list(config.checkpoints) == sorted(set(config.checkpoints)) and min(config.checkpoints, default=1) >= 1
    rules: list[finetuning.Rule] = [
        ("batch", config.batch >= 1, "1 example or more"),
        ("method", config.method in ("lora", "full"), "lora or full"),
        (
            "method",
            config.method == "lora" or config.quantization == "none",
            "lora with nf4, whose weights are not trained",
        ),
        ("method", config.method == "lora" or config.start == "base", "lora to go on from an adapter"),
        ("checkpoints", rising, "rising numbers of steps"),
        ("checkpoints", not config.checkpoints or config.eval_steps is None, "no eval_steps beside it"),
        ("share", 0 <= config.share <= 1, "0 to 1"),
        ("teacher_temperature", config.teacher_temperature > 0, "more than 0; 1 leaves the logits alone"),
        ("valid_rows", config.valid_rows >= 0, "0 (the loss alone) or more"),
        ("max_new_tokens", config.max_new_tokens >= 1, "1 or more"),
        ("metric", config.metric in ("accuracy", "eval_loss"), "accuracy or eval_loss"),
        ("metric", config.metric == "eval_loss" or config.valid_rows > 0, "eval_loss where valid_rows is 0"),
        ("zero_stage", config.zero_stage < 3, "2 or less: answers are written while training"),
    ]
    finetuning.check("sft", config, inputs.base, rules)
    if inputs.base is not None:
        from models import decoder

        decoder.check(inputs.base)


class Trainee:
    """A causal language model; see jobs.trainee.Trainee."""

    def __init__(self, place: Place, config: Config, inputs: Inputs, resources: Resources, lengths: Path) -> None:
        from data.tasks import named
        from data.tasks.task import read_name
        from models import decoder

        self.place, self.config, self.inputs, self.resources = place, config, inputs, resources
        if config.share < 1 and inputs.teacher is None:
            raise BadInput(
                f"sft.share: {config.share} given, without a teacher; expected 1, or a teacher's distributions"
            )
        self.task = named(read_name(inputs.train))
        if read_name(inputs.valid) != self.task.name:
            raise BadInput(
                f"sft.valid: of task {read_name(inputs.valid)} given, to train on {self.task.name}; expected the same;"
                " prepare both as one task"
            )
        self.device = "cpu" if place.device == "cpu" else "cuda"
        self.decoder = decoder.load(
            inputs.base, dtype=config.dtype, device=self.device, training=True, quantization=config.quantization
        )
        if config.method == "lora":
            from_incumbent = inputs.incumbent if config.start == "incumbent" else None
            self.model = finetuning.adapted(self.decoder.model, config, from_incumbent, task="CAUSAL_LM")
            self.decoder.model = self.model
        else:
            self.model = self.decoder.model
            if config.gradient_checkpointing:
                self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.longest = config.max_length or LONGEST
        names, self.examples, left_out = self._tokens(inputs.train, self._rows(inputs.train))
        held_out = self._rows(inputs.valid)
        _, self.valid, _ = self._tokens(inputs.valid, held_out)
        self.valid_rows = held_out[: config.valid_rows]
        self.teachers = self._taught(names) if inputs.teacher is not None else None
        if place.rank == 0:
            sizes = [len(one.ids) for one in self.examples]
            lengths.write_text(json.dumps({"examples": len(sizes), "left out": left_out, "longest": max(sizes)}))
        per_epoch = -(-len(self.examples) // config.batch)
        smallest = len(self.examples) // per_epoch
        if smallest < place.workers:
            raise BadInput(
                f"sft.workers: {place.workers} given, for steps of {smallest} examples; expected at most one worker per"
                " example; lower workers, or raise batch"
            )
        self.steps = [per_epoch] * config.epochs

    def _rows(self, folder: Path) -> list[Any]:
        from data.tables import read_shards
        from data.tasks.task import EXAMPLES, example_of

        return [example_of(row) for row in read_shards(folder, EXAMPLES.names).to_pylist()]

    def _tokens(self, folder: Path, examples: list[Any]) -> tuple[list[str], list[Tokens], int]:
        """(ids, token ids, how many were left out): what is too long is left out whole, never cut."""
        names, kept, left_out = [], [], 0
        for example in examples:
            questions, targets = zip(*example.turns, strict=True)
            tokens = self.decoder.conversations.example(example.system, questions, targets)
            if len(tokens.ids) > self.longest:
                left_out += 1
                continue
            names.append(example.id)
            kept.append(tokens)
        if not kept:
            raise BadInput(
                f"sft.max_length: {self.longest} given, and all {left_out} examples of {folder} are longer; expected"
                " some that fit; raise it"
            )
        return names, kept, left_out

    def _taught(self, names: list[str]) -> list[Any]:
        """The teacher's distributions, for each example."""
        import numpy as np

        from data.tables import read_shards
        from data.tasks.answers import TAUGHT
        from models.answer_loss import Teacher

        assert self.inputs.teacher is not None
        rows = {row["id"]: row for row in read_shards(self.inputs.teacher, TAUGHT.names).to_pylist()}
        found = []
        for name, tokens in zip(names, self.examples, strict=True):
            row = rows.get(name)
            if row is None or len(row["ids"]) != row["top"] * tokens.labels:
                said = "nothing" if row is None else "something else"
                raise BadInput(
                    f"sft.teacher: {self.inputs.teacher} says {said} on example {name}; expected a distribution for"
                    " each token of its answer; let `teach` read the same examples"
                )
            shape = (tokens.labels, row["top"])
            ids, logs = np.array(row["ids"], np.int32), np.array(row["logs"], np.float32)
            found.append(Teacher(ids.reshape(shape), logs.reshape(shape)))
        return found

    def start(self) -> dict[str, float]:
        from models import decoder

        incumbent = self.inputs.incumbent
        if incumbent is None or self.config.start == "incumbent":
            return self.evaluate()  # training begins as what is to be beaten
        kept, self.decoder = (
            self.decoder,
            decoder.load(self.inputs.base, incumbent, dtype=self.config.dtype, device=self.device),
        )
        try:
            return self.evaluate()
        finally:
            self.decoder = kept

    def save(self, folder: Path) -> None:
        from data.tasks.task import write_name
        from models import lora
        from models.loading import quiet
        from models.weights import TOKENIZER_FILES

        if self.config.method == "lora":
            lora.save(self.model, folder)
        else:
            with quiet():
                self.model.save_pretrained(str(folder), safe_serialization=True)
            # The base's own files: transformers, which may add tokens when it loads them, would save those too.
            for file in (file for pattern in TOKENIZER_FILES for file in self.inputs.base.glob(pattern)):
                shutil.copyfile(file, folder / file.name)
        write_name(folder, self.task.name)

    def parts(self, epoch: int, step: int) -> list[Callable[[], tuple[Tensor, int]]]:
        import numpy as np

        from data.triplets import deal

        order = np.random.default_rng([self.config.seed, epoch]).permutation(len(self.examples))
        chosen = np.array_split(order, self.steps[epoch])[step]
        labels = sum(self.examples[i].labels for i in chosen)
        own = chosen[deal(np.array([len(self.examples[i].ids) for i in chosen]), self.place.workers)[self.place.rank]]
        groups = self._groups([self.examples[i] for i in own])
        most = max(gathered(len(groups)))
        rows = [[[int(own[i]) for i in row] for row in group] for group in groups]
        return [partial(self._share, group, labels) for group in [*rows, *[[]] * (most - len(rows))]]

    def _groups(self, examples: Sequence[Tokens]) -> list[list[list[int]]]:
        """Forward passes of rows of examples."""
        from models.answer_loss import packed
        from models.length_groups import length_groups

        if not examples:
            return []
        sizes = [len(one.ids) for one in examples]
        rows = packed(sizes, self.longest) if self.config.packing else [[i] for i in range(len(sizes))]
        lengths = [sum(sizes[i] for i in row) for row in rows]
        cpu = self.device == "cpu"
        tokens, multiple = (CPU_TOKENS, 4) if cpu else (self.resources.batch_tokens, 8)
        groups = length_groups(lengths, tokens, multiple)
        if (most := self.resources.micro_batch) is not None:
            groups = [group[at : at + most] for group in groups for at in range(0, len(group), most)]
        return [[rows[i] for i in group] for group in groups]

    def _share(self, rows: list[list[int]], labels: int) -> tuple[Tensor, int]:
        """This worker's share of the mean loss over the step's labels; of no rows too, with a pass of weight 0, that
        all workers have in common."""
        from models import answer_loss

        weight = self.place.workers / labels if rows else 0.0
        chosen = rows or [[0]]
        loss = answer_loss.loss(
            self.decoder,
            [[self.examples[i] for i in row] for row in chosen],
            None if self.teachers is None else [[self.teachers[i] for i in row] for row in chosen],
            share=self.config.share,
            temperature=self.config.teacher_temperature,
            multiple=4 if self.device == "cpu" else 8,
        )
        return loss * weight, sum(len(self.examples[i].ids) for row in rows for i in row)

    def evaluate(self) -> dict[str, float]:
        import numpy as np
        import torch

        from models import answer_loss
        from models.loading import evaluating

        rank, workers = self.place.rank, self.place.workers
        own = [self.valid[i] for i in np.arange(len(self.valid))[rank::workers]]
        total = 0.0
        with evaluating(self.decoder.model), torch.no_grad():
            for group in self._groups(own):
                total += float(answer_loss.loss(self.decoder, [[own[i] for i in row] for row in group]))
            right, asked = self._answered(rank, workers)
        labels = sum(one.labels for one in self.valid)
        found = {"eval_loss": round(sum(gathered(total)) / labels, 6)}
        if self.valid_rows:
            found["accuracy"] = round(sum(gathered(right)) / sum(gathered(asked)), 6)
        return found

    def _answered(self, rank: int, workers: int) -> tuple[int, int]:
        """(questions answered correctly, questions) of this worker's part of the held-out examples, greedily."""
        from models.answering import Talk, converse
        from models.sampling import Sampling

        sampling = Sampling(temperature=0, max_new_tokens=self.config.max_new_tokens, stop=self.task.stop)
        mine = self.valid_rows[rank::workers]
        talks = [Talk(example.id, example.system, [question for question, _ in example.turns]) for example in mine]
        converse(self.decoder, talks, sampling, batch_tokens=self.resources.batch_tokens)
        judged = [
            verdict.name
            for example, talk in zip(mine, talks, strict=True)
            for verdict in self.task.judge(example.gold, talk.answers)
        ]
        return judged.count("correct"), len(judged)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    lengths = context.work / "lengths.json"
    arguments = {"config": config, "inputs": inputs, "resources": context.resources, "lengths": lengths}
    full = config.method == "full"
    result = finetuning.finetuned(
        context,
        config,
        Trainee,
        arguments,
        inputs.incumbent,
        checkpoints=config.checkpoints,
        folder="model" if full else "adapter",
        keep=partial(_keep_base, inputs.base) if full else None,
    )
    found = json.loads(lengths.read_text())
    counts = {"examples": found["examples"], "too long, left out": found["left out"], "longest": found["longest"]}
    (context.out / "history.json").write_text(json.dumps({"tables": result.tables, "curves": result.curves}) + "\n")
    return Result({**result.metrics, **counts}, result.tables, result.curves)


def _keep_base(base: Path, incumbent: Path | None, folder: Path) -> None:
    """The base's own files, where all weights were trained and nothing was better."""
    shutil.rmtree(folder)
    shutil.copytree(base, folder)


JOB = Job(
    "sft",
    version=1,
    config=Config,
    inputs=Inputs,
    run=run,
    check=check,
    longer=("epochs", finetuning.why_not_longer),
)
