"""finetune_pairs: a LoRA adapter for an embedder, by contrast of a global batch of any size; the best one is kept.

Pairs are statements of one paper, drawn anew in each epoch; the loss is symmetric InfoNCE over all pairs of a step, on
all workers. A step embeds every text twice (models.grad_cache), so that memory is that of a micro batch, and the loss
is streamed (models.streamed_loss), so that it is never that of the matrix of similarities.

Legend: N pairs of this worker, R = 2 N texts (all left ones first), D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs import finetuning
from jobs.job import Context, Job, Resources, Result
from jobs.training import Place, gathered

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

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
        ("batch", bool(config.batch) and min(config.batch, default=0) >= 2, "2 pairs or more, for each epoch"),
        ("temperature", config.temperature > 0, "more than 0; 0.01 to 0.1 is usual"),
        ("chunk", config.chunk >= 1, "1 or more"),
    ]
    finetuning.check("finetune_pairs", config, inputs.base, rules)


class Trainee:
    """An embedder with LoRA; see jobs.training.Trainee."""

    def __init__(self, place: Place, config: Config, inputs: Inputs, resources: Resources) -> None:
        from data.pairing import Pairing
        from data.papers import STATEMENTS
        from data.tables import open_mapped, read_shards
        from models import contract, encoder
        from models.lockstep import Lockstep

        self.place, self.config, self.inputs, self.resources = place, config, inputs, resources
        self.pairing = Pairing(open_mapped(inputs.train), config.batch, drop_last=config.drop_last)
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
        )
        self.model = finetuning.adapted(self.encoder.model, config, from_incumbent)
        self.encoder.model = self.model
        self.lockstep = Lockstep(self.model, self.device, needed=config.zero_stage == 3)

    def start(self) -> dict[str, float]:
        from models import encoder

        incumbent = self.inputs.incumbent
        if incumbent is None or self.config.start == "incumbent":
            return self.evaluate()  # training begins as what is to be beaten
        return self._metrics(encoder.load(self.inputs.base, incumbent, dtype=self.config.dtype, device=self.device))

    def evaluate(self) -> dict[str, float]:
        self.model.eval()
        try:
            return self._metrics(self.encoder)
        finally:
            self.model.train()

    def save(self, folder: Path) -> None:
        from models import lora

        lora.save(self.model, folder)
        self.encoder.contract.write(folder)

    def parts(self, epoch: int, step: int) -> list[Callable[[], tuple[Tensor, int]]]:
        """Embeds all of this worker's texts without a graph; a part does so with one, for a micro batch."""
        import numpy as np
        import torch

        from models import grad_cache
        from models.streamed_loss import symmetric_info_nce_gradient

        config, place = self.config, self.place
        drawn = self.pairing.step(config.seed, epoch, step, place.rank, place.workers)
        texts = self.pairing.text.take(np.concatenate([drawn.left_N, drawn.right_N])).to_pylist()
        ids_R = self.encoder.tokenize(texts, "passage")
        group_N = torch.from_numpy(drawn.paper_N).to(self.device) if config.mask_paper else None

        def gradient(vector_RD: Tensor) -> tuple[Tensor, Tensor]:
            left_ND, right_ND = vector_RD.split(len(drawn.left_N))
            options: dict[str, Any] = {"temperature": config.temperature, "group_N": group_N, "chunk": config.chunk}
            loss, *gradients = symmetric_info_nce_gradient(left_ND, right_ND, **options)
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

    def _blank(self) -> Tensor:
        import torch

        ids_BL = torch.zeros((1, 2), dtype=torch.int64, device=self.device)
        return self.encoder.embed(ids_BL, torch.ones_like(ids_BL))

    def _metrics(self, model: Any) -> dict[str, float]:
        """Exact metrics on `valid`, each statement against all others: each worker embeds and counts a part."""
        import numpy as np
        import torch

        from data.papers import numbers, others
        from models.ranks import RankCounter, Relevant, rank_metrics, relevant_scores

        held = np.array_split(np.arange(len(self.valid)), self.place.workers)[self.place.rank]
        texts = self.valid["text"].take(held).to_pylist()
        block_ND = model.encode(texts, "passage", batch_tokens=self.resources.batch_tokens)
        if model is self.encoder:
            with torch.no_grad():
                self.lockstep.finish(self._blank)
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
    arguments = {"config": config, "inputs": inputs, "resources": context.resources}
    return finetuning.finetuned(context, config, Trainee, arguments, inputs.incumbent)


JOB = Job("finetune_pairs", version=1, config=Config, inputs=Inputs, run=run, check=check)
