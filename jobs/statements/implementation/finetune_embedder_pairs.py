"""Implementation of `finetune_embedder_pairs`: the training task, with its batches, loss and evaluation.

A pair is two statements of one paper; pairs are drawn anew in each epoch. The loss is symmetric InfoNCE over all pairs
of a batch, on all workers. Gradient caching (`ratchet.models.losses.grad_cache`) limits the memory to that of a micro
batch. The loss is computed in tiles (`ratchet.models.losses.tiled_contrastive_loss`), so the similarity matrix is never
stored.

Legend: N pairs of this worker, R = 2 N texts (first all left ones, then all right ones), D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ratchet.data.formats.papers import STATEMENTS, number_papers, other_statements
from ratchet.data.pair_batches import PairSampler
from ratchet.data.tables import open_mapped, read_shards, take_texts
from ratchet.errors import InputError
from ratchet.jobs.statements.finetune_embedder_pairs import Config, Inputs
from ratchet.jobs.training.embedder_task import EmbedderTask
from ratchet.jobs.training.evaluation import Evaluation, HeldOutRows
from ratchet.jobs.training.finetuning import run_finetuning
from ratchet.jobs.training.task import WorkerInfo, gather_objects
from ratchet.models.embedder import projection
from ratchet.models.embedder.encoder import Encoder
from ratchet.models.embedder.encoding_config import EncodingConfig, read_encoding_config
from ratchet.models.losses.tiled_contrastive_loss import symmetric_info_nce_gradient
from ratchet.models.search.ranks import Relevant
from ratchet.orchestrator.job_interface import Context, Resources, Result


class TrainTask(EmbedderTask):
    job = "finetune_embedder_pairs"
    config: Config
    inputs: Inputs

    def __init__(self, worker: WorkerInfo, config: Config, inputs: Inputs, resources: Resources) -> None:
        self.sampler = PairSampler(open_mapped(inputs.train), config.batch_size, drop_last=config.drop_last)
        if config.mask_paper and self.sampler.papers < 2:
            raise InputError(
                f"finetune_embedder_pairs.mask_paper: true given, for {inputs.train} where only one paper has pairs;"
                " expected at least two, so that there are negatives; give more papers, or mask_paper=false"
            )
        self.valid = read_shards(inputs.valid, STATEMENTS.names)
        self.steps = [self.sampler.num_batches(epoch) for epoch in range(config.epochs)]
        super().__init__(worker, config, inputs, resources)
        self._attach_projection(read_encoding_config(inputs.base))

    def _attach_projection(self, base: EncodingConfig) -> None:
        """Make the projection trainable: that of the current best adapter, or a new one if the base has none."""
        one = self.encoder
        dim = self.config.projection
        self.projects = dim is not None and not base.projection
        self.is_new = self.projects and one.projection is None
        if self.is_new and dim is not None:
            one.projection = projection.init(one.dim, dim, self.config.seed).to(one.device)
            one.encoding_config = replace(one.encoding_config, projection=projection.FOLDER)
        if self.projects and one.projection is not None:
            self.model.projection = one.projection.float().requires_grad_()  # the model contains all trained parameters

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
            projection.save(self.encoder.projection, folder / self.encoder.encoding_config.projection)

    def parts(self, epoch: int, step: int) -> list[Callable[[], tuple[Tensor, int]]]:
        """Return one part per micro batch."""
        config = self.config
        worker = self.worker
        batch = self.sampler.make_batch(config.seed, epoch, step, worker.rank, worker.world_size)
        texts = take_texts(self.sampler.text, np.concatenate([batch.left_N, batch.right_N]))
        ids_R = self.encoder.tokenize(texts, "passage")
        if config.mask_paper:
            group_N = torch.from_numpy(batch.paper_N).to(self.device)
        else:
            group_N = None

        def gradient(vector_RD: Tensor) -> tuple[Tensor, Tensor]:
            sides = vector_RD[: len(batch.left_N)], vector_RD[len(batch.left_N) :]
            options: dict[str, Any] = {"temperature": config.temperature, "group_N": group_N, "chunk": config.chunk}
            loss, *gradients = symmetric_info_nce_gradient(*sides, **options)
            return loss, torch.cat(gradients)

        return self.make_parts(ids_R, gradient)

    def evaluate_model(self, model: Encoder) -> Evaluation:
        """Compute exact metrics on `valid`, each statement against all others. Each worker embeds a part."""
        own = self.split_rows(len(self.valid))
        texts = take_texts(self.valid["text"], own)
        own_ND = model.encode(texts, "passage", batch_tokens=self.resources.batch_tokens)
        self.finish_passes()
        all_ND = np.concatenate(gather_objects(own_ND))
        every = np.arange(len(all_ND))
        relevant = Relevant(*other_statements(number_papers(self.valid), every))
        ranks_R, losses_Q = self.rank_held_out(all_ND, relevant, own, own_ND, every)
        names = ("mrr", "p@1", "r@10", "r@100")
        rows = HeldOutRows(self.valid, "paper")
        return rows.evaluate(self.config.metric, ranks_R, relevant, *names, losses_Q=losses_Q)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    is_usable = config.projection is None or bool(read_encoding_config(inputs.base).projection)
    return run_finetuning(context, config, TrainTask, inputs, base_is_usable=is_usable)[0]
