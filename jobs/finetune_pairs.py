"""finetune_pairs: a LoRA adapter for an embedder, by contrast of a global batch of any size; the best one is kept.

Pairs are statements of one paper, drawn anew in each epoch; the loss is symmetric InfoNCE over all pairs of a step, on
all workers. A step embeds every text twice (models.grad_cache), so that memory is that of a micro batch, and the loss
is streamed (models.streamed_loss), so that it is never that of the matrix of similarities.

Legend: N pairs of this worker, R = 2 N texts (all left ones first), D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs import finetuning
from jobs.job import BadInput, Context, Job, Resources, Result
from jobs.trainee import Place, gathered

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from models.contract import Contract

CPU_TOKENS = 2048
"""Padded tokens of a forward pass on CPUs: what is larger leaves the caches."""


@dataclass(frozen=True)
class Config(finetuning.Settings):
    batch: tuple[int, ...] = (1024,)
    """Pairs per optimizer step, over all workers: of each epoch, the last number for all that follow."""
    drop_last: bool = True
    """Leave out an epoch's last pairs where they do not fill a batch."""
    temperature: float = 0.07
    """Similarities are divided by it (tau)."""
    mask_paper: bool = True
    """Whether other statements of the same paper are no negatives."""
    chunk: int = 256
    """Rows of a tile of the streamed loss."""
    projection: int | None = None
    """Dimensions of the vectors, by a linear layer that is trained too; None: as the base has it."""
    metric: str = "mrr"
    """On `valid`: mrr, map, or p@K, r@K, map@K, ndcg@K, hit@K."""


@dataclass(frozen=True)
class Inputs:
    base: Path
    """A Hugging Face model folder."""
    train: Path
    """Statements as `prepare_papers` writes them for training."""
    valid: Path
    """Held-out statements; of each, the others of its paper are relevant."""
    incumbent: Path | None = None
    """The adapter to beat; None: the base as it is."""


def check(config: Config, inputs: Inputs) -> None:
    rules = [
        finetuning.retrieval_metric(config),
        ("batch", bool(config.batch) and min(config.batch, default=0) >= 2, "2 pairs or more, for each epoch"),
        ("temperature", config.temperature > 0, "more than 0; 0.01 to 0.1 is usual"),
        ("chunk", config.chunk >= 1, "1 or more"),
        ("projection", config.projection is None or config.projection >= 1, "1 or more dimensions, or none"),
    ]
    finetuning.check("finetune_pairs", config, inputs.base, rules)
    if inputs.base is None or config.projection is None:
        return
    from models import contract, projection

    if own := contract.read(inputs.base).projection:
        dim = projection.dimensions(inputs.base / own)
        if dim != config.projection:
            raise BadInput(
                f"finetune_pairs.projection: {config.projection} given; the base projects to {dim} already;"
                " expected that number, or none"
            )


class Trainee:
    """An embedder with LoRA; see jobs.trainee.Trainee."""

    def __init__(self, place: Place, config: Config, inputs: Inputs, resources: Resources) -> None:
        from data.pairing import Pairing
        from data.papers import STATEMENTS
        from data.tables import open_mapped, read_shards
        from models import contract, encoder
        from models.lockstep import Lockstep

        self.place, self.config, self.inputs, self.resources = place, config, inputs, resources
        self.pairing = Pairing(open_mapped(inputs.train), config.batch, drop_last=config.drop_last)
        if config.mask_paper and self.pairing.papers < 2:
            raise BadInput(
                f"finetune_pairs.mask_paper: true given, for {inputs.train} where only one paper has pairs; expected"
                " two, one to be told from the other; give more papers, or mask_paper=false"
            )
        self.valid = read_shards(inputs.valid, STATEMENTS.names)
        self.steps = [self.pairing.steps(epoch) for epoch in range(config.epochs)]
        self.device = "cpu" if place.device == "cpu" else "cuda"
        from_incumbent = inputs.incumbent if config.start == "incumbent" else None
        agreed = contract.read(contract.home(inputs.base, from_incumbent)).shortened(config.max_length)
        self.encoder = encoder.load(
            inputs.base,
            dtype=config.dtype,
            device=self.device,
            contract=agreed,
            training=True,
            quantization=config.quantization,
            home=contract.home(inputs.base, from_incumbent),
        )
        self.model = finetuning.adapted(self.encoder.model, config, from_incumbent)
        self.encoder.model = self.model
        self._project(contract.read(inputs.base))
        self.lockstep = Lockstep(self.model, self.device, needed=config.zero_stage == 3)

    def _project(self, base: Contract) -> None:
        """Adds a fresh projection where the base has none and one is asked for, or takes the incumbent's; trains it."""
        from models import projection

        one, dim = self.encoder, self.config.projection
        self.projects = dim is not None and not base.projection
        self.is_fresh = self.projects and one.projection is None
        if self.is_fresh and dim is not None:
            one.projection = projection.fresh(one.dim, dim, self.config.seed).to(one.device, one.dtype)
            one.contract = replace(one.contract, projection=projection.FOLDER)
        if self.projects and one.projection is not None:
            self.model.projection = one.projection.requires_grad_()  # one module holds all that is trained

    def start(self) -> dict[str, float]:
        from models import encoder

        incumbent = self.inputs.incumbent
        if incumbent is None and self.is_fresh:
            fresh, self.encoder.projection = self.encoder.projection, None
            try:
                return self.evaluate()
            finally:
                self.encoder.projection = fresh
        if incumbent is None or self.config.start == "incumbent":
            return self.evaluate()  # training begins as what is to be beaten
        return self._metrics(encoder.load(self.inputs.base, incumbent, dtype=self.config.dtype, device=self.device))

    def evaluate(self) -> dict[str, float]:
        from models.loading import evaluating

        with evaluating(self.model):
            return self._metrics(self.encoder)

    def save(self, folder: Path) -> None:
        from models import lora, projection

        lora.save(self.model, folder)
        self.encoder.contract.write(folder)
        if self.projects and self.encoder.projection is not None:
            projection.save(self.encoder.projection, folder / self.encoder.contract.projection)

    def parts(self, epoch: int, step: int) -> list[Callable[[], tuple[Tensor, int]]]:
        """Embeds all of this worker's texts without a graph; a part does so with one, for a micro batch."""
        import numpy as np
        import torch

        from models import grad_cache
        from models.streamed_loss import symmetric_info_nce_gradient

        config, place = self.config, self.place
        drawn = self.pairing.step(config.seed, epoch, step, place.rank, place.workers)
        texts = self.pairing.texts(np.concatenate([drawn.left_N, drawn.right_N]))
        ids_R = self.encoder.tokenize(texts, "passage")
        group_N = torch.from_numpy(drawn.paper_N).to(self.device) if config.mask_paper else None

        def gradient(vector_RD: Tensor) -> tuple[Tensor, Tensor]:
            sides = vector_RD[: len(drawn.left_N)], vector_RD[len(drawn.left_N) :]
            options: dict[str, Any] = {"temperature": config.temperature, "group_N": group_N, "chunk": config.chunk}
            loss, *gradients = symmetric_info_nce_gradient(*sides, **options)
            return loss, torch.cat(gradients)

        batches = self._batches([len(ids) for ids in ids_R])
        again = grad_cache.parts(partial(self._embed, ids_R), batches, gradient, place.workers)
        tokens = [sum(len(ids_R[row]) for row in batch) for batch in batches]
        return [partial(_counted, part, count) for part, count in zip(again, tokens, strict=True)]

    def _batches(self, lengths: list[int]) -> list[np.ndarray]:
        """Rows of like length that fit in memory together; equally many batches on all workers, some perhaps empty."""
        import numpy as np

        from models.length_groups import length_groups

        most = self.resources.micro_batch
        multiple, tokens = (4, CPU_TOKENS) if self.device == "cpu" else (8, self.resources.batch_tokens)
        if most is not None:
            order = np.argsort(lengths, kind="stable")
            groups = np.array_split(order, -(-len(order) // most)) if len(order) else []
        else:
            groups = length_groups(lengths, tokens, multiple) if lengths else []
        wanted = max(gathered(len(groups)))
        return [*groups, *[np.zeros(0, np.int64)] * (wanted - len(groups))]

    def _embed(self, ids_R: list[list[int]], rows: np.ndarray) -> Tensor:
        """float32 [rows, D]; of no rows too, with a pass that all workers have in common."""
        from models.batching import pad

        side, filler = self.encoder.contract.padding_side, self.encoder.tokenizer.pad_token_id
        chosen = [ids_R[row] for row in rows] or [[filler, filler]]
        ids_BL, mask_BL = pad(chosen, filler, side, 4 if self.device == "cpu" else 8)
        return self.encoder.embed(ids_BL.to(self.device), mask_BL.to(self.device)).float()[: len(rows)]

    def _metrics(self, model: Any) -> dict[str, float]:
        """Exact metrics on `valid`, each statement against all others: each worker embeds and counts a part."""
        import numpy as np
        import torch

        from data.papers import numbers, others
        from models.rank_metrics import rank_metrics
        from models.ranks import RankCounter, Relevant, relevant_scores

        held = np.array_split(np.arange(len(self.valid)), self.place.workers)[self.place.rank]
        texts = self.valid["text"].take(held).to_pylist()
        block_ND = model.encode(texts, "passage", batch_tokens=self.resources.batch_tokens)
        if model is self.encoder:
            with torch.no_grad():
                self.lockstep.finish(partial(self._embed, [], np.zeros(0, np.int64)))
        all_ND = np.concatenate(gathered(block_ND))
        first = int(held[0]) if len(held) else 0
        every = np.arange(len(all_ND))
        relevant = Relevant(*others(numbers(self.valid), every))
        scores_R = np.fmax.reduce(gathered(relevant_scores(all_ND, relevant, [(first, block_ND)])))
        counter = RankCounter(relevant, scores_R, query_QD=all_ND, exclude_Q=every)
        counter.add(first, block_ND)
        ranks_R = 1 + np.sum(gathered(counter.before_R), axis=0)
        return finetuning.shown(self.config, partial(rank_metrics, ranks_R, relevant), "mrr", "p@1", "r@10", "r@100")


def _counted(part: Callable[[], Tensor], tokens: int) -> tuple[Tensor, int]:
    return part(), tokens


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from models import contract

    arguments = {"config": config, "inputs": inputs, "resources": context.resources}
    alone = config.projection is None or bool(contract.read(inputs.base).projection)
    return finetuning.finetuned(context, config, Trainee, arguments, inputs.incumbent, base_can=alone)


JOB = Job(
    "finetune_pairs",
    version=1,
    config=Config,
    inputs=Inputs,
    run=run,
    check=check,
    longer=("epochs", finetuning.why_not_longer),
)
