"""The base class of embedder finetuning tasks: the model with its adapter, exact evaluation, and saving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ratchet.jobs.model_settings import resolve_encoding_config
from ratchet.jobs.training.config import find_start
from ratchet.jobs.training.evaluation import Evaluation
from ratchet.jobs.training.finetuning import FinetuneTask
from ratchet.jobs.training.task import WorkerInfo, gather_objects
from ratchet.models.batching import pad
from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import Example, read_encoding_config
from ratchet.models.loading import eval_mode
from ratchet.models.losses import grad_cache
from ratchet.models.model_files import find_config_folder
from ratchet.models.search import held_out_loss
from ratchet.models.search.products import multiply
from ratchet.models.search.ranks import RankCounter, Relevant, score_relevant
from ratchet.models.zero3_sync import Zero3Sync
from ratchet.orchestrator.job_interface import Resources


class EmbedderTask(FinetuneTask):
    """An embedder to train. A subclass adds the batches, the loss and `evaluate_model`."""

    def __init__(self, worker: WorkerInfo, config: Any, inputs: Any, resources: Resources) -> None:
        """config: a FinetuneConfig with EncodingSettings. Other arguments: see `FinetuneTask`."""
        super().__init__(worker, config, inputs, resources)
        start, adapter = find_start(config, inputs)
        # Saved with the trained adapter or model.
        encoding_config = resolve_encoding_config(self.job, config, start, adapter, self.list_examples())
        folder = find_config_folder(start, adapter)
        self.encoder = self.load(encoder.load, start, encoding_config=encoding_config, config_folder=folder)
        self.model = self.encoder.model = self.make_trainable(self.encoder.model)
        self.zero3_sync = Zero3Sync(self.model, self.device, needed=config.zero_stage == 3)

    def list_examples(self) -> Sequence[Example] | None:
        """Return the few-shot examples to save for inference. None: queries have no examples."""
        return None

    def evaluate_model(self, model: encoder.Encoder) -> Evaluation:
        """Evaluate `model` on `valid`. Collective."""
        raise NotImplementedError

    def evaluate_current_best(self) -> Evaluation:
        base = self.inputs.base
        current_best = self.inputs.current_best
        if self.config.method == "full":
            return self.evaluate_model(encoder.load(current_best, dtype=self.config.dtype, device=self.device))
        folder = find_config_folder(base, current_best)
        return self.evaluate_model(self.encoder.with_config(read_encoding_config(folder), base, folder))

    def evaluate(self) -> Evaluation:
        with eval_mode(self.model):
            return self.evaluate_model(self.encoder)

    def save(self, folder: Path) -> None:
        if self.config.method == "full":
            self.encoder.save(find_start(self.config, self.inputs)[0], folder)
        else:
            super().save(folder)
            self.encoder.encoding_config.write(folder)

    def embed_batch(self, rows: list[list[int]]) -> Tensor:
        """Return the embeddings of one forward pass, float32 [rows, D] with gradient. rows: token ids."""
        side = self.encoder.padding_side
        filler = self.encoder.tokenizer.pad_token_id
        ids_BL, mask_BL = pad(rows, filler, side, self.multiple)
        return self.encoder.embed(ids_BL.to(self.device), mask_BL.to(self.device)).float()

    def embed_rows(self, ids_R: Sequence[list[int]], rows: np.ndarray) -> Tensor:
        """Return the embeddings of `rows`, float32 [rows, D] with gradient, computed in batches of similar length.

        If `rows` is empty, the model still runs once, so that there is a backward pass. Collective under ZeRO-3."""
        groups = self.group_rows([len(ids_R[row]) for row in rows])
        parts = []
        for at in groups:
            parts.append(self.embed_batch([ids_R[i] for i in rows[at]]))
        if parts:
            vectors = torch.cat(parts)
        else:
            vectors = self.run_filler()[:0].float()
        if groups:
            back = np.argsort(np.concatenate(groups))
        else:
            back = np.zeros(0, np.int64)
        return vectors[torch.from_numpy(back).to(self.device)] + self.zero3_sync.finish(self.run_filler)

    def make_parts(
        self, ids_R: Sequence[list[int]], gradient: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> list[Callable[[], tuple[Tensor, int]]]:
        """Return the parts of a training step by gradient caching: embed all texts of this worker without gradient now;
        each part embeds one micro batch again, with gradient. gradient: see `grad_cache`. Collective.

        See `FinetuneTask.parts`."""
        lengths = [len(ids) for ids in ids_R]
        batches = self._split_micro_batches(lengths)
        embed = partial(self.embed_rows, ids_R)
        parts = grad_cache.make_backward_passes(embed, batches, gradient, self.worker.world_size)
        tokens = []
        for rows in batches:
            tokens.append(sum(lengths[row] for row in rows))
        found: list[Callable[[], tuple[Tensor, int]]] = []
        for own in zip(parts, tokens, strict=True):
            found.append(partial(lambda part, count: (part(), count), *own))
        return found

    def _split_micro_batches(self, lengths: list[int]) -> list[np.ndarray]:
        """Split rows into micro batches of similar length. All workers get the same number; some may be empty."""
        most = self.resources.micro_batch_size
        if most is not None:
            order = np.argsort(lengths, kind="stable")
            if len(order):
                groups = np.array_split(order, -(-len(order) // most))
            else:
                groups = []
        else:
            groups = self.group_rows(lengths)
        wanted = max(gather_objects(len(groups)))
        return [*groups, *[np.zeros(0, np.int64)] * (wanted - len(groups))]

    def run_filler(self) -> Tensor:
        """Run a forward pass on a dummy text, which ZeRO-3 needs from a worker without rows."""
        ids_BL = torch.zeros((1, 2), dtype=torch.int64, device=self.device)
        return self.encoder.embed(ids_BL, torch.ones_like(ids_BL))

    def finish_passes(self) -> None:
        """Wait for the forward passes of all workers. Collective; must be called before any other collective."""
        with torch.no_grad():
            self.zero3_sync.finish(self.run_filler)

    def rank_held_out(
        self, query_QD: np.ndarray, relevant: Relevant, own: np.ndarray, own_ND: np.ndarray, exclude_Q: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the exact rank of every relevant document, [R], and the loss of each query, [Q]; None if there are too
        many scores for a loss. Each worker counts over its own documents. Collective.

        own: rows of this worker's documents, from `split_rows`. own_ND: their embeddings. exclude_Q:
        see `multiply`."""
        if len(own):
            first = int(own[0])
        else:
            first = 0
        scores_R = np.fmax.reduce(gather_objects(score_relevant(query_QD, relevant, [(first, own_ND)])))
        counter = RankCounter(relevant, scores_R)
        for tile in multiply(query_QD, [(first, own_ND)], self.device, exclude_Q):
            counter.add(*tile)
        ranks_R = 1 + np.sum(gather_objects(counter.before_R), axis=0)
        if len(query_QD) * sum(gather_objects(len(own))) > held_out_loss.MAX_SCORES:
            return ranks_R, None
        part_QT = held_out_loss.sum_exponentials(query_QD, own_ND, first, exclude_Q, self.device)
        exponentials_QT = np.logaddexp.reduce(gather_objects(part_QT))
        return ranks_R, held_out_loss.compute_losses(exponentials_QT, scores_R, relevant)
