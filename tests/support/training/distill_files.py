"""A student, a teacher with other weights and another shape, questions, and settings to train the student."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch
import transformers
from grpo_files import make_grpo_files

from ratchet.jobs.on_policy import distill
from ratchet.models.decoder.tiny_decoder import save_decoder

FAST = distill.Config(
    steps=6,
    batch_size=4,
    max_new_tokens=6,
    learning_rate=1e-2,
    method="full",
    dtype="float32",
    valid_samples=4,
    save_steps=2,
)


def make_distill_files(folder: Path) -> distill.Inputs:
    """Write train/, valid/, base/ and teacher/: a wider decoder with the tokenizer of the base."""
    made = make_grpo_files(folder)
    texts = []
    for name, count in (("train", 7), ("valid", 4)):
        texts += [f"{name} {'question ' * (number % 3 + 1)}{number}" for number in range(count)]
    shape = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    save_decoder(
        folder / "teacher", texts, vocab_size=300, seed=7, max_position_embeddings=256, **shape
    )
    teacher = transformers.AutoModelForCausalLM.from_pretrained(folder / "teacher")
    with torch.no_grad():  # as initialised, its distributions are nearly uniform
        for weight in teacher.parameters():
            weight.mul_(4 if weight.ndim == 2 else 1)
    teacher.save_pretrained(folder / "teacher")
    return distill.Inputs(
        made.base, folder / "teacher", made.train, made.valid, verifier_file=made.verifier_file
    )


def make_other_teacher(inputs: distill.Inputs, folder: Path) -> distill.Inputs:
    """The same with a teacher that has further tokens, a larger head and another chat template, as Qwen3 has beside
    Qwen2.5."""
    words = transformers.AutoTokenizer.from_pretrained(inputs.teacher)
    words.add_tokens([f"<extra {number}>" for number in range(70)])
    words.chat_template = words.chat_template.replace(
        "{% for message", "You are a teacher.{% for message", 1
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(inputs.teacher)
    model.resize_token_embeddings(len(words))
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    assert "teacher." in json.dumps(words.chat_template)
    return dataclasses.replace(inputs, teacher=folder)
