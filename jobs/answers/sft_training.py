"""Training of a decoder on a task's answers: batches, loss and evaluation."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from ratchet.data.rankings import summarize_tokens
from ratchet.data.tables import list_shards, read_shards
from ratchet.data.tasks.answers import TEACHER_LOGPROBS
from ratchet.data.tasks.task import SAMPLES
from ratchet.data.triplets import distribute, split_epoch
from ratchet.errors import InputError
from ratchet.jobs.answers.chat_options import TALK, check_answers
from ratchet.jobs.answers.held_out_answers import AnswerTask
from ratchet.jobs.answers.lengths import SAMPLE
from ratchet.jobs.training.evaluation import Evaluation
from ratchet.jobs.training.task import Batch
from ratchet.jobs.training.worker import WorkerInfo, gather_objects
from ratchet.models.decoder.conversation import Tokens
from ratchet.models.loading import eval_mode
from ratchet.models.losses import causal_lm_loss
from ratchet.models.losses.causal_lm_loss import TeacherLogprobs
from ratchet.models.zero3_sync import Zero3Sync
from ratchet.orchestrator.job_interface import Resources

if TYPE_CHECKING:
    from ratchet.jobs.answers.sft import Config, Inputs


TOKENS = pa.schema(
    {
        "id": pa.string(),
        "labels": pa.int32(),
        "ids": pa.list_(pa.int32()),
        "trained": pa.list_(pa.bool_()),
    }
)
"""Schema of tokenized samples: the id, and the fields of `Tokens`."""


@dataclass(frozen=True)
class Microbatch:
    """What `loss` takes."""

    samples: list[int]
    """Empty: a worker without samples, which takes part in the pass with weight 0."""
    labels: int
    """Number of labels of the batch, over all workers."""


class SftTask(AnswerTask):
    job = "sft"
    config: "Config"
    inputs: "Inputs"

    def __init__(
        self,
        worker: WorkerInfo,
        config: "Config",
        inputs: "Inputs",
        resources: Resources,
        lengths: Path,
    ) -> None:
        """lengths: JSON file that the first worker writes: numbers of samples, and a table of their lengths."""
        super().__init__(worker, config, inputs, resources, config.dtype)
        self.decoder.conversations.check_labels()
        for folder in (inputs.train, inputs.valid):
            check_answers(folder, self.decoder.conversations)
        self.zero3_sync = Zero3Sync(
            self.decoder.causal.base_model, self.device, needed=config.shard_stage == 3
        )
        self.train, too_long = self._tokenize(inputs.train)
        self.valid, left_out = self._tokenize(inputs.valid)
        self.teacher: Teacher | None = None
        if inputs.teacher is not None:
            self.teacher = Teacher(inputs.teacher, self.train)
        if worker.rank == 0:
            size_N = self.train.size_N
            counts = {
                "samples": len(size_N),
                "too_long": too_long,
                "longest": int(size_N.max()),
                "valid/too_long": left_out,
            }
            tokens = [
                summarize_tokens("prompt", (size_N - self.train.labels_N).tolist()),
                summarize_tokens("target", self.train.labels_N.tolist()),
                summarize_tokens("sample", size_N.tolist()),
            ]
            lengths.write_text(json.dumps([counts, tokens]))
        self.steps = self.count_steps(len(self.train), -(-len(self.train) // config.batch_size))

    def batch(self, epoch: int, step: int) -> Batch:
        """Return one microbatch per forward pass. All workers have equally many; some may be empty."""
        samples = split_epoch(len(self.train), self.steps[epoch], self.config.seed, epoch)[step]
        labels = int(self.train.labels_N[samples].sum())
        size_n = self.train.size_N[samples]
        own = samples[distribute(size_n, self.worker.world_size)[self.worker.rank]]
        microbatches = []
        for rows in self._make_passes(self.train.size_N[own]):
            microbatches.append(Microbatch(own[rows].tolist(), labels))
        missing = max(gather_objects(len(microbatches))) - len(microbatches)
        microbatches += [Microbatch([], labels)] * missing
        return Batch(microbatches, int(self.train.size_N[own].sum()))

    def loss(self, microbatch: Microbatch) -> Tensor:
        """Return this worker's share of the mean loss over the batch's labels."""
        weight = 0.0
        if microbatch.samples:
            weight = self.worker.world_size / microbatch.labels
        samples = microbatch.samples or [0]
        teacher = None
        if self.teacher is not None:
            teacher = [self.teacher[sample] for sample in samples]
        loss = causal_lm_loss.compute_loss(
            self.decoder,
            [self.train[sample] for sample in samples],
            teacher,
            ce_weight=self.config.ce_weight,
            temperature=self.config.teacher_temperature,
            multiple=self.multiple,
        )
        return loss * weight

    def evaluate(self) -> Evaluation:
        own = np.arange(len(self.valid))[self.worker.rank :: self.worker.world_size]
        total = 0.0
        with eval_mode(self.decoder.model), torch.no_grad():
            for rows in self._make_passes(self.valid.size_N[own]):
                samples = [self.valid[sample] for sample in own[rows]]
                total += float(causal_lm_loss.compute_loss(self.decoder, samples))
            self.zero3_sync.finish(lambda: self.loss(Microbatch([], 1)))
            correct, questions = self.verify_answers()
            blank = torch.zeros((1, 1), dtype=torch.int64, device=self.decoder.device)
            self.zero3_sync.finish(lambda: self.decoder.causal(input_ids=blank).logits)
        found = {"eval_loss": round(sum(gather_objects(total)) / int(self.valid.labels_N.sum()), 6)}
        if self.held_out:
            found["accuracy"] = round(
                sum(gather_objects(correct)) / sum(gather_objects(questions)), 6
            )
        return Evaluation(found)

    def _tokenize(self, folder: Path) -> "tuple[TokenTable, int]":
        """Return the tokens of the samples, and the number of samples that are too long and left out."""
        limit = SAMPLE.resolve(self.config, self.inputs.base)
        tables = []
        too_long = 0
        for path in list_shards(folder):
            rows = pq.read_table(path, columns=SAMPLES.names).to_pylist()
            tokenized = self.decoder.conversations.tokenize_samples(map(TALK, rows), exact=True)
            fitting = []
            for row, tokens in zip(rows, tokenized, strict=True):
                if len(tokens.ids) <= limit:
                    fitting.append({"id": row["id"], "labels": tokens.labels, **vars(tokens)})
            too_long += len(rows) - len(fitting)
            tables.append(pa.Table.from_pylist(fitting, TOKENS))
        table = pa.concat_tables(tables)
        if not len(table):
            raise InputError(
                f"sft.max_length: {limit} given, and all {too_long} samples of {folder} are longer; expected some that"
                " fit; raise it"
            )
        return TokenTable(table), too_long

    def _make_passes(self, sizes: np.ndarray) -> list[np.ndarray]:
        """Return forward passes, each a list of indices into `sizes` (tokens per sample)."""
        passes = []
        most = self.resources.micro_batch_size or len(sizes)
        for group in self.group_rows(sizes):
            for at in range(0, len(group), most):
                passes.append(group[at : at + most])
        return passes


class TokenTable:
    """The tokens of N samples. Besides the table it holds 16 bytes per sample in memory."""

    def __init__(self, table: pa.Table) -> None:
        self.id_N: pa.ChunkedArray = table["id"]
        self.labels_N: np.ndarray = table["labels"].to_numpy().astype(np.int64)
        """Number of labels of each sample, int64 [N]."""
        self.size_N: np.ndarray = pc.list_value_length(table["ids"]).to_numpy().astype(np.int64)
        """Number of tokens of each sample, int64 [N]."""
        self._columns = table["ids"], table["trained"]

    def __len__(self) -> int:
        return len(self.size_N)

    def __getitem__(self, row: int) -> Tokens:
        return Tokens(*(column[int(row)].as_py() for column in self._columns))


class Teacher:
    """The teacher's distributions at the labels of samples. Raises InputError for a sample without distributions."""

    def __init__(self, folder: Path, samples: TokenTable) -> None:
        table = read_shards(folder, TEACHER_LOGPROBS.names)
        self._row_N = pc.index_in(samples.id_N, value_set=table["id"])
        sizes = pc.list_value_length(table["token_ids"]).take(self._row_N)
        top_k = table["top_k"].take(self._row_N)
        right = pc.fill_null(pc.equal(sizes, pc.multiply(top_k, pa.array(samples.labels_N))), False)
        sample = pc.index(right, False).as_py()
        if sample >= 0:
            problem = "another number of" if self._row_N[sample].is_valid else "no"
            raise InputError(
                f"sft.teacher: {folder} has {problem} distributions for sample {samples.id_N[sample]}; expected one for"
                " each token of its answer; run teacher_logprobs on the same samples"
            )
        self._columns = [table[name] for name in ("top_k", "token_ids", "logprobs")]

    def __getitem__(self, sample: int) -> TeacherLogprobs:
        row = self._row_N[int(sample)].as_py()
        top_k, ids, logprobs = (column[row] for column in self._columns)
        shape = (-1, top_k.as_py())
        return TeacherLogprobs(
            *(values.values.to_numpy().reshape(shape) for values in (ids, logprobs))
        )
