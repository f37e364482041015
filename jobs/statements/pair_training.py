"""Training of an embedder on pairs of statements: batches, loss and evaluation.

A pair is two statements of one paper; pairs are drawn anew in each epoch. The loss is symmetric InfoNCE over all pairs
of a batch, on all workers. Gradient caching (`ratchet.models.losses.grad_cache`) limits the memory to that of a micro
batch. The loss is computed in tiles (`ratchet.models.losses.tiled_contrastive_loss`), so the similarity matrix is never
stored.

Legend: N pairs of this worker, R = 2 N texts (first all left ones, then all right ones), D dimensions.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ratchet.data.formats.papers import STATEMENTS, number_papers, other_statements
from ratchet.data.pair_batches import PairBatch, PairSampler
from ratchet.data.tables import open_mapped, read_shards, take_texts
from ratchet.errors import InputError
from ratchet.jobs.training.embedder_passes import EmbeddingTask
from ratchet.jobs.training.evaluation import Evaluation, evaluate_rows
from ratchet.jobs.training.task import Batch
from ratchet.jobs.training.worker import WorkerInfo, gather_objects
from ratchet.models.embedder import projection
from ratchet.models.embedder.encoder import Encoder
from ratchet.models.embedder.encoding_config import EncodingConfig, read_encoding_config
from ratchet.models.losses.tiled_contrastive_loss import symmetric_info_nce_gradient
from ratchet.models.search.ranks import Relevant
from ratchet.orchestrator.job_interface import Resources

if TYPE_CHECKING:
    from ratchet.jobs.statements.finetune_embedder_pairs import Config, Inputs


class PairTask(EmbeddingTask):
    job = "finetune_embedder_pairs"
    config: "Config"
    inputs: "Inputs"

    def __init__(
        self, worker: WorkerInfo, config: "Config", inputs: "Inputs", resources: Resources
    ) -> None:
        super().__init__(worker, config, inputs, resources)
        statements = open_mapped(inputs.train)
        self.sampler = PairSampler(statements, config.batch_size, seed=config.seed)
        if config.mask_paper and self.sampler.papers < 2:
            raise InputError(
                f"finetune_embedder_pairs.mask_paper: true given, for {inputs.train} where only one paper has pairs;"
                " expected at least two, so that there are negatives; give more papers, or mask_paper=false"
            )
        self.valid: pa.Table | None = None
        if inputs.valid is not None:
            self.valid = read_shards(inputs.valid, STATEMENTS.names)
        self.steps = [self.sampler.num_batches] * config.epochs
        self.load_encoder()
        self._attach_projection(read_encoding_config(inputs.base))

    def _attach_projection(self, base: EncodingConfig) -> None:
        """Make the projection trainable: that of the current best adapter, or a new one if the base has none."""
        one = self.encoder
        dim = self.config.projection
        self.projects = dim is not None and not base.projection
        self.is_new = self.projects and one.projection is None
        if self.is_new and dim is not None:
            bias = self.config.projection_bias
            made = projection.init(one.dim, dim, self.config.seed, bias=bias)
            one.projection = made.to(one.device)
            one.encoding_config = replace(one.encoding_config, projection=projection.FOLDER)
        if self.projects and one.projection is not None:
            self.model.projection = (
                one.projection.float().requires_grad_()
            )  # the model contains all trained parameters

    def evaluate_start(self) -> Evaluation:
        if self.inputs.current_best is not None or not self.is_new:
            return super().evaluate_start()
        new, self.encoder.projection = self.encoder.projection, None
        try:
            return self.evaluate()
        finally:
            self.encoder.projection = new

    def save(self, folder: Path) -> None:
        super().save(folder)
        if self.projects and self.encoder.projection is not None:
            projection.save(
                self.encoder.projection, folder / self.encoder.encoding_config.projection
            )

    def batch(self, epoch: int, step: int) -> Batch:
        drawn = self.sampler.batch(epoch, step, self.worker.rank, self.worker.world_size)
        texts = take_texts(self.sampler.text, np.concatenate([drawn.left_N, drawn.right_N]))
        ids_R = self.encoder.tokenize(texts, "passage")
        return self.cache_gradients(ids_R, partial(self._compute_gradient, drawn))

    def _compute_gradient(self, drawn: PairBatch, vector_RD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and its gradient with respect to the vectors of this worker's texts."""
        config = self.config
        group_N = None
        if config.mask_paper:
            group_N = torch.from_numpy(drawn.paper_N).to(self.device)
        pairs = len(drawn.left_N)
        left_ND = vector_RD[:pairs]
        right_ND = vector_RD[pairs:]
        loss, *gradients = symmetric_info_nce_gradient(
            left_ND, right_ND, temperature=config.temperature, group_N=group_N, chunk=config.chunk
        )
        return loss, torch.cat(gradients)

    def evaluate_encoder(self, given: Encoder) -> Evaluation:
        """Compute exact metrics on `valid`, each statement against all others; none without `valid`. Each worker embeds
        a part."""
        if self.valid is None:
            return Evaluation({})
        own = self.split_rows(len(self.valid))
        texts = take_texts(self.valid["text"], own)
        own_ND = given.encode(texts, "passage", batch_tokens=self.resources.batch_tokens)
        self.finish_passes()
        all_ND = np.concatenate(gather_objects(own_ND))
        every = np.arange(len(all_ND))
        relevant = Relevant(*other_statements(number_papers(self.valid), every))
        ranks_R, losses_Q = self.rank_held_out(all_ND, relevant, own, own_ND, every)
        names = ("mrr", "p@1", "r@10", "r@100")
        metric = self.config.metric
        return evaluate_rows(
            self.valid, metric, ranks_R, relevant, *names, losses_Q=losses_Q, group="paper"
        )
