"""Training of an embedder: its loading and saving, embeddings with gradient, gradient caching, and ranks of held-out
documents."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ratchet.jobs.prompt_settings import resolve_encoding_config
from ratchet.jobs.training.config import find_start
from ratchet.jobs.training.evaluation import Evaluation
from ratchet.jobs.training.task import Batch, FinetuneTask
from ratchet.jobs.training.worker import gather_objects
from ratchet.models.batching import pad
from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import Example, read_encoding_config
from ratchet.models.loading import eval_mode
from ratchet.models.losses.grad_cache import CachedGradient, cache_gradients, compute_surrogate_loss
from ratchet.models.model_files import find_config_folder
from ratchet.models.search import held_out_loss
from ratchet.models.search.products import multiply
from ratchet.models.search.ranks import RankCounter, Relevant, score_relevant
from ratchet.models.zero3_sync import Zero3Sync


@dataclass(frozen=True)
class CachedTexts:
    """A microbatch whose texts are embedded a second time, with cached gradients."""

    ids_R: Sequence[list[int]]
    """Token ids of all texts of this worker."""
    cached: CachedGradient
    """The rows of the microbatch."""


class EmbeddingTask(FinetuneTask):
    """Base class of the kinds of training of an embedder. A subclass calls `load_encoder`, and defines `batch` and
    `evaluate_encoder`. Legend: R texts of this worker, D dimensions."""

    def load_encoder(self, examples: Sequence[Example] | None = None) -> None:
        """Load the embedder to train. examples: few-shot examples to save for inference; None: queries have none."""
        start, adapter = find_start(self.config, self.inputs)
        encoding_config = resolve_encoding_config(self.job, self.config, start, adapter, examples)
        folder = find_config_folder(start, adapter)
        self.encoder: encoder.Encoder = self.load(
            encoder.load, start, encoding_config=encoding_config, config_folder=folder
        )
        self.model = self.encoder.model = self.make_trainable(self.encoder.model)
        self.zero3_sync = Zero3Sync(self.model, self.device, needed=self.config.shard_stage == 3)

    def evaluate_encoder(self, given: encoder.Encoder) -> Evaluation:
        """Evaluate an embedder on held-out rows. Collective."""
        raise NotImplementedError

    def evaluate(self) -> Evaluation:
        self.finish_preparing()
        with eval_mode(self.model):
            return self.evaluate_encoder(self.encoder)

    def evaluate_current_best(self) -> Evaluation:
        current_best = self.inputs.current_best
        if self.config.method == "full":
            return self.evaluate_encoder(
                encoder.load(current_best, dtype=self.config.dtype, device=self.device)
            )
        folder = find_config_folder(self.inputs.base, current_best)
        encoding_config = read_encoding_config(self.inputs.base, current_best)
        return self.evaluate_encoder(
            self.encoder.with_config(encoding_config, self.inputs.base, folder)
        )

    def save(self, folder: Path) -> None:
        if self.config.method == "full":
            self.encoder.save(find_start(self.config, self.inputs)[0], folder)
        else:
            super().save(folder)
            self.encoder.encoding_config.write(folder)

    def loss(self, microbatch: CachedTexts) -> Tensor:
        """Embed a microbatch again, with gradient, and return the scalar to call backward on."""
        return compute_surrogate_loss(partial(self.embed, microbatch.ids_R), microbatch.cached)

    def embed(self, ids_R: Sequence[list[int]], rows: np.ndarray) -> Tensor:
        """Return the embeddings of `rows`, float32 [rows, D] with gradient, computed in batches of similar length.
        ids_R: token ids. If `rows` is empty, the model still runs once, so that there is a backward pass. Collective
        under ZeRO-3."""
        groups = self.group_rows([len(ids_R[row]) for row in rows])
        vectors = []
        for group in groups:
            vectors.append(self._run([ids_R[row] for row in rows[group]]))
        if not groups:
            vectors.append(self._run_filler()[:0].float())
            groups = [np.zeros(0, np.int64)]
        order = np.argsort(np.concatenate(groups))
        vector_RD = torch.cat(vectors)[torch.from_numpy(order).to(self.device)]
        return vector_RD + self.zero3_sync.finish(self._run_filler)

    def cache_gradients(
        self, ids_R: Sequence[list[int]], gradient: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> Batch:
        """Return a training step by gradient caching: all texts of this worker are embedded without gradient now.
        gradient: see `ratchet.models.losses.grad_cache.cache_gradients`. Collective."""
        lengths = [len(ids) for ids in ids_R]
        rows = self._split_micro_batches(lengths)
        gradients = cache_gradients(
            partial(self.embed, ids_R), rows, gradient, self.worker.world_size
        )
        return Batch([CachedTexts(ids_R, cached) for cached in gradients], sum(lengths))

    def finish_passes(self) -> None:
        """Wait for the forward passes of all workers. Collective; must be called before any other collective."""
        with torch.no_grad():
            self.zero3_sync.finish(self._run_filler)

    def rank_held_out(
        self,
        query_QD: np.ndarray,
        relevant: Relevant,
        own: np.ndarray,
        own_ND: np.ndarray,
        exclude_Q: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the exact rank of every relevant document, [R], and the loss of each query, [Q]; None if there are too
        many scores for a loss. Each worker counts over its own documents. Collective.

        own: rows of this worker's documents, from `split_rows`. own_ND: their embeddings. exclude_Q:
        see `multiply`."""
        first = 0
        if len(own):
            first = int(own[0])
        scores_R = np.fmax.reduce(
            gather_objects(score_relevant(query_QD, relevant, [(first, own_ND)]))
        )
        counter = RankCounter(relevant, scores_R)
        for tile in multiply(query_QD, [(first, own_ND)], self.device, exclude_Q):
            counter.add(*tile)
        ranks_R = 1 + np.sum(gather_objects(counter.before_R), axis=0)
        if len(query_QD) * sum(gather_objects(len(own))) > held_out_loss.MAX_SCORES:
            return ranks_R, None
        part_QT = held_out_loss.sum_exponentials(query_QD, own_ND, first, exclude_Q, self.device)
        exponentials_QT = np.logaddexp.reduce(gather_objects(part_QT))
        return ranks_R, held_out_loss.compute_losses(exponentials_QT, scores_R, relevant)

    def _run(self, rows: list[list[int]]) -> Tensor:
        filler = self.encoder.tokenizer.pad_token_id
        ids_BL, mask_BL = pad(rows, filler, self.encoder.padding_side, self.multiple)
        return self.encoder.embed(ids_BL.to(self.device), mask_BL.to(self.device)).float()

    def _run_filler(self) -> Tensor:
        """Run a forward pass on a dummy text, which ZeRO-3 needs from a worker without rows."""
        ids_BL = torch.zeros((1, 2), dtype=torch.int64, device=self.device)
        return self.encoder.embed(ids_BL, torch.ones_like(ids_BL))

    def _split_micro_batches(self, lengths: list[int]) -> list[np.ndarray]:
        """Split rows into micro batches of similar length. All workers get the same number; some may be empty."""
        most = self.resources.micro_batch_size
        if most is None:
            groups = self.group_rows(lengths)
        elif lengths:
            order = np.argsort(lengths, kind="stable")
            groups = np.array_split(order, -(-len(order) // most))
        else:
            groups = []
        return self.equalize(groups)
