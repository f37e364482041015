"""Base class of the training tasks of `sft` and `grpo`: the model, answers to held-out samples, and saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ratchet.data.tables import read_shards
from ratchet.data.tasks import read_task
from ratchet.data.tasks.task import CORRECT, SAMPLES, read_task_name, row_to_sample, write_task_name
from ratchet.errors import InputError
from ratchet.jobs.answers.chat_options import read_chat
from ratchet.jobs.training.finetuning import FinetuneTask
from ratchet.jobs.training.task import WorkerInfo
from ratchet.models.decoder import decoder
from ratchet.models.decoder.multi_turn import ConversationState, converse
from ratchet.models.decoder.sampling import Sampling
from ratchet.models.model_files import count_learned_positions
from ratchet.orchestrator.job_interface import Resources


class AnsweringTask(FinetuneTask):
    """A causal language model of which an adapter or all weights are trained. A subclass adds the training data and
    `evaluate`."""

    def __init__(
        self, worker: WorkerInfo, config: Any, inputs: Any, resources: Resources, *, dtype: str | None = None
    ) -> None:
        """config: a FinetuneConfig with `valid_samples` and `max_new_tokens`. inputs: has `base`, `train`, `valid` and
        `current_best`. dtype: dtype of the loaded weights; None: `config.dtype`."""
        super().__init__(worker, config, inputs, resources)
        self.task = read_task(inputs.train)
        if read_task_name(inputs.valid) != self.task.name:
            raise InputError(
                f"{self.job}.valid: samples of task {read_task_name(inputs.valid)} given, to train on {self.task.name};"
                " expected the same task; prepare both together"
            )
        arguments, stop = read_chat(inputs.valid)
        self.stop = stop or self.task.stop
        options: dict[str, Any] = {"dtype": dtype or config.dtype, "template_arguments": arguments}
        self.decoder = self.load(decoder.load, inputs.base, **options)
        self.model = self.decoder.model = self.make_trainable(self.decoder.model, task="CAUSAL_LM")
        held_out = read_shards(inputs.valid, SAMPLES.names).slice(0, config.valid_samples)
        self.valid_samples = [row_to_sample(row) for row in held_out.to_pylist()]
        self._check_positions(count_learned_positions(inputs.base))

    def _check_positions(self, positions: int | None) -> None:
        """Raise InputError for a held-out sample whose answer would begin or end beyond the model's positions."""
        if positions is None or not self.valid_samples:
            return
        talks = []
        for one in self.valid_samples:
            talks.append((one.system, [question for question, _ in one.turns], ["."] * (len(one.turns) - 1)))
        prompt = max(len(tokens.ids) for tokens in self.decoder.conversations.tokenize_samples(talks))
        answers = max(len(one.turns) for one in self.valid_samples) * self.config.max_new_tokens
        if prompt + answers > positions:
            raise InputError(
                f"{self.job}.max_new_tokens: {self.config.max_new_tokens} given, after held-out prompts of up to"
                f" {prompt} tokens; expected at most {positions} together, the number of positions of"
                f" {self.inputs.base}; lower it, or set valid_samples lower"
            )

    def save(self, folder: Path) -> None:
        super().save(folder)
        write_task_name(folder, self.task.name, **self.task.source)

    def verify_answers(self) -> tuple[int, int]:
        """Answer this worker's part of the held-out samples by greedy decoding. Return (correct answers, questions)."""
        sampling = Sampling(temperature=0, max_new_tokens=self.config.max_new_tokens, stop=self.stop)
        own = self.valid_samples[self.worker.rank :: self.worker.world_size]
        conversations = []
        for one in own:
            conversations.append(ConversationState(one.id, one.system, [question for question, _ in one.turns]))
        converse(self.decoder, conversations, sampling, batch_tokens=self.resources.batch_tokens)
        labels = []
        for sample, conversation in zip(own, conversations, strict=True):
            for verification in self.task.verify(sample.gold, conversation.answers):
                labels.append(verification.label)
        return labels.count(CORRECT), len(labels)
