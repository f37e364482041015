"""Training of a decoder on a teacher's distributions, over its own answers or the targets of samples.

The training steps are those of Trainer, and only the loss is TRL's. Its trainers do not fit: DistillationTrainer has no
lambda, since it trains on the model's own answers only. It and GKDTrainer refuse heads of unequal size, such as those
of Qwen2.5-1.5B and Qwen2.5-7B. GKDTrainer and GOLDTrainer sample answers that depend on the batch and on the number of
workers, and have no place for another way to sample.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from ratchet.data.tables import read_shards
from ratchet.data.triplets import distribute
from ratchet.jobs.answers.chat_options import check_answers, read_chat
from ratchet.jobs.answers.held_out_answers import AnswerTask
from ratchet.jobs.answers.lengths import DISTILLED
from ratchet.jobs.answers.token_table import TokenTable
from ratchet.jobs.on_policy.draws import draw_on_policy, draw_order
from ratchet.jobs.training.evaluation import Evaluation
from ratchet.jobs.training.task import Batch
from ratchet.jobs.training.worker import WorkerInfo, gather_objects
from ratchet.models.decoder import decoder
from ratchet.models.decoder.conversation import Conversations, Tokens
from ratchet.models.decoder.sampling import Sampling, generate
from ratchet.models.losses import generalized_jsd
from ratchet.orchestrator.job_interface import Resources

if TYPE_CHECKING:
    from ratchet.jobs.on_policy.distill import Inputs, Options


@dataclass(frozen=True)
class Answered:
    """A question with an answer, as the student and as the teacher read it. The answers have the same tokens."""

    student: Tokens
    teacher: Tokens


@dataclass(frozen=True)
class Microbatch:
    """What `loss` takes."""

    rows: Sequence[Answered]
    """Empty: a worker without samples."""
    labels: int
    """Number of labels of the batch, over all workers."""


class DistillTask(AnswerTask):
    job = "distill"
    config: "Options"
    inputs: "Inputs"

    def __init__(
        self, worker: WorkerInfo, config: "Options", inputs: "Inputs", resources: Resources
    ) -> None:
        os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # GKDTrainer may change: setup.cfg pins TRL
        super().__init__(worker, config, inputs, resources, config.dtype)
        conversations = self.decoder.conversations
        conversations.check_labels()
        for folder in (inputs.train, inputs.valid):
            check_answers(folder, conversations)
        self.teacher = decoder.load(
            inputs.teacher,
            dtype=config.dtype,
            device=self.device,
            template_arguments=read_chat(inputs.valid)[0],
        )
        self.teacher.model.requires_grad_(False)
        shared = decoder.find_shared_tokens(inputs.teacher, inputs.base)
        self.shared_S = torch.tensor(shared, device=self.decoder.device)
        limit = DISTILLED.resolve(config, inputs.base)
        self.train, too_long = self.tokenize(inputs.train, limit)
        self.valid, left_out = self.tokenize(inputs.valid, limit)
        self.train_prompts = tokenize_prompts(inputs.train, self.train, self.teacher.conversations)
        self.valid_prompts = tokenize_prompts(inputs.valid, self.valid, self.teacher.conversations)
        draws = config.steps * config.batch_size
        self.steps = self.count_steps(config.batch_size, config.steps)
        self.row_D = draw_order(len(self.train), draws, config.seed)
        """The row of the sample of each draw, int64 [D]. A training step takes `batch_size` draws."""
        self.is_on_policy = draw_on_policy(config.steps, config.lmbda, config.seed)
        self.counts = {
            "samples": len(self.train),
            "too_long": too_long,
            "valid/too_long": left_out,
            "on_policy_steps": int(self.is_on_policy.sum()),
        }

    def batch(self, epoch: int, step: int) -> Batch:
        """Return one microbatch per forward pass. All workers have equally many; some may be empty."""
        each = self.config.batch_size
        draws = np.arange(step * each, (step + 1) * each)
        parts = distribute(self.train.size_N[self.row_D[draws]], self.worker.world_size)
        own = draws[parts[self.worker.rank]]
        if self.is_on_policy[step]:
            rows = self._sample_answers(own)
        else:
            rows = [self._read_target(int(row)) for row in self.row_D[own]]
        sizes = np.array([len(one.student.ids) for one in rows])
        labels = sum(gather_objects(sum(one.student.labels for one in rows)))
        microbatches = []
        for group in self.equalize(self.make_passes(sizes)):
            microbatches.append(Microbatch([rows[i] for i in group], labels))
        return Batch(microbatches, int(sizes.sum()))

    def loss(self, microbatch: Microbatch) -> Tensor:
        """Return this worker's share of the mean divergence over the batch's labels."""
        if not microbatch.rows:
            rows = [self._read_target(0)]
            return 0.0 * self._sum_divergences(rows)
        weight = self.worker.world_size / microbatch.labels
        return weight * self._sum_divergences(microbatch.rows)

    def evaluate(self) -> Evaluation:
        return self.evaluate_samples(self.valid, self._sum_held_out)

    def _sum_held_out(self, rows: np.ndarray) -> Tensor:
        found = []
        for row in rows:
            found.append(answer(self.valid[row], self.valid_prompts[row].as_py()))
        return self._sum_divergences(found)

    def _sum_divergences(self, rows: Sequence[Answered]) -> Tensor:
        return generalized_jsd.compute_loss(
            self.decoder,
            self.teacher,
            [one.student for one in rows],
            [one.teacher for one in rows],
            self.shared_S,
            beta=self.config.beta,
            temperature=self.config.teacher_temperature,
            multiple=self.multiple,
        )

    def _read_target(self, row: int) -> Answered:
        return answer(self.train[row], self.train_prompts[row].as_py())

    def _sample_answers(self, draws: np.ndarray) -> list[Answered]:
        """Sample the student's answers. Their tokens depend only on the model and (seed, draw, position)."""
        config = self.config
        targets = []
        prompts = []
        for row in self.row_D[draws]:
            targets.append(self._read_target(int(row)))
            tokens = targets[-1].student
            prompts.append(tokens.ids[: tokens.trained.index(True)])
        sampling = Sampling(
            config.temperature,
            top_p=config.top_p,
            max_new_tokens=config.max_new_tokens,
            stop=self.stop,
            seed=config.seed,
        )
        names = [str(draw) for draw in draws]
        answers = generate(
            self.decoder, prompts, names, sampling, batch_tokens=self.resources.batch_tokens
        )
        found = []
        for target, prompt, ids in zip(targets, prompts, answers, strict=True):
            teacher = target.teacher
            teacher_prompt = teacher.ids[: teacher.trained.index(True)]
            found.append(Answered(join(prompt, ids), join(teacher_prompt, ids)))
        return found


def join(prompt: list[int], ids: list[int]) -> Tokens:
    """Return a prompt and the tokens of its answer, which are the labels."""
    return Tokens(prompt + ids, [False] * len(prompt) + [True] * len(ids))


def answer(student: Tokens, teacher_prompt: list[int]) -> Answered:
    """Return a sample with its target, after the teacher's prompt too."""
    start = student.trained.index(True)
    ids = student.ids[start : start + student.labels]
    return Answered(student, join(teacher_prompt, ids))


def tokenize_prompts(
    folder: Path, samples: TokenTable, conversations: Conversations
) -> pa.ChunkedArray:
    """Return the prompt of each of the samples as another model's tokens."""
    table = read_shards(folder, ["id", "system", "questions"])
    asked: list[tuple[str, list[str], list[str]]] = []
    for row in table.to_pylist():
        asked.append((row["system"], row["questions"], []))
    prompts = [tokens.ids for tokens in conversations.tokenize_samples(asked)]
    rows = pc.index_in(samples.id_N, value_set=table["id"])
    return pa.chunked_array([pa.array(prompts, pa.list_(pa.int32()))]).take(rows)
