"""The decoder that `sft` and `grpo` train, and its answers to held-out samples."""

from __future__ import annotations

from typing import Any

from ratchet.data.tables import read_shards
from ratchet.data.tasks import read_task
from ratchet.data.tasks.task import CORRECT, SAMPLES, read_task_name, row_to_sample
from ratchet.errors import InputError
from ratchet.jobs.answers.chat_options import read_chat
from ratchet.jobs.training.task import FinetuneTask
from ratchet.models.decoder import decoder
from ratchet.models.decoder.multi_turn import ConversationState, converse
from ratchet.models.decoder.sampling import Sampling
from ratchet.models.model_files import count_learned_positions


def load_decoder(training: FinetuneTask, dtype: str) -> decoder.Decoder:
    """Load the decoder to train, with the arguments of the chat template of the held-out samples."""
    arguments, _ = read_chat(training.inputs.valid)
    found: decoder.Decoder = training.load(
        decoder.load, training.inputs.base, dtype=dtype, template_arguments=arguments
    )
    found.model = training.make_trainable(found.model, task="CAUSAL_LM")
    return found


class HeldOutAnswers:
    """Held-out samples, and the answers of the model that is trained.

    Raises InputError for held-out samples of another task than `train`, and for answers beyond the model's
    positions."""

    def __init__(self, training: FinetuneTask, trained: decoder.Decoder) -> None:
        """training.config: has `valid_samples` and `max_new_tokens`; training.inputs: `train` and `valid`."""
        self.training = training
        self.decoder = trained
        inputs = training.inputs
        self.task = read_task(inputs.train)
        if read_task_name(inputs.valid) != self.task.name:
            raise InputError(
                f"{training.job}.valid: samples of task {read_task_name(inputs.valid)} given, to train on"
                f" {self.task.name}; expected the same task; prepare both together"
            )
        _, stop = read_chat(inputs.valid)
        self.stop = stop or self.task.stop
        held_out = read_shards(inputs.valid, SAMPLES.names).slice(0, training.config.valid_samples)
        self.samples = [row_to_sample(row) for row in held_out.to_pylist()]
        self._check_positions(count_learned_positions(inputs.base))

    def _check_positions(self, positions: int | None) -> None:
        """Raise InputError for a sample whose answer would begin or end beyond the model's positions."""
        if positions is None or not self.samples:
            return
        talks = []
        for one in self.samples:
            talks.append(
                (one.system, [question for question, _ in one.turns], ["."] * (len(one.turns) - 1))
            )
        most = self.training.config.max_new_tokens
        prompt = max(
            len(tokens.ids) for tokens in self.decoder.conversations.tokenize_samples(talks)
        )
        answers = max(len(one.turns) for one in self.samples) * most
        if prompt + answers > positions:
            raise InputError(
                f"{self.training.job}.max_new_tokens: {most} given, after held-out prompts of up to {prompt} tokens;"
                f" expected at most {positions} together, the number of positions of {self.training.inputs.base}; lower"
                " it, or set valid_samples lower"
            )

    def verify(self) -> tuple[int, int]:
        """Answer this worker's part of the samples by greedy decoding. Return (correct answers, questions)."""
        sampling = Sampling(
            temperature=0, max_new_tokens=self.training.config.max_new_tokens, stop=self.stop
        )
        worker = self.training.worker
        own = self.samples[worker.rank :: worker.world_size]
        conversations: list[Any] = []
        for one in own:
            conversations.append(
                ConversationState(one.id, one.system, [question for question, _ in one.turns])
            )
        converse(
            self.decoder, conversations, sampling, batch_tokens=self.training.resources.batch_tokens
        )
        labels = []
        for sample, conversation in zip(own, conversations, strict=True):
            for verification in self.task.verify(sample.gold, conversation.answers):
                labels.append(verification.label)
        return labels.count(CORRECT), len(labels)
