"""Implementation of `finetune_embedder`: the training task, with its batches, loss and evaluation.

Legend: Q queries of a batch, P its passages (each text once), D dimensions, G members of a query's group.

All workers know the whole batch. Its queries and passages are distributed by length, each worker embeds its part, and
passage embeddings are gathered with their gradient, so the loss is the same for any number of workers. In-batch
negatives need all embeddings at once. If the activations of all texts do not fit in memory, the texts are embedded
twice (gradient caching, `ratchet.models.losses.grad_cache`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ratchet.data.evaluation_pool import choose_pool
from ratchet.data.formats.examples import read_examples
from ratchet.data.guide import Guide
from ratchet.data.tables import DocumentRows, read_shards, take_texts
from ratchet.data.triplets import TripletBatch, Triplets, find_corpus_rows, find_own_rows, pad_rows
from ratchet.jobs.distributed.resolve_dtype import resolve_dtype
from ratchet.jobs.model_settings import list_instructions
from ratchet.jobs.retrieval.finetune_embedder import CPU_GRAPH, Config, Inputs, list_examples
from ratchet.jobs.training.cross_validation import cross_validate, needs_cross_validation
from ratchet.jobs.training.embedder_task import EmbedderTask
from ratchet.jobs.training.evaluation import Evaluation, HeldOutRows
from ratchet.jobs.training.finetuning import run_finetuning, steps_of_epochs
from ratchet.jobs.training.schedule import TrainHistory
from ratchet.jobs.training.task import WorkerInfo, gather_objects
from ratchet.jobs.training.teacher_gate import find_teacher_temperature
from ratchet.models.embedder.encoder import Encoder
from ratchet.models.embedder.encoding_config import Example
from ratchet.models.losses.contrastive import false_negative_mask, gather_with_gradient, scale_for_workers
from ratchet.models.losses.distillation import distillation_loss
from ratchet.models.search.ranks import Relevant
from ratchet.orchestrator.job_interface import Context, Resources, Result


@dataclass(frozen=True)
class WorkerBatch:
    """The part of a batch that one worker computes. R: the worker's texts, first its queries, then its passages."""

    drawn: TripletBatch
    ids_R: list[list[int]]
    """Token ids."""
    member_QG: Tensor
    """Indices into P of each query's positive (first) and negatives; -1 where a query has fewer."""
    teacher_QG: Tensor | None
    mask_QP: Tensor | None


class TrainTask(EmbedderTask):
    job = "finetune_embedder"
    config: Config
    inputs: Inputs

    def __init__(
        self,
        worker: WorkerInfo,
        config: Config,
        inputs: Inputs,
        resources: Resources,
        pool_rows: np.ndarray | None = None,
    ) -> None:
        """pool_rows: corpus rows that `valid` is ranked against. None: the whole corpus."""
        self.corpus = read_shards(inputs.corpus, ["id", "text"])
        self.pool = self.corpus
        if pool_rows is not None:  # `take` would copy all texts first, and fails above 2 GB
            self.pool = self.corpus.filter(pa.array(np.isin(np.arange(len(self.corpus)), pool_rows)))
        if inputs.valid:
            self.valid = read_shards(inputs.valid)
        else:
            self.valid = None
        distills = config.distillation != "none"
        self.triplets = Triplets(read_shards(inputs.mined), self.corpus, teacher=distills)
        self.teacher_temperature = find_teacher_temperature(config, self.triplets)
        self.guide: Guide | None = None
        if inputs.guide_queries and inputs.guide_corpus:
            self.guide = Guide(self.triplets, self.corpus, inputs.guide_queries, inputs.guide_corpus)
        self.tasks = list_instructions(config, self.triplets.queries)
        if self.valid:
            self.valid_tasks = list_instructions(config, self.valid)
        else:
            self.valid_tasks = []
        batches = self.triplets.num_batches(config.batch_size)
        self.steps = steps_of_epochs("finetune_embedder", len(self.triplets), batches, config.epochs, worker)
        super().__init__(worker, config, inputs, resources)
        self.prepared: dict[tuple[int, int], Future[WorkerBatch]] = {}
        self.thread = ThreadPoolExecutor(1)

    def list_examples(self) -> Sequence[Example] | None:
        fixed = read_examples(self.inputs.examples)
        if not fixed and self.config.num_fixed_examples:
            # The first queries of a fixed order. A query of the training data may be among its own fixed examples.
            order = self.triplets.split_epoch(self.config.seed, -1 & 0xFFFF, len(self.triplets))[0]
            drawn = order[: self.config.num_fixed_examples].tolist()
            fixed = tuple(self._get_example(query, int(self.triplets.positives(query)[0])) for query in drawn)
        return list_examples(self.config, fixed)

    def _get_example(self, query: int, answer: int) -> tuple[str, str]:
        return self.triplets.query_text[query].as_py(), self.triplets.corpus_text[answer].as_py()

    def parts(self, epoch: int, step: int) -> list[Callable[[], tuple[Tensor, int]]]:
        """Return one part if the texts of every worker fit in memory, else one part per micro batch."""
        batch = self._take_batch(epoch, step)
        workers = self.worker.world_size

        def gradient(vector_RD: Tensor) -> tuple[Tensor, Tensor]:
            vector_RD.requires_grad_()
            with torch.enable_grad():
                loss = self._compute_loss(batch, vector_RD)
            # The loss is scaled for a mean over workers, but the gather sums the gradients of passages over workers.
            return loss, torch.autograd.grad(loss, vector_RD)[0] / workers

        if all(gather_objects(self._fits(batch.ids_R))):
            return [partial(self._run_whole, batch)]
        return self.make_parts(batch.ids_R, gradient)

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

    def _run_whole(self, batch: WorkerBatch) -> tuple[Tensor, int]:
        vector_RD = self.embed_rows(batch.ids_R, np.arange(len(batch.ids_R)))
        return self._compute_loss(batch, vector_RD), sum(map(len, batch.ids_R))

    def _compute_loss(self, batch: WorkerBatch, vector_RD: Tensor) -> Tensor:
        """Return this worker's share of the loss, averaged over `matryoshka_dims` and the whole vectors."""
        queries = len(batch.drawn.query_Q)
        query_QD, own_PD = vector_RD.split([queries, len(vector_RD) - queries])
        passage_PD = gather_with_gradient(own_PD, offsets=batch.drawn.offsets)
        losses = [self._compare(batch, query_QD, passage_PD)]
        for dim in self.config.matryoshka_dims:
            cut = []
            for vectors in (query_QD, passage_PD):
                cut.append(vectors[:, :dim])
            if self.encoder.encoding_config.normalize:
                cut = [torch.nn.functional.normalize(vectors, dim=-1) for vectors in cut]
            losses.append(self._compare(batch, *cut))
        return scale_for_workers(sum(losses[1:], losses[0]) / len(losses), batch.drawn.queries, self.worker.world_size)

    def _compare(self, batch: WorkerBatch, query_QD: Tensor, passage_PD: Tensor) -> Tensor:
        """Return the loss of this worker's queries against all passages of the batch, summed over queries."""
        config = self.config
        return distillation_loss(
            config.distillation,
            query_QD @ passage_PD.T / config.temperature,
            batch.member_QG.to(self.device),
            None if batch.teacher_QG is None else batch.teacher_QG.to(self.device),
            mask_QP=None if batch.mask_QP is None else batch.mask_QP.to(self.device),
            label_smoothing=config.label_smoothing,
            teacher_temperature=self.teacher_temperature,
            weight=config.distillation_weight,
        )

    def _take_batch(self, epoch: int, step: int) -> WorkerBatch:
        """Return the batch of a training step, and start to prepare the next one in a thread."""
        ahead = self.prepared.pop((epoch, step), None)
        if ahead is not None:
            batch = ahead.result()
        else:
            batch = self._prepare(epoch, step)
        if step + 1 < self.steps[epoch]:
            self.prepared[epoch, step + 1] = self.thread.submit(self._prepare, epoch, step + 1)
        return batch

    def _prepare(self, epoch: int, step: int) -> WorkerBatch:
        config = self.config
        data = self.triplets
        worker = self.worker
        batch = data.make_batch(
            config.seed, epoch, step, config.batch_size, config.num_negatives, worker.rank, worker.world_size
        )
        member_QG = torch.from_numpy(pad_rows(batch.own_Q, -1))
        mask_QP = None
        if config.false_negative_mask:
            never = []
            for query in batch.query_Q:
                never.append(data.text_of_row[data.list_no_negatives(int(query))])
            known = []
            for texts in zip(never, data.text_of_query[batch.query_Q], strict=True):
                known.append(np.append(*texts))
            mask_QP = false_negative_mask(data.text_of_row[batch.passage_P], member_QG[:, 0].numpy(), known)
        if not config.in_batch_negatives:
            others_QP = torch.ones((len(batch.query_Q), len(batch.passage_P)), dtype=torch.bool)
            for i, own in enumerate(batch.own_Q):
                others_QP[i, torch.from_numpy(own)] = False
            if mask_QP is None:
                mask_QP = others_QP
            else:
                mask_QP = mask_QP | others_QP
        if self.guide is not None:
            suspect_QP = torch.from_numpy(self.guide.find_suspects(batch, config.guide_margin))
            if mask_QP is None:
                mask_QP = suspect_QP
            else:
                mask_QP = mask_QP | suspect_QP
        queries = take_texts(data.query_text, batch.query_Q)
        tasks = [self.tasks[query] for query in batch.query_Q]
        mine = batch.passage_P[batch.offsets[worker.rank] : batch.offsets[worker.rank + 1]]
        passages = take_texts(data.corpus_text, mine)
        tokenize = self.encoder.tokenize
        query_ids = tokenize(queries, "query", self._sample_examples(epoch, batch.query_Q), tasks)
        return WorkerBatch(
            batch,
            [*query_ids, *tokenize(passages, "passage")],
            member_QG,
            None if batch.teacher_Q is None else torch.from_numpy(pad_rows(batch.teacher_Q, 0.0)),
            mask_QP,
        )

    def _sample_examples(self, epoch: int, query_Q: np.ndarray) -> list[list[tuple[str, str]]] | None:
        """Sample few-shot examples (query, answer) for each query. None: training uses no examples."""
        config = self.config
        if not config.num_examples:
            return None
        drawn = []
        for query in query_Q:
            drawn.append(self.triplets.draw_examples(config.seed, epoch, int(query), config.num_examples))
        found = []
        for own in drawn:
            found.append([self._get_example(*pair) for pair in own])
        return found

    def evaluate_model(self, model: Encoder) -> Evaluation:
        """Compute exact metrics of `valid` over the pool; none without `valid`. Each worker embeds a part of
        the queries and of the pool."""
        if self.valid is None:
            return Evaluation({})
        asked = self.split_rows(len(self.valid))
        own = self.split_rows(len(self.pool))
        budget = self.resources.batch_tokens
        tasks = [self.valid_tasks[row] for row in asked]
        own_QD = model.encode(take_texts(self.valid["text"], asked), "query", tasks, batch_tokens=budget)
        own_ND = model.encode(take_texts(self.pool["text"], own), "passage", batch_tokens=budget)
        self.finish_passes()
        rows = DocumentRows(self.pool["id"])
        relevant = Relevant(*find_corpus_rows(self.valid, "positives", rows))
        query_QD = np.concatenate(gather_objects(own_QD))
        exclude_Q = find_own_rows(self.valid, rows)
        ranks_R, losses_Q = self.rank_held_out(query_QD, relevant, own, own_ND, exclude_Q)
        held_out = HeldOutRows(self.valid)
        return held_out.evaluate(self.config.metric, ranks_R, relevant, "map@25", "r@25", losses_Q=losses_Q)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    if inputs.valid is None:
        return run_finetuning(context, config, TrainTask, inputs)[0]
    corpus = read_shards(inputs.corpus, ["id"])
    ranked = inputs.ranking and read_shards(inputs.ranking, ["id", "documents"])
    pool_rows = choose_pool(read_shards(inputs.valid), corpus, ranked, config.eval_pool, config.seed)
    together: TrainHistory | None = None
    if needs_cross_validation(config, inputs):
        resolved = resolve_dtype(context, config)
        together = cross_validate(
            context,
            resolved,
            TrainTask,
            {"config": resolved, "inputs": inputs, "resources": context.resources},
            lambda held_out: choose_pool(held_out, corpus, None, config.eval_pool, config.seed),
        )
    return run_finetuning(context, config, TrainTask, inputs, pool_rows=pool_rows, cross_validated=together)[0]
