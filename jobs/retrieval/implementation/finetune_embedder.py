"""Finetuning of an embedder with in-batch and mined negatives.

Legend: Q queries of a batch, P its passages (each text once), D dimensions.

All workers know the whole batch. Its queries and passages are distributed by length, each worker embeds its part, and
passages are gathered with their gradient: the loss is the same for any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ratchet.data.tables import read_shards
from ratchet.data.triplets import Triplets, find_corpus_rows, pad_rows
from ratchet.jobs.retrieval.finetune_embedder import Config, Inputs
from ratchet.jobs.training.finetuning import (
    CPU_TOKENS,
    attach_adapter,
    run_finetuning,
    select_metrics,
    steps_of_epochs,
)
from ratchet.jobs.training.task import WorkerInfo, gather_objects
from ratchet.jobs.training.teacher_gate import resolve_distillation
from ratchet.models.adapters import lora
from ratchet.models.batching import pad
from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import EncodingConfig, read_encoding_config
from ratchet.models.length_groups import group_by_length
from ratchet.models.loading import eval_mode
from ratchet.models.losses.contrastive import false_negative_mask, gather_with_gradient, scale_for_workers
from ratchet.models.losses.distillation import distillation_loss
from ratchet.models.model_files import find_config_folder
from ratchet.models.search.rank_metrics import compute_rank_metrics
from ratchet.models.search.ranks import RankCounter, Relevant, score_relevant
from ratchet.models.zero3_sync import Zero3Sync
from ratchet.orchestrator.job_interface.job import Context, Resources, Result

ICL_TEMPLATE = "<instruct>{task}\n<query>{text}\n<response>"
"""The template of bge-en-icl. An example is followed by its answer."""


@dataclass(frozen=True)
class WorkerBatch:
    """What one worker computes in one training step: token ids, and the places of passages in the batch."""

    query_ids: list[list[int]]
    passage_ids: list[list[int]]
    offsets: list[int]
    """The start of each worker's passages among all passages of the batch."""
    member_QG: Tensor
    """The index of each query's positive and negatives among all passages; -1 where a query has fewer."""
    teacher_QG: Tensor | None
    mask_QP: Tensor | None
    queries: int
    """Number of queries of all workers."""


class TrainTask:
    """An embedder with LoRA; see ratchet.jobs.training.task.TrainTask."""

    def __init__(self, worker: WorkerInfo, config: Config, inputs: Inputs, resources: Resources) -> None:
        self.worker, self.config, self.inputs, self.resources = worker, config, inputs, resources
        self.corpus = read_shards(inputs.corpus, ["id", "text"])
        self.valid = read_shards(inputs.valid, ["id", "text", "positives"])
        distills = config.distillation != "none"
        self.triplets = Triplets(read_shards(inputs.mined), self.corpus, teacher=distills)
        batches = self.triplets.num_batches(config.batch_size)
        self.steps = steps_of_epochs("finetune_embedder", len(self.triplets), batches, config.epochs, worker)
        self.device = "cpu" if worker.device == "cpu" else "cuda"
        initial_adapter = inputs.current_best if config.start_from == "current_best" else None
        given = read_encoding_config(find_config_folder(inputs.base, initial_adapter))
        encoding_config = self._make_encoding_config(given.with_limits(config.max_length))
        self.encoder = encoder.load(
            inputs.base,
            dtype=config.dtype,
            device=self.device,
            encoding_config=encoding_config,
            training=True,
            quantization=config.quantization,
        )
        self.model = attach_adapter(self.encoder.model, config, initial_adapter)
        self.encoder.model = self.model
        self.zero3_sync = Zero3Sync(self.model, self.device, needed=config.zero_stage == 3)
        self.prepared: dict[tuple[int, int], Future[WorkerBatch]] = {}
        self.thread = ThreadPoolExecutor(1)

    def _make_encoding_config(self, given: EncodingConfig) -> EncodingConfig:
        """Apply the settings to the encoding config. The result is used in training and saved with the adapter."""
        config, data = self.config, self.triplets
        changes: dict[str, Any] = {"task": config.task, "query_template": config.query_template}
        changes = {name: value for name, value in changes.items() if value}
        changes["query_max_length"] = config.query_max_length or given.query_max_length
        if config.num_examples:
            template = config.query_template or ICL_TEMPLATE
            # The first queries of a fixed order. As in evaluation, a query may be among its own fixed examples.
            fixed = data.split_epoch(config.seed, -1 & 0xFFFF, len(data))[0][: config.num_fixed_examples].tolist()
            changes |= {
                "query_template": template,
                "example_template": template + "{answer}",
                "example_max_length": config.example_max_length,
                "examples": tuple(self._get_example(query, int(data.positives(query)[0])) for query in fixed),
            }
        return replace(given, **changes)

    def _get_example(self, query: int, answer: int) -> tuple[str, str]:
        return self.triplets.query_text[query].as_py(), self.triplets.corpus_text[answer].as_py()

    def evaluate_start(self) -> dict[str, float]:
        current_best = self.inputs.current_best
        if current_best is None or self.config.start_from == "current_best":
            return self.evaluate()  # training starts from the current best
        return self._compute_metrics(
            encoder.load(self.inputs.base, current_best, dtype=self.config.dtype, device=self.device)
        )

    def evaluate(self) -> dict[str, float]:
        with eval_mode(self.model):
            return self._compute_metrics(self.encoder)

    def save(self, folder: Path) -> None:
        lora.save(self.model, folder)
        self.encoder.encoding_config.write(folder)

    def parts(self, epoch: int, step: int) -> list[Callable[[], tuple[Tensor, int]]]:
        """Return one part: in-batch negatives need all passages at once."""
        return [partial(self.loss, epoch, step)]

    def loss(self, epoch: int, step: int) -> tuple[Tensor, int]:
        batch, config = self._take_batch(epoch, step), self.config
        query_QD, own_PD = self._embed(batch.query_ids), self._embed(batch.passage_ids)
        zero = self.zero3_sync.finish(self._run_blank)
        passage_PD = gather_with_gradient(own_PD, offsets=batch.offsets)
        logits_QP = query_QD.float() @ passage_PD.float().T / config.temperature
        mask_QP = None if batch.mask_QP is None else batch.mask_QP.to(self.device)
        total = distillation_loss(
            config.distillation,
            logits_QP,
            batch.member_QG.to(self.device),
            None if batch.teacher_QG is None else batch.teacher_QG.to(self.device),
            mask_QP=mask_QP,
            label_smoothing=config.label_smoothing,
            teacher_temperature=config.teacher_temperature,
        )
        tokens = sum(map(len, batch.query_ids)) + sum(map(len, batch.passage_ids))
        return scale_for_workers(total, batch.queries, self.worker.world_size) + zero, tokens

    def _run_blank(self) -> Tensor:
        ids_BL = torch.zeros((1, 2), dtype=torch.int64, device=self.device)
        return self.encoder.embed(ids_BL, torch.ones_like(ids_BL))

    def _take_batch(self, epoch: int, step: int) -> WorkerBatch:
        """Return the batch of a training step, and start to prepare the next one in a thread."""
        ahead = self.prepared.pop((epoch, step), None)
        batch = ahead.result() if ahead is not None else self._prepare(epoch, step)
        if step + 1 < self.steps[epoch]:
            self.prepared[epoch, step + 1] = self.thread.submit(self._prepare, epoch, step + 1)
        return batch

    def _prepare(self, epoch: int, step: int) -> WorkerBatch:
        config, data, worker = self.config, self.triplets, self.worker
        batch = data.make_batch(
            config.seed, epoch, step, config.batch_size, config.num_negatives, worker.rank, worker.world_size
        )
        member_QG = torch.from_numpy(pad_rows(batch.own_Q, -1))
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
        mine = batch.passage_P[batch.offsets[worker.rank] : batch.offsets[worker.rank + 1]]
        passages = data.corpus_text.take(mine).to_pylist()
        tokenize = self.encoder.tokenize
        return WorkerBatch(
            tokenize(queries, "query", self._sample_examples(epoch, batch.query_Q)),
            tokenize(passages, "passage"),
            batch.offsets,
            member_QG,
            None if batch.teacher_Q is None else torch.from_numpy(pad_rows(batch.teacher_Q, 0.0)),
            mask_QP,
            batch.queries,
        )

    def _sample_examples(self, epoch: int, query_Q: np.ndarray) -> list[list[tuple[str, str]]] | None:
        """Sample the in-context examples of each query. None if training uses none."""
        config = self.config
        if not config.num_examples:
            return None
        drawn = [self.triplets.draw_examples(config.seed, epoch, int(query), config.num_examples) for query in query_Q]
        return [[self._get_example(*pair) for pair in own] for own in drawn]

    def _embed(self, ids: list[list[int]]) -> Tensor:
        """float32 [rows, D] with gradient, computed in batches of similar length."""
        on_cpu = self.device == "cpu"
        multiple, tokens = (4, CPU_TOKENS) if on_cpu else (8, self.resources.batch_tokens)
        parts, order = [], []
        for batch in group_by_length([len(row) for row in ids], tokens, multiple):
            side, filler = self.encoder.encoding_config.padding_side, self.encoder.tokenizer.pad_token_id
            ids_BL, mask_BL = pad([ids[i] for i in batch], filler, side, multiple)
            parts.append(self.encoder.embed(ids_BL.to(self.device), mask_BL.to(self.device)).float())
            order.append(batch)
        back = np.argsort(np.concatenate(order))
        return torch.cat(parts)[torch.from_numpy(back).to(self.device)]

    def _compute_metrics(self, model: Any) -> dict[str, float]:
        """Exact metrics on `valid`. Each worker embeds a part of the corpus and counts ranks; the counts add up."""
        worker = self.worker
        asked = np.array_split(np.arange(len(self.valid)), worker.world_size)[worker.rank]
        held = np.array_split(np.arange(len(self.corpus)), worker.world_size)[worker.rank]
        budget = self.resources.batch_tokens
        texts = self.valid["text"].take(asked).to_pylist()
        own_QD = model.encode(texts, "query", batch_tokens=budget)
        first = int(held[0]) if len(held) else 0
        block_ND = model.encode(self.corpus["text"].take(held).to_pylist(), "passage", batch_tokens=budget)
        if model is self.encoder:
            with torch.no_grad():
                self.zero3_sync.finish(self._run_blank)
        query_QD = np.concatenate(gather_objects(own_QD))
        rows, ends = find_corpus_rows(self.valid, "positives", self.corpus)
        relevant = Relevant(ends, rows)
        scores_R = np.fmax.reduce(gather_objects(score_relevant(query_QD, relevant, [(first, block_ND)])))
        counter = RankCounter(relevant, scores_R, query_QD=query_QD)
        counter.add(first, block_ND)
        ranks_R = 1 + np.sum(gather_objects(counter.before_R), axis=0)
        return select_metrics(self.config, partial(compute_rank_metrics, ranks_R, relevant), "map@25", "r@25")


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    config = resolve_distillation(config, inputs.mined)
    arguments = {"config": config, "inputs": inputs, "resources": context.resources}
    return run_finetuning(context, config, TrainTask, arguments, inputs.current_best)
