"""Implementation of `sft`: the training task, with its batches, loss and evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from ratchet.data.rankings import summarize_tokens
from ratchet.data.tables import list_shards
from ratchet.data.tasks.task import SAMPLES
from ratchet.data.triplets import distribute, split_epoch
from ratchet.errors import InputError
from ratchet.jobs.answers.answering_task import AnsweringTask
from ratchet.jobs.answers.chat_options import check_answers
from ratchet.jobs.answers.sft import LEARNING_RATES, Config, Inputs, check_packing, find_max_length
from ratchet.jobs.answers.token_table import TALK, TOKENS, Teacher, TokenTable
from ratchet.jobs.distributed.shard_map import count_rows
from ratchet.jobs.training.evaluation import Evaluation
from ratchet.jobs.training.finetuning import run_finetuning, steps_of_epochs
from ratchet.jobs.training.task import WorkerInfo, gather_objects
from ratchet.models.loading import eval_mode
from ratchet.models.losses import causal_lm_loss
from ratchet.models.losses.causal_lm_loss import pack_rows
from ratchet.models.zero3_sync import Zero3Sync
from ratchet.orchestrator.job_interface import Context, Resources, Result


class TrainTask(AnsweringTask):
    """Trains a causal language model."""

    job = "sft"

    def __init__(self, worker: WorkerInfo, config: Config, inputs: Inputs, resources: Resources, lengths: Path) -> None:
        if config.ce_weight < 1 and inputs.teacher is None:
            raise InputError(
                f"sft.ce_weight: {config.ce_weight} given, without a teacher; expected 1; give the output of"
                " teacher_logprobs as teacher, or raise ce_weight"
            )
        if config.packing:  # at plan time the model may not have existed
            check_packing(config, inputs.base)
        super().__init__(worker, config, inputs, resources)
        self.decoder.conversations.check_labels()
        for folder in (inputs.train, inputs.valid):
            check_answers(folder, self.decoder.conversations)
        self.zero3_sync = Zero3Sync(self.decoder.causal.base_model, self.device, needed=config.zero_stage == 3)
        self.max_length = find_max_length(config, inputs.base)
        self.train, too_long = self._tokenize(inputs.train)
        self.valid, left_out = self._tokenize(inputs.valid)
        self.teacher: Teacher | None = None
        if inputs.teacher is not None:
            self.teacher = Teacher(inputs.teacher, self.train)
        if worker.rank == 0:
            size_N = self.train.size_N
            target_N = self.train.labels_N
            found = {"samples": len(size_N), "too_long": too_long, "longest": int(size_N.max())}
            parts = {"prompt": size_N - target_N, "target": target_N, "sample": size_N}
            tokens = []
            for name, length_N in parts.items():
                tokens.append(summarize_tokens(name, length_N))
            lengths.write_text(json.dumps([{**found, "valid/too_long": left_out}, tokens]))
        per_epoch = -(-len(self.train) // config.batch_size)
        self.steps = steps_of_epochs("sft", len(self.train), per_epoch, config.epochs, worker)

    def _tokenize(self, folder: Path) -> tuple[TokenTable, int]:
        """Return the tokens of the samples, and the number of samples that are too long and left out."""

        def tokenize(path: Path) -> pa.Table:
            rows = pq.read_table(path, columns=SAMPLES.names).to_pylist()
            found = zip(rows, self.decoder.conversations.tokenize_samples(map(TALK, rows), exact=True), strict=True)
            fitting = []
            for row, tokens in found:
                if len(tokens.ids) <= self.max_length:
                    fitting.append((row["id"], tokens))
            made = []
            for name, tokens in fitting:
                made.append({"id": name, "labels": tokens.labels, **vars(tokens)})
            return pa.Table.from_pylist(made, TOKENS)

        shards = list_shards(folder)
        table = pa.concat_tables(map(tokenize, shards))
        too_long = count_rows(shards, SAMPLES.names) - len(table)
        if not len(table):
            raise InputError(
                f"sft.max_length: {self.max_length} given, and all {too_long} samples of {folder} are longer; expected"
                " some that fit; raise it"
            )
        return TokenTable(table), too_long

    def parts(self, epoch: int, step: int) -> list[Callable[[], tuple[Tensor, int]]]:
        batch = split_epoch(len(self.train), self.steps[epoch], self.config.seed, epoch)[step]
        labels = int(self.train.labels_N[batch].sum())
        own = batch[distribute(self.train.size_N[batch], self.worker.world_size)[self.worker.rank]]
        groups = self._make_passes(self.train.size_N[own].tolist())
        most = max(gather_objects(len(groups)))
        rows = []
        for group in groups:
            rows.append([[int(own[i]) for i in row] for row in group])
        found: list[Callable[[], tuple[Tensor, int]]] = []
        for group in [*rows, *[[]] * (most - len(rows))]:
            found.append(partial(self._compute_loss, group, labels))
        return found

    def _make_passes(self, sizes: Sequence[int]) -> list[list[list[int]]]:
        """Return forward passes, each a list of rows, each a list of indices into `sizes` (tokens per sample)."""
        if self.config.packing:
            rows = pack_rows(sizes, self.max_length)
        else:
            rows = [[i] for i in range(len(sizes))]
        lengths = []
        for row in rows:
            lengths.append(sum(sizes[i] for i in row))
        groups = self.group_rows(lengths)
        most = self.resources.micro_batch_size
        if most is not None:
            groups = [group[at : at + most] for group in groups for at in range(0, len(group), most)]
        found: list[list[list[int]]] = []
        for group in groups:
            found.append([rows[i] for i in group])
        return found

    def _compute_loss(self, rows: list[list[int]], labels: int) -> tuple[Tensor, int]:
        """Return (this worker's share of the mean loss over the batch's labels, number of its tokens). If `rows` is
        empty, run a pass with weight 0, since all workers take part in each pass."""
        if rows:
            weight = self.worker.world_size / labels
        else:
            weight = 0.0
        chosen = rows or [[0]]
        samples = []
        for row in chosen:
            samples.append([self.train[i] for i in row])
        teacher = None
        if self.teacher is not None:
            teacher = []
            for row in chosen:
                teacher.append([self.teacher[i] for i in row])
        loss = causal_lm_loss.compute_loss(
            self.decoder,
            samples,
            teacher,
            ce_weight=self.config.ce_weight,
            temperature=self.config.teacher_temperature,
            multiple=self.multiple,
        )
        return loss * weight, sum(int(self.train.size_N[row].sum()) for row in rows)

    def evaluate(self) -> Evaluation:
        own_N = np.arange(len(self.valid))[self.worker.rank :: self.worker.world_size]
        total = 0.0
        with eval_mode(self.decoder.model), torch.no_grad():
            for group in self._make_passes(self.valid.size_N[own_N].tolist()):
                rows = []
                for row in group:
                    rows.append([self.valid[own_N[i]] for i in row])
                total += float(causal_lm_loss.compute_loss(self.decoder, rows))
            self.zero3_sync.finish(lambda: self._compute_loss([], 1)[0])
            correct, questions = self.verify_answers()
            blank = torch.zeros((1, 1), dtype=torch.int64, device=self.decoder.device)
            self.zero3_sync.finish(lambda: self.decoder.causal(input_ids=blank).logits)
        found = {"eval_loss": round(sum(gather_objects(total)) / int(self.valid.labels_N.sum()), 6)}
        if self.valid_samples:
            found["accuracy"] = round(sum(gather_objects(correct)) / sum(gather_objects(questions)), 6)
        return Evaluation(found)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    lengths = context.work / "lengths.json"
    config = replace(config, learning_rate=config.learning_rate or LEARNING_RATES[config.method])
    result, _ = run_finetuning(context, config, TrainTask, inputs, lengths=lengths)
    counts, tokens = json.loads(lengths.read_text())
    history = {"metric": config.metric, "tables": result.tables, "curves": result.curves}
    (context.out / "history.json").write_text(json.dumps(history) + "\n")
    tables = {**result.tables, "tokens per training sample": tokens}
    return replace(result, metrics={**result.metrics, **counts}, tables=tables)
