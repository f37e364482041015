"""teacher_logprobs: compute a teacher's most likely tokens at each label of samples, as soft targets of `sft`.

Computed once per teacher and data. Teacher and student must have the same vocabulary; from a teacher with another
vocabulary, distill its answers (`rejection_sample`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from ratchet.jobs import needs
from ratchet.jobs.answers.chat_options import check_chat
from ratchet.jobs.inference import InferenceConfig, check_adapter, check_quantization
from ratchet.jobs.model_checks import check_decoder_model, check_length, describe_length, fit_length
from ratchet.orchestrator.job_interface import MAP_RESOURCES, Job, Needs, Parents, Resources, Result, Unit

MAX_LENGTH = 2048
"""Maximum length of a sample in tokens, where `max_length` is None."""


@dataclass(frozen=True)
class Config(InferenceConfig):
    top_k: Annotated[int, Ge(2), Unit("tokens")] = 32
    """Number of most likely tokens to store per label."""
    max_length: Annotated[int, Ge(1), Unit("tokens")] | None = None
    """Maximum length of a sample. A longer sample is an error. None: 2048, or as many as the teacher has positions."""


@dataclass(frozen=True)
class Inputs:
    model: Path
    """The teacher: a Hugging Face folder of a causal language model."""
    samples: Path
    """Samples written by `prepare_tasks`."""
    student: Path
    """The model to be trained. Only its config and its tokenizer are read."""
    adapter: Path | None = None
    """A LoRA adapter for the teacher."""


def check(config: Config, inputs: Inputs) -> None:
    check_adapter("teacher_logprobs", inputs.adapter, inputs.model, "decoder")
    if inputs.model is None or inputs.student is None:
        check_quantization("teacher_logprobs", config.quantization, None)
        return
    from ratchet.models.decoder import decoder

    for folder in (inputs.model, inputs.student):
        check_decoder_model(folder)
    check_quantization("teacher_logprobs", config.quantization, inputs.model)
    decoder.check_head(inputs.model)
    check_length("teacher_logprobs.max_length", inputs.model, find_max_length(config, inputs.model))
    decoder.check_same_tokens(inputs.model, inputs.student)


def find_max_length(config: Config, model: Path | None) -> int:
    """Return the maximum length of a sample. model: None: not made yet."""
    return fit_length(config.max_length, MAX_LENGTH, model)


def predict(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Check the arguments of the chat template, and note a maximum length that is shorter than usual."""
    check_chat(config, inputs, parents)
    fitting = find_max_length(config, inputs.model)
    return Result(note=describe_length("max_length", config.max_length, MAX_LENGTH, fitting))


def estimate_needs(config: Config, inputs: Inputs, resources: Resources, parents: Parents) -> Needs | None:
    folder = needs.find_model("model", inputs, parents)
    length = find_max_length(config, folder)
    return needs.infer(folder, "causal", config, inputs, resources, parents, length=length)


JOB = Job(
    "teacher_logprobs",
    config=Config,
    inputs=Inputs,
    resources=(*MAP_RESOURCES, "batch_tokens"),
    is_worker=lambda config: True,
    check=check,
    predict=predict,
    needs=estimate_needs,
    metrics=lambda config: ("samples", "tokens", "top_k", "dtype"),
)
