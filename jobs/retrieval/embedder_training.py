"""Training of an embedder on queries with positives and negatives: batches, loss and evaluation.

Legend: Q queries of a batch, P its passages (each text once), D dimensions, G members of a query's group.

All workers know the whole batch. Its queries and passages are distributed by length, each worker embeds its part, and
passage embeddings are gathered with their gradient, so the loss is the same for any number of workers. In-batch
negatives need all embeddings at once. If the activations of all texts do not fit in memory, the texts are embedded
twice (gradient caching, `ratchet.models.losses.grad_cache`).
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ratchet.data.tables import DocumentRows, read_shards, take_texts
from ratchet.data.triplets import TripletBatch, Triplets, find_corpus_rows, find_own_rows, pad_rows
from ratchet.jobs.prompt_settings import list_examples, list_instructions, list_own_examples
from ratchet.jobs.training.embedder_passes import CachedTexts, EmbeddingTask
from ratchet.jobs.training.evaluation import Evaluation, draw_rows, evaluate_rows
from ratchet.jobs.training.shared_table import read_shared
from ratchet.jobs.training.task import Batch
from ratchet.jobs.training.teacher_gate import find_teacher_temperature
from ratchet.jobs.training.worker import WorkerInfo, gather_objects
from ratchet.models.embedder.encoder import Encoder
from ratchet.models.embedder.encoding_config import Example
from ratchet.models.losses.contrastive import (
    false_negative_mask,
    gather_with_gradient,
    scale_for_workers,
)
from ratchet.models.losses.distillation import distillation_loss
from ratchet.models.pass_size import CPU_GRAPH
from ratchet.models.search.ranks import Relevant
from ratchet.orchestrator.job_interface import Resources

if TYPE_CHECKING:
    from ratchet.jobs.retrieval.finetune_embedder import Config, Inputs


@dataclass(frozen=True)
class WorkerBatch:
    """The part of a batch that one worker computes. R: the worker's texts, first its queries, then its passages."""

    drawn: TripletBatch
    ids_R: list[list[int]]
    """Token ids."""
    member_QG: Tensor
    """Indices into P of each query's positive (first) and negatives; -1 where a query has fewer."""
    teacher_QG: Tensor | None
    mask_QP: Tensor


class EmbedderTask(EmbeddingTask):
    job = "finetune_embedder"
    config: "Config"
    inputs: "Inputs"

    def __init__(
        self,
        worker: WorkerInfo,
        config: "Config",
        inputs: "Inputs",
        resources: Resources,
        pool_rows: np.ndarray | None = None,
    ) -> None:
        """pool_rows: corpus rows that `valid` is ranked against. None: the whole corpus."""
        super().__init__(worker, config, inputs, resources)
        self.corpus = read_shared(worker, inputs.corpus, ["id", "text"])
        self.pool = self.corpus
        if pool_rows is not None:  # `take` would copy all texts first, and fails above 2 GB
            self.pool = self.corpus.filter(
                pa.array(np.isin(np.arange(len(self.corpus)), pool_rows))
            )
        self.valid: pa.Table | None = None
        if inputs.valid:
            valid = read_shards(inputs.valid)
            self.valid = valid.take(draw_rows(valid, config.eval_fraction, config.seed))
            self.valid_tasks = list_instructions(config, self.valid)
        self.triplets = Triplets(
            read_shards(inputs.mined),
            self.corpus,
            seed=config.seed,
            batch_size=config.batch_size,
            num_negatives=config.num_negatives,
            teacher=config.distillation != "none",
            source_weights=config.parse_weights() if config.batch_by == "source" else None,
        )
        self.teacher_temperature = find_teacher_temperature(config, self.triplets)
        self.tasks = list_instructions(config, self.triplets.queries)
        self.steps = self.count_steps(self.triplets.smallest_batch, self.triplets.num_batches)
        self.load_encoder(list_examples(config, inputs))

    def batch(self, epoch: int, step: int) -> Batch:
        """Return one microbatch if the texts of every worker fit in memory, else several with cached gradients."""
        texts: WorkerBatch = self.take_prepared(epoch, step)
        if all(gather_objects(self._fits(texts.ids_R))):
            return Batch([texts], sum(len(ids) for ids in texts.ids_R))
        return self.cache_gradients(texts.ids_R, partial(self._compute_gradient, texts))

    def loss(self, microbatch: WorkerBatch | CachedTexts) -> Tensor:
        if isinstance(microbatch, CachedTexts):
            return super().loss(microbatch)
        vector_RD = self.embed(microbatch.ids_R, np.arange(len(microbatch.ids_R)))
        return self._compute_loss(microbatch, vector_RD)

    def _fits(self, ids_R: list[list[int]]) -> bool:
        """Return whether the activations of all texts fit in memory, so that one pass embeds them."""
        if self.resources.micro_batch_size is not None:
            return len(ids_R) <= self.resources.micro_batch_size
        size_R = np.array([len(ids) for ids in ids_R], np.int64)
        shape = self.model.config.get_text_config()
        if self.device == "cpu":
            return int(size_R.sum()) <= CPU_GRAPH // (shape.num_hidden_layers * shape.hidden_size)
        padded = sum(len(rows) * int(size_R[rows].max()) for rows in self.group_rows(size_R))
        return padded <= self.resources.batch_tokens

    def _compute_gradient(self, texts: WorkerBatch, vector_RD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and its gradient with respect to the vectors of this worker's texts."""
        vector_RD.requires_grad_()
        with torch.enable_grad():
            loss = self._compute_loss(texts, vector_RD)
        # The loss is scaled for a mean over workers, but the gather sums the gradients of passages over workers.
        return loss, torch.autograd.grad(loss, vector_RD)[0] / self.worker.world_size

    def _compute_loss(self, texts: WorkerBatch, vector_RD: Tensor) -> Tensor:
        """Return this worker's share of the loss, averaged over `matryoshka_dims` and the whole vectors."""
        queries = len(texts.drawn.query_Q)
        query_QD = vector_RD[:queries]
        passage_PD = gather_with_gradient(vector_RD[queries:], offsets=texts.drawn.offsets)
        total = self._compare(texts, query_QD, passage_PD)
        for dim in self.config.matryoshka_dims:
            cut = [query_QD[:, :dim], passage_PD[:, :dim]]
            if self.encoder.encoding_config.normalize:
                cut = [torch.nn.functional.normalize(vectors, dim=-1) for vectors in cut]
            total = total + self._compare(texts, *cut)
        mean = total / (1 + len(self.config.matryoshka_dims))
        return scale_for_workers(mean, texts.drawn.queries, self.worker.world_size)

    def _compare(self, texts: WorkerBatch, query_QD: Tensor, passage_PD: Tensor) -> Tensor:
        """Return the loss of this worker's queries against all passages of the batch, summed over queries."""
        config = self.config
        return distillation_loss(
            config.distillation,
            query_QD @ passage_PD.T / config.temperature,
            texts.member_QG.to(self.device),
            None if texts.teacher_QG is None else texts.teacher_QG.to(self.device),
            mask_QP=texts.mask_QP.to(self.device),
            label_smoothing=config.label_smoothing,
            teacher_temperature=self.teacher_temperature,
            weight=config.distillation_weight,
        )

    def _make_mask(self, batch: TripletBatch, positive_Q: np.ndarray) -> Tensor:
        """Return the mask of the passages that are no negatives of a query, bool [Q, P]."""
        data = self.triplets
        known_text_Q = []
        for query in batch.query_Q:
            never = data.text_of_row[data.list_no_negatives(int(query))]
            known_text_Q.append(np.append(never, data.text_of_query[query]))
        texts = data.text_of_row[batch.passage_P]
        mask_QP = false_negative_mask(texts, positive_Q, known_text_Q)
        if not self.config.in_batch_negatives:
            others_QP = torch.ones_like(mask_QP)
            for i, own in enumerate(batch.own_Q):
                others_QP[i, torch.from_numpy(own)] = False
            mask_QP |= others_QP
        return mask_QP

    def prepare(self, epoch: int, step: int) -> WorkerBatch:
        data = self.triplets
        worker = self.worker
        batch = data.batch(epoch, step, worker.rank, worker.world_size)
        member_QG = pad_rows(batch.own_Q, -1)
        teacher_QG = None
        if batch.teacher_Q is not None:
            teacher_QG = torch.from_numpy(pad_rows(batch.teacher_Q, 0.0))
        queries = take_texts(data.query_text, batch.query_Q)
        tasks = [self.tasks[query] for query in batch.query_Q]
        mine = batch.passage_P[batch.offsets[worker.rank] : batch.offsets[worker.rank + 1]]
        passages = take_texts(data.corpus_text, mine)
        tokenize = self.encoder.tokenize
        query_ids = tokenize(queries, "query", self._sample_examples(epoch, batch.query_Q), tasks)
        return WorkerBatch(
            batch,
            [*query_ids, *tokenize(passages, "passage")],
            torch.from_numpy(member_QG),
            teacher_QG,
            self._make_mask(batch, member_QG[:, 0]),
        )

    def _sample_examples(self, epoch: int, query_Q: np.ndarray) -> list[list[Example]] | None:
        """Sample few-shot examples (query, answer) for each query. None: training uses no examples."""
        if not self.config.num_examples:
            return None
        data = self.triplets
        sampled = []
        for query in query_Q:
            examples = []
            for other, answer in data.draw_examples(epoch, int(query), self.config.num_examples):
                examples.append((data.query_text[other].as_py(), data.corpus_text[answer].as_py()))
            sampled.append(examples)
        return sampled

    def evaluate_encoder(self, given: Encoder) -> Evaluation:
        """Compute exact metrics of `valid` over the pool; none without `valid`. Each worker embeds a part of
        the queries and of the pool."""
        if self.valid is None:
            return Evaluation({})
        asked = self.split_rows(len(self.valid))
        own = self.split_rows(len(self.pool))
        budget = self.resources.batch_tokens
        tasks = [self.valid_tasks[row] for row in asked]
        examples = list_own_examples(self.valid.take(asked))
        own_QD = given.encode(
            take_texts(self.valid["text"], asked), "query", tasks, examples, batch_tokens=budget
        )
        own_ND = given.encode(take_texts(self.pool["text"], own), "passage", batch_tokens=budget)
        self.finish_passes()
        rows = DocumentRows(self.pool["id"])
        relevant = Relevant(*find_corpus_rows(self.valid, "positives", rows))
        query_QD = np.concatenate(gather_objects(own_QD))
        exclude_Q = find_own_rows(self.valid, rows)
        ranks_R, losses_Q = self.rank_held_out(query_QD, relevant, own, own_ND, exclude_Q)
        metric = self.config.metric
        return evaluate_rows(
            self.valid, metric, ranks_R, relevant, "map@25", "r@25", losses_Q=losses_Q
        )
