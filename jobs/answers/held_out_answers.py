"""The decoder that `sft` and `grpo` train, and its answers to held-out samples."""

from __future__ import annotations

from ratchet.data.tables import read_shards
from ratchet.data.tasks import read_task
from ratchet.data.tasks.task import CORRECT, SAMPLES, read_task_name, row_to_sample
from ratchet.errors import InputError
from ratchet.jobs.answers.answering import start_conversations
from ratchet.jobs.answers.chat_options import read_chat
from ratchet.jobs.training.task import FinetuneTask
from ratchet.models.decoder import decoder
from ratchet.models.decoder.multi_turn import converse
from ratchet.models.decoder.sampling import Sampling
from ratchet.models.model_files import count_learned_positions


def load_decoder(training: FinetuneTask, dtype: str) -> decoder.Decoder:
    """Load the decoder to train, with the arguments of the chat template of the held-out samples."""
    arguments, _ = read_chat(training.inputs.valid)
    found = training.load(
        decoder.load, training.inputs.base, dtype=dtype, template_arguments=arguments
    )
    found.model = training.make_trainable(found.model, task="CAUSAL_LM")
    return found


class HeldOutAnswers:
    """Held-out samples, and the answers of the model that is trained. Raises InputError for held-out samples of another
    task than `train`."""

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

    def verify(self) -> tuple[int, int]:
        """Answer this worker's part of the samples by greedy decoding. Return (correct answers, questions). Raises
        ModelError for a prompt that leaves no room for an answer within the model's positions."""
        most = self.training.config.max_new_tokens
        longest = None
        positions = count_learned_positions(self.training.inputs.base)
        if positions is not None:
            longest = positions - most
        worker = self.training.worker
        own = self.samples[worker.rank :: worker.world_size]
        talks = start_conversations(own, 1)
        converse(
            self.decoder,
            talks,
            Sampling(temperature=0, max_new_tokens=most, stop=self.stop),
            batch_tokens=self.training.resources.batch_tokens,
            max_prompt_length=longest,
        )
        labels = []
        for sample, talk in zip(own, talks, strict=True):
            for verification in self.task.verify(sample.gold, talk.answers):
                labels.append(verification.label)
        return labels.count(CORRECT), len(labels)
