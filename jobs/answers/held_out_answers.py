"""The training of a decoder on a task: the decoder that `sft`, `grpo` and `distill` train, and its evaluation on
held-out samples."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ratchet.data.tables import read_shards
from ratchet.data.tasks import read_task
from ratchet.data.tasks.task import CORRECT, SAMPLES, read_task_name, row_to_sample, write_task_name
from ratchet.errors import InputError
from ratchet.jobs.answers.answering import start_conversations
from ratchet.jobs.answers.chat_options import read_chat
from ratchet.jobs.answers.token_table import TokenTable, tokenize
from ratchet.jobs.training.evaluation import Evaluation
from ratchet.jobs.training.task import FinetuneTask
from ratchet.jobs.training.worker import WorkerInfo, gather_objects
from ratchet.models.decoder import decoder
from ratchet.models.decoder.multi_turn import converse
from ratchet.models.decoder.sampling import Sampling
from ratchet.models.loading import eval_mode
from ratchet.models.model_files import count_learned_positions
from ratchet.models.zero3_sync import Zero3Sync
from ratchet.orchestrator.job_interface import Resources


class AnswerTask(FinetuneTask):
    """Base class of the kinds of training of a decoder. Raises InputError for held-out samples of another task than
    those of `train`."""

    def __init__(
        self, worker: WorkerInfo, config: Any, inputs: Any, resources: Resources, dtype: str
    ) -> None:
        """config: has `valid_samples` and `max_new_tokens`. inputs: `train`, `valid` and `verifier_file`. dtype: of the
        decoder. It is loaded with the arguments of the chat template of the held-out samples."""
        super().__init__(worker, config, inputs, resources)
        arguments, stop = read_chat(inputs.valid)
        self.decoder: decoder.Decoder = self.load(
            decoder.load, inputs.base, dtype=dtype, template_arguments=arguments
        )
        self.model = self.decoder.model = self.make_trainable(self.decoder.model, task="CAUSAL_LM")
        self.task = read_task(inputs.train, inputs.verifier_file)
        if read_task_name(inputs.valid) != self.task.name:
            raise InputError(
                f"{self.job}.valid: samples of task {read_task_name(inputs.valid)} given, to train on"
                f" {self.task.name}; expected the same task; prepare both together"
            )
        self.zero3_sync = Zero3Sync(
            self.decoder.causal.base_model, self.device, needed=config.shard_stage == 3
        )
        self.stop = stop or self.task.stop
        held_out = read_shards(inputs.valid, SAMPLES.names).slice(0, config.valid_samples)
        self.held_out = [row_to_sample(row) for row in held_out.to_pylist()]

    def save(self, folder: Path) -> None:
        super().save(folder)
        write_task_name(folder, self.task.name, **self.task.source)

    def tokenize(self, folder: Path, limit: int) -> tuple[TokenTable, int]:
        """Return the tokens of the samples in a folder, and the number of samples of more than `limit` tokens, which
        are left out. Raises InputError if all are."""
        table, too_long = tokenize(folder, self.decoder.conversations, limit)
        if not len(table):
            raise InputError(
                f"{self.job}.max_length: {limit} given, and all {too_long} samples of {folder} are longer; expected"
                " some that fit; raise it"
            )
        return table, too_long

    def make_passes(self, sizes: np.ndarray) -> list[np.ndarray]:
        """Return forward passes, each a list of indices into `sizes` (tokens per sample)."""
        passes = []
        most = self.resources.micro_batch_size or len(sizes)
        for group in self.group_rows(sizes):
            for at in range(0, len(group), most):
                passes.append(group[at : at + most])
        return passes

    def evaluate_samples(
        self, valid: TokenTable, sum_losses: Callable[[np.ndarray], Tensor]
    ) -> Evaluation:
        """Return the mean loss per label of held-out samples, and the accuracy of the answers to `held_out`.

        sum_losses: returns the sum of the loss over the labels of some rows of `valid`, in one forward pass."""
        own = np.arange(len(valid))[self.worker.rank :: self.worker.world_size]
        total = 0.0
        with eval_mode(self.decoder.model), torch.no_grad():
            for rows in self.make_passes(valid.size_N[own]):
                total += float(sum_losses(own[rows]))
            self.zero3_sync.finish(lambda: sum_losses(np.zeros(1, np.int64)))
            correct, questions = self.verify_answers()
            blank = torch.zeros((1, 1), dtype=torch.int64, device=self.decoder.device)
            self.zero3_sync.finish(lambda: self.decoder.causal(input_ids=blank).logits)
        found = {"eval_loss": round(sum(gather_objects(total)) / int(valid.labels_N.sum()), 6)}
        if self.held_out:
            found["accuracy"] = round(
                sum(gather_objects(correct)) / sum(gather_objects(questions)), 6
            )
        return Evaluation(found)

    def verify_answers(self) -> tuple[int, int]:
        """Answer this worker's part of the held-out samples by greedy decoding. Return (correct answers, questions).
        Raises ModelError for a prompt that leaves no room for an answer within the model's positions."""
        most = self.config.max_new_tokens
        longest = None
        positions = count_learned_positions(self.inputs.base)
        if positions is not None:
            longest = positions - most
        own = self.held_out[self.worker.rank :: self.worker.world_size]
        talks = start_conversations(own, 1)
        converse(
            self.decoder,
            talks,
            Sampling(temperature=0, max_new_tokens=most, stop=self.stop),
            batch_tokens=self.resources.batch_tokens,
            max_prompt_length=longest,
        )
        labels = []
        for sample, talk in zip(own, talks, strict=True):
            for verification in self.task.verify(sample.gold, talk.answers):
                labels.append(verification.label)
        return labels.count(CORRECT), len(labels)
