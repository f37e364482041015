"""Training of a decoder on a task's answers: batches, loss and evaluation."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor

from ratchet.data.rankings import summarize_tokens
from ratchet.data.tables import read_shards
from ratchet.data.tasks.answers import TEACHER_LOGPROBS
from ratchet.data.triplets import distribute, split_epoch
from ratchet.errors import InputError
from ratchet.jobs.answers.chat_options import check_answers
from ratchet.jobs.answers.held_out_answers import AnswerTask
from ratchet.jobs.answers.lengths import SAMPLE
from ratchet.jobs.answers.token_table import TokenTable
from ratchet.jobs.training.evaluation import Evaluation
from ratchet.jobs.training.task import Batch
from ratchet.jobs.training.worker import WorkerInfo
from ratchet.models.losses import causal_lm_loss
from ratchet.models.losses.causal_lm_loss import TeacherLogprobs
from ratchet.orchestrator.job_interface import Resources

if TYPE_CHECKING:
    from ratchet.jobs.answers.sft import Config, Inputs


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
        self, worker: WorkerInfo, config: "Config", inputs: "Inputs", resources: Resources
    ) -> None:
        super().__init__(worker, config, inputs, resources, config.dtype)
        self.decoder.conversations.check_labels()
        for folder in (inputs.train, inputs.valid):
            check_answers(folder, self.decoder.conversations)
        limit = SAMPLE.resolve(config, inputs.base)
        self.train, too_long = self.tokenize(inputs.train, limit)
        self.valid, left_out = self.tokenize(inputs.valid, limit)
        self.teacher: Teacher | None = None
        if inputs.teacher is not None:
            self.teacher = Teacher(inputs.teacher, self.train)
        size_N = self.train.size_N
        self.counts = {
            "samples": len(size_N),
            "too_long": too_long,
            "longest": int(size_N.max()),
            "valid/too_long": left_out,
        }
        self.tables["tokens per training sample"] = [
            summarize_tokens("prompt", (size_N - self.train.labels_N).tolist()),
            summarize_tokens("target", self.train.labels_N.tolist()),
            summarize_tokens("sample", size_N.tolist()),
        ]
        steps = -(-len(self.train) // config.batch_size)
        self.steps = self.count_steps(len(self.train) // steps, steps)

    def batch(self, epoch: int, step: int) -> Batch:
        """Return one microbatch per forward pass. All workers have equally many; some may be empty."""
        samples = split_epoch(len(self.train), self.steps[epoch], self.config.seed, epoch)[step]
        labels = int(self.train.labels_N[samples].sum())
        size_n = self.train.size_N[samples]
        own = samples[distribute(size_n, self.worker.world_size)[self.worker.rank]]
        microbatches = []
        for rows in self.equalize(self.make_passes(self.train.size_N[own])):
            microbatches.append(Microbatch(own[rows].tolist(), labels))
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
        return self.evaluate_samples(self.valid, self._sum_losses)

    def _sum_losses(self, rows: np.ndarray) -> Tensor:
        """Return the sum of the cross-entropy over the labels of held-out samples."""
        samples = [self.valid[row] for row in rows]
        return causal_lm_loss.compute_loss(self.decoder, samples)


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
