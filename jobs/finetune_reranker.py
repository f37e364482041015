"""finetune_reranker: a LoRA adapter for a reranker, on groups of one positive and mined negatives; the best epoch is
kept by what reranking does to held-out lists.

Legend: Q queries of a step, G members of a group (the positive first).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs import finetuning, standing
from jobs.job import BadInput, Context, Job, Resources, Result
from jobs.trainee import Place, gathered

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from data.triplets import Step
    from models.pair_rows import Row

CPU_TOKENS = 2048
"""Padded tokens of a forward pass on CPUs: what is larger leaves the caches."""

MICRO_BATCH = 8
"""Queries whose groups are in memory at once, where the resources name no other number."""


@dataclass(frozen=True)
class Config(finetuning.Lists):
    negatives: int = 15
    """Mined negatives per query and step, drawn anew each epoch."""
    query_max_length: int | None = None
    """Tokens of the query in a pair; None: the contract's."""
    depth: int = 25
    """Of each held-out list, as many documents are reranked."""


@dataclass(frozen=True)
class Inputs:
    base: Path
    """A Hugging Face model folder: a decoder, a cross-encoder, or an encoder, which gets a classifier's head."""
    mined: Path
    """Queries with positives and negatives, as `mine` writes them; with a teacher's scores if it is to distil."""
    corpus: Path
    """The texts behind their ids."""
    valid: Path
    """Held-out queries with positives."""
    ranking: Path
    """Of `valid`, as `evaluate_retrieval` writes it: the lists that are reranked."""
    incumbent: Path | None = None
    """The adapter to beat; None: the base as it is, or, where it cannot score yet, the lists as they are."""


def check(config: Config, inputs: Inputs) -> None:
    rules = [
        ("batch", config.batch >= 1, "1 or more"),
        ("negatives", config.negatives >= 1, "1 or more; a group of one teaches nothing"),
        ("depth", config.depth >= 2, "2 or more documents to put in order"),
    ]
    finetuning.check("finetune_reranker", config, inputs.base, [*rules, *config.rules()])
    if inputs.base is not None:
        from models import pairs

        pairs.read(inputs.base).shortened(config.max_length, config.query_max_length)


class Trainee:
    """A reranker with LoRA; see jobs.trainee.Trainee."""

    def __init__(self, place: Place, config: Config, inputs: Inputs, resources: Resources) -> None:
        from data.tables import RANKED, read_shards
        from data.triplets import Triplets
        from models import pairs, reranker
        from models.contract import home
        from models.lockstep import Lockstep

        self.place, self.config, self.inputs, self.resources = place, config, inputs, resources
        corpus = read_shards(inputs.corpus, ["id", "text"])
        self.text_of = dict(zip(corpus["id"].to_pylist(), corpus["text"].to_pylist(), strict=True))
        self.valid = read_shards(inputs.valid, ["id", "text", "positives"]).to_pylist()
        self.lists = read_shards(inputs.ranking, RANKED.names).to_pylist()
        if [row["id"] for row in self.lists] != [row["id"] for row in self.valid]:
            raise BadInput(f"{inputs.ranking}: a ranking of other queries than {inputs.valid}; expected the same")
        self.triplets = Triplets(read_shards(inputs.mined), corpus, teacher=config.distillation != "none")
        if not self.triplets.negatives:
            raise BadInput(
                f"{inputs.mined}: no query has a negative; expected some to tell from the positives; mine them"
            )
        self.steps = finetuning.steps("finetune_reranker", self.triplets, config, place)
        self.device = "cpu" if place.device == "cpu" else "cuda"
        from_incumbent = inputs.incumbent if config.start == "incumbent" else None
        self.contract = pairs.read(home(inputs.base, from_incumbent)).shortened(
            config.max_length, config.query_max_length
        )
        self.reranker = reranker.load(
            inputs.base,
            dtype=config.dtype,
            device=self.device,
            contract=self.contract,
            training=True,
            quantization=config.quantization,
            seed=config.seed,
        )
        self.model = finetuning.adapted(
            self.reranker.model,
            config,
            from_incumbent,
            whole=reranker.heads(self.reranker),
            task="CAUSAL_LM" if self.contract.kind == "yes_no" else "SEQ_CLS",
        )
        self.reranker.model = self.model
        self.lockstep = Lockstep(self.reranker.called, self.device, needed=config.zero_stage == 3)

    def start(self) -> dict[str, float]:
        from models import reranker

        incumbent = self.inputs.incumbent
        if incumbent is None and not reranker.can_score(self.inputs.base):
            return self._measured([row["ranks"] for row in self.lists])
        if incumbent is None or self.config.start == "incumbent":
            return self.evaluate()  # training begins as what is to be beaten
        return self._reranked(reranker.load(self.inputs.base, incumbent, dtype=self.config.dtype, device=self.device))

    def evaluate(self) -> dict[str, float]:
        from models.loading import evaluating

        with evaluating(self.model):
            return self._reranked(self.reranker)

    def save(self, folder: Path) -> None:
        from models import lora

        lora.save(self.model, folder)
        self.contract.write(folder)

    def parts(self, epoch: int, step: int) -> list[Callable[[], tuple[Tensor, int]]]:
        """Groups know nothing of each other: as many as fit in memory at a time."""
        import numpy as np

        config, place = self.config, self.place
        data = (config.seed, epoch, step, config.batch, config.negatives, place.rank, place.workers)
        batch = self.triplets.step(*data)
        # The same number on all workers, and none of them empty.
        least, most = batch.queries // place.workers, -(-batch.queries // place.workers)
        count = min(least, -(-most // (self.resources.micro_batch or MICRO_BATCH)))
        return [partial(self._part, batch, own) for own in np.array_split(np.arange(len(batch.query_Q)), count)]

    def _part(self, batch: Step, chosen: np.ndarray) -> tuple[Tensor, int]:
        import torch

        from data.triplets import padded
        from models.distillation import objective
        from models.losses import worker_share

        config, data = self.config, self.triplets
        queries = data.query_text.take(batch.query_Q[chosen]).to_pylist()
        passages = [data.corpus_text.take(batch.passage_P[batch.own_Q[q]]).to_pylist() for q in chosen]
        rows = self.reranker.rows(queries, passages)
        scores = torch.split(self._scores(rows), [len(own) for own in passages])
        score_QG = torch.nn.utils.rnn.pad_sequence(list(scores), batch_first=True)
        sizes_Q1 = torch.tensor([[len(own)] for own in passages], device=score_QG.device)
        member_QG = torch.arange(score_QG.shape[1], device=score_QG.device).expand(len(passages), -1)
        gap_QG = member_QG >= sizes_Q1
        teacher_QG = None
        if batch.teacher_Q is not None:
            teacher_QG = torch.from_numpy(padded([batch.teacher_Q[q] for q in chosen], 0.0)).to(score_QG.device)
        total = objective(
            config.distillation,
            score_QG,
            member_QG.masked_fill(gap_QG, -1),
            teacher_QG,
            mask_QP=gap_QG,
            label_smoothing=config.label_smoothing,
            teacher_temperature=config.teacher_temperature,
        )
        zero = self.lockstep.finish(self._blank)
        return worker_share(total, batch.queries, self.place.workers) + zero, sum(len(row.ids) for row in rows)

    def _blank(self) -> Tensor:
        from models.pair_rows import whole

        return self.reranker.forward([whole([], [0, 0], None)])

    def _scores(self, rows: Sequence[Row]) -> Tensor:
        """float32 [pairs] with gradient, in batches of like length."""
        import numpy as np
        import torch

        from models.length_groups import length_groups
        from models.pair_rows import places

        multiple, tokens = (4, CPU_TOKENS) if self.device == "cpu" else (8, self.resources.batch_tokens)
        groups = length_groups([len(row.ids) for row in rows], tokens, multiple)
        scores = torch.cat([self.reranker.forward([rows[i] for i in group], multiple) for group in groups])
        places_of = places(rows)
        order = np.argsort(np.concatenate([places_of[i] for group in groups for i in group]))
        return scores[torch.from_numpy(order).to(scores.device)]

    def _reranked(self, model: Any) -> dict[str, float]:
        """Metrics of the held-out lists as `model` orders them; each worker scores a part of them."""
        import numpy as np
        import torch

        from data.rankings import reranked

        depth = self.config.depth
        mine = np.array_split(np.arange(len(self.valid)), self.place.workers)[self.place.rank]
        lists = [self.lists[q]["documents"][:depth] for q in mine]
        texts = [[self.text_of[name] for name in documents] for documents in lists]
        queries = [self.lists[q]["text"] for q in mine]
        scores = model.score(queries, texts, batch_tokens=self.resources.batch_tokens)
        if model is self.reranker:
            with torch.no_grad():
                self.lockstep.finish(self._blank)
        ranks = [
            reranked(documents, own, self.valid[q]["positives"], self.lists[q]["ranks"])[1]
            for q, documents, own in zip(mine, lists, scores, strict=True)
        ]
        return self._measured([own for part in gathered(ranks) for own in part])

    def _measured(self, ranks: list[list[int]]) -> dict[str, float]:
        """Of all held-out lists, with how likely the lead over the lists as they were is chance."""
        p_value = standing.p_value(self._before, self._each(ranks))
        return {**_metrics(self.config, ranks), "p-value": float(f"{p_value:.4g}")}

    @cached_property
    def _before(self) -> list[float]:
        """The deciding metric of each list as it was: the same at every evaluation."""
        return self._each([row["ranks"] for row in self.lists])

    def _each(self, ranks: Sequence[Sequence[int]]) -> list[float]:
        return [_metrics(self.config, [own])[self.config.metric] for own in ranks]


def _metrics(config: Config, ranks: Sequence[Sequence[int]]) -> dict[str, float]:
    """Of each list's ranks of its positives."""
    import numpy as np

    from models.rank_metrics import rank_metrics
    from models.ranks import Relevant

    # Which rows are relevant does not matter here: only how many, and their ranks.
    relevant = Relevant.of([list(range(len(own))) for own in ranks])
    flat_R = np.array([rank for own in ranks for rank in own], np.int64)
    return finetuning.shown(config, partial(rank_metrics, flat_R, relevant), "map@25", "r@25")


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from data.tables import read_shards
    from models import reranker

    config = standing.heard(config, inputs.mined)
    arguments = {"config": config, "inputs": inputs, "resources": context.resources}
    alone = reranker.can_score(inputs.base)
    result = finetuning.finetuned(context, config, Trainee, arguments, inputs.incumbent, base_can=alone)
    lists = _metrics(config, read_shards(inputs.ranking, ["ranks"])["ranks"].to_pylist())[config.metric]
    (kept,) = (row for row in result.tables[next(iter(result.tables))] if row["best"])
    found = standing.Standing(config.metric, lists, kept[f"valid {config.metric}"], kept["valid p-value"])
    found.write(context.out / "standing")
    return replace(result, metrics={**result.metrics, "teaches": str(found)})


JOB = Job(
    "finetune_reranker",
    version=3,
    config=Config,
    inputs=Inputs,
    run=run,
    check=check,
    longer=("epochs", finetuning.why_not_longer),
)
