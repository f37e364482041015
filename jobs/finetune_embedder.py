"""finetune_embedder: a LoRA adapter for an embedder, by contrast with mined negatives; the best epoch is kept.

Legend: Q queries of a step, P its passages (each text once), D dimensions.

All workers know a step's whole batch. Its queries and its passages are dealt out by length, each worker embeds its
share, passages are gathered with their gradient: the loss is the same for any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs import finetuning, standing
from jobs.job import BadInput, Context, Job, Resources, Result
from jobs.trainee import Place, gathered

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from models.contract import Contract

ICL = "<instruct>{task}\n<query>{text}\n<response>"
"""bge-en-icl's template; with the answer behind it, an example's."""

TEMPLATE_TOKENS = 32
"""What a template and a task take, about; what they take exactly is looked at when the model is loaded."""

CPU_TOKENS = 2048
"""Padded tokens of a forward pass on CPUs: what is larger leaves the caches."""


@dataclass(frozen=True)
class Config(finetuning.Lists):
    temperature: float = 0.02
    """Similarities are divided by it (tau)."""
    in_batch_negatives: bool = True
    """Whether the passages of all other queries of the step, on all workers, are negatives too."""
    false_negative_mask: bool = True
    """Leave out passages that are known positives of the query, or its own text."""
    task: str = ""
    """What is looked for, in a sentence: stands for `{task}` in the templates. Empty: the contract's."""
    query_template: str = ""
    """With `{text}`, and `{task}` if wanted. Empty: the contract's; with examples, bge-en-icl's."""
    query_max_length: int | None = None
    """Tokens of a query's own text; None: the contract's."""
    examples: int = 0
    """In-context examples before a query in training: 0 to so many, from other training queries, anew each epoch."""
    fixed_examples: int = 0
    """Examples that are kept in the contract, for mining and evaluation: the same before every query."""
    example_max_length: int = 128
    """Tokens of an example's query, and of its answer."""


@dataclass(frozen=True)
class Inputs:
    base: Path
    """A Hugging Face model folder."""
    mined: Path
    """Queries with positives and negatives, as `mine` writes them; with a teacher's scores if it is to distil."""
    corpus: Path
    """The texts behind their ids."""
    valid: Path
    """Held-out queries with positives."""
    incumbent: Path | None = None
    """The adapter to beat; None: the base as it is."""


def check(config: Config, inputs: Inputs) -> None:
    enough = config.negatives > 0 or config.in_batch_negatives
    rules = [
        ("temperature", config.temperature > 0, "more than 0; 0.01 to 0.1 is usual"),
        ("batch", config.batch >= 2, "2 or more; a query learns from the others' passages too"),
        ("negatives", enough, "1 or more where in_batch_negatives is off"),
        ("distillation", enough or config.distillation == "none", "none where there are no negatives"),
        ("examples", config.examples >= 0, "0 or more"),
        ("fixed_examples", 0 <= config.fixed_examples <= config.examples, "0 up to examples, which training knows"),
        ("example_max_length", config.example_max_length >= 1, "1 or more tokens"),
        ("query_max_length", config.query_max_length is None or config.query_max_length >= 1, "1 or more tokens"),
    ]
    finetuning.check("finetune_embedder", config, inputs.base, [*config.rules(), *rules])
    if inputs.base is None:
        return
    from models import contract

    length = contract.read(inputs.base).shortened(config.max_length).max_length
    taken = config.examples * (2 * config.example_max_length + TEMPLATE_TOKENS)
    left = length - taken - TEMPLATE_TOKENS
    if config.examples and left < (config.query_max_length or 1):
        raise BadInput(
            f"finetune_embedder.examples: {config.examples} given, of up to {2 * config.example_max_length} tokens"
            f" each, with a max_length of {length}; that leaves {max(0, left)} for the query, expected"
            f" {config.query_max_length or 'some'}; raise max_length, or lower examples or example_max_length"
        )


@dataclass(frozen=True)
class Share:
    """What one worker computes in one step; token ids, and who stands where."""

    query_ids: list[list[int]]
    passage_ids: list[list[int]]
    offsets: list[int]
    """Where each worker's passages begin among all."""
    member_QG: Tensor
    """The place of each query's positive and negatives among all passages; -1 where a query has fewer."""
    teacher_QG: Tensor | None
    mask_QP: Tensor | None
    queries: int
    """Of all workers."""


class Trainee:
    """An embedder with LoRA; see jobs.trainee.Trainee."""

    def __init__(self, place: Place, config: Config, inputs: Inputs, resources: Resources) -> None:
        from data.tables import read_shards
        from data.triplets import Triplets
        from models import contract, encoder
        from models.lockstep import Lockstep

        self.place, self.config, self.inputs, self.resources = place, config, inputs, resources
        self.corpus = read_shards(inputs.corpus, ["id", "text"])
        self.valid = read_shards(inputs.valid, ["id", "text", "positives"])
        taught = config.distillation != "none"
        self.triplets = Triplets(read_shards(inputs.mined), self.corpus, teacher=taught)
        self.steps = finetuning.steps("finetune_embedder", self.triplets, config, place)
        self.device = "cpu" if place.device == "cpu" else "cuda"
        from_incumbent = inputs.incumbent if config.start == "incumbent" else None
        own = contract.read(contract.home(inputs.base, from_incumbent))
        agreed = self._contract(own.shortened(config.max_length))
        self.encoder = encoder.load(
            inputs.base,
            dtype=config.dtype,
            device=self.device,
            contract=agreed,
            training=True,
            quantization=config.quantization,
        )
        self.model = finetuning.adapted(self.encoder.model, config, from_incumbent)
        self.encoder.model = self.model
        self.lockstep = Lockstep(self.model, self.device, needed=config.zero_stage == 3)
        self.ahead: dict[tuple[int, int], Future[Share]] = {}
        self.thread = ThreadPoolExecutor(1)

    def _contract(self, given: Contract) -> Contract:
        """The base's, with what the settings say; this is what is trained, and kept with the adapter."""
        from dataclasses import replace

        config, data = self.config, self.triplets
        changes: dict[str, Any] = {"task": config.task, "query_template": config.query_template}
        changes = {name: value for name, value in changes.items() if value}
        changes["query_max_length"] = config.query_max_length or given.query_max_length
        if config.examples:
            template = config.query_template or ICL
            # The first queries in an order of their own: a query may be among its own fixed examples, as in evaluation.
            fixed = data.batches(config.seed, -1 & 0xFFFF, len(data))[0][: config.fixed_examples].tolist()
            changes |= {
                "query_template": template,
                "example_template": template + "{answer}",
                "example_max_length": config.example_max_length,
                "examples": tuple(self._example(query, int(data.positives(query)[0])) for query in fixed),
            }
        return replace(given, **changes)

    def _example(self, query: int, answer: int) -> tuple[str, str]:
        return self.triplets.query_text[query].as_py(), self.triplets.corpus_text[answer].as_py()

    def start(self) -> dict[str, float]:
        from models import encoder

        incumbent = self.inputs.incumbent
        if incumbent is None or self.config.start == "incumbent":
            return self.evaluate()  # training begins as what is to be beaten
        return self._metrics(encoder.load(self.inputs.base, incumbent, dtype=self.config.dtype, device=self.device))

    def evaluate(self) -> dict[str, float]:
        from models.loading import evaluating

        with evaluating(self.model):
            return self._metrics(self.encoder)

    def save(self, folder: Path) -> None:
        from models import lora

        lora.save(self.model, folder)
        self.encoder.contract.write(folder)

    def parts(self, epoch: int, step: int) -> list[Callable[[], tuple[Tensor, int]]]:
        """One part: in-batch negatives need all passages at once."""
        return [partial(self.loss, epoch, step)]

    def loss(self, epoch: int, step: int) -> tuple[Tensor, int]:
        from models.distillation import objective
        from models.losses import gather_with_gradient, worker_share

        share, config = self._prepared(epoch, step), self.config
        query_QD, own_PD = self._embed(share.query_ids), self._embed(share.passage_ids)
        zero = self.lockstep.finish(self._blank)
        passage_PD = gather_with_gradient(own_PD, offsets=share.offsets)
        logits_QP = query_QD.float() @ passage_PD.float().T / config.temperature
        mask_QP = None if share.mask_QP is None else share.mask_QP.to(self.device)
        total = objective(
            config.distillation,
            logits_QP,
            share.member_QG.to(self.device),
            None if share.teacher_QG is None else share.teacher_QG.to(self.device),
            mask_QP=mask_QP,
            label_smoothing=config.label_smoothing,
            teacher_temperature=config.teacher_temperature,
        )
        tokens = sum(map(len, share.query_ids)) + sum(map(len, share.passage_ids))
        return worker_share(total, share.queries, self.place.workers) + zero, tokens

    def _blank(self) -> Tensor:
        import torch

        ids_BL = torch.zeros((1, 2), dtype=torch.int64, device=self.device)
        return self.encoder.embed(ids_BL, torch.ones_like(ids_BL))

    def _prepared(self, epoch: int, step: int) -> Share:
        """The step's share; the next step's is made meanwhile."""
        share = self.ahead.pop((epoch, step), None)
        now = share.result() if share is not None else self._prepare(epoch, step)
        if step + 1 < self.steps[epoch]:
            self.ahead[epoch, step + 1] = self.thread.submit(self._prepare, epoch, step + 1)
        return now

    def _prepare(self, epoch: int, step: int) -> Share:
        import numpy as np
        import torch

        from data.triplets import padded
        from models.losses import false_negative_mask

        config, data, place = self.config, self.triplets, self.place
        batch = data.step(config.seed, epoch, step, config.batch, config.negatives, place.rank, place.workers)
        member_QG = torch.from_numpy(padded(batch.own_Q, -1))
        mask_QP = None
        if config.false_negative_mask:
            known = [data.text_of_row[data.positives(int(query))] for query in batch.query_Q]
            mask_QP = false_negative_mask(
                torch.from_numpy(data.text_of_row[batch.passage_P]),
                member_QG[:, 0],
                torch.from_numpy(np.cumsum([0, *map(len, known)])),
                torch.from_numpy(np.concatenate(known)),
                query_text_Q=torch.from_numpy(data.text_of_query[batch.query_Q]),
            )
        if not config.in_batch_negatives:
            others_QP = torch.ones((len(batch.query_Q), len(batch.passage_P)), dtype=torch.bool)
            for i, own in enumerate(batch.own_Q):
                others_QP[i, torch.from_numpy(own)] = False
            mask_QP = others_QP if mask_QP is None else mask_QP | others_QP
        queries = data.query_text.take(batch.query_Q).to_pylist()
        mine = batch.passage_P[batch.offsets[place.rank] : batch.offsets[place.rank + 1]]
        passages = data.corpus_text.take(mine).to_pylist()
        tokenize = self.encoder.tokenize
        return Share(
            tokenize(queries, "query", self._examples(epoch, batch.query_Q)),
            tokenize(passages, "passage"),
            batch.offsets,
            member_QG,
            None if batch.teacher_Q is None else torch.from_numpy(padded(batch.teacher_Q, 0.0)),
            mask_QP,
            batch.queries,
        )

    def _examples(self, epoch: int, query_Q: np.ndarray) -> list[list[tuple[str, str]]] | None:
        """For each query its own; None: there are to be none, ever."""
        config = self.config
        if not config.examples:
            return None
        drawn = [self.triplets.examples(config.seed, epoch, int(query), config.examples) for query in query_Q]
        return [[self._example(*pair) for pair in own] for own in drawn]

    def _embed(self, ids: list[list[int]]) -> Tensor:
        """float32 [rows, D] with gradient, in batches of like length."""
        import numpy as np
        import torch

        from models.batching import pad
        from models.length_groups import length_groups

        on_cpu = self.device == "cpu"
        multiple, tokens = (4, CPU_TOKENS) if on_cpu else (8, self.resources.batch_tokens)
        parts, order = [], []
        for batch in length_groups([len(row) for row in ids], tokens, multiple):
            side, filler = self.encoder.contract.padding_side, self.encoder.tokenizer.pad_token_id
            ids_BL, mask_BL = pad([ids[i] for i in batch], filler, side, multiple)
            parts.append(self.encoder.embed(ids_BL.to(self.device), mask_BL.to(self.device)).float())
            order.append(batch)
        back = np.argsort(np.concatenate(order))
        return torch.cat(parts)[torch.from_numpy(back).to(self.device)]

    def _metrics(self, model: Any) -> dict[str, float]:
        """Exact metrics on `valid`: each worker embeds and counts a part of the corpus; ranks add."""
        import numpy as np
        import torch

        from data.triplets import rows_of
        from models.rank_metrics import rank_metrics
        from models.ranks import RankCounter, Relevant, relevant_scores

        place = self.place
        asked = np.array_split(np.arange(len(self.valid)), place.workers)[place.rank]
        held = np.array_split(np.arange(len(self.corpus)), place.workers)[place.rank]
        budget = self.resources.batch_tokens
        texts = self.valid["text"].take(asked).to_pylist()
        own_QD = model.encode(texts, "query", batch_tokens=budget)
        first = int(held[0]) if len(held) else 0
        block_ND = model.encode(self.corpus["text"].take(held).to_pylist(), "passage", batch_tokens=budget)
        if model is self.encoder:
            with torch.no_grad():
                self.lockstep.finish(self._blank)
        query_QD = np.concatenate(gathered(own_QD))
        rows, ends = rows_of(self.valid, "positives", self.corpus)
        relevant = Relevant(ends, rows)
        scores_R = np.fmax.reduce(gathered(relevant_scores(query_QD, relevant, [(first, block_ND)])))
        counter = RankCounter(relevant, scores_R, query_QD=query_QD)
        counter.add(first, block_ND)
        ranks_R = 1 + np.sum(gathered(counter.before_R), axis=0)
        return finetuning.shown(self.config, partial(rank_metrics, ranks_R, relevant), "map@25", "r@25")


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    config = standing.heard(config, inputs.mined)
    arguments = {"config": config, "inputs": inputs, "resources": context.resources}
    return finetuning.finetuned(context, config, Trainee, arguments, inputs.incumbent)


JOB = Job(
    "finetune_embedder",
    version=1,
    config=Config,
    inputs=Inputs,
    run=run,
    check=check,
    longer=("epochs", finetuning.why_not_longer),
)
