"""Packing of conversations into rows, against a simple search through all rows, and the loss of packed rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from architectures import save_causal
from chat_tokenizers import CHAT, tokenizer
from hypothesis import given
from hypothesis import strategies as st

from ratchet.errors import InputError
from ratchet.jobs.answers import sft
from ratchet.models.decoder import decoder
from ratchet.models.decoder.conversation import Tokens
from ratchet.models.losses.causal_lm_loss import compute_loss, pack_rows
from ratchet.models.reranker.prefix_sharing import ARCHITECTURES

OTHERS = (
    *(
        "bamba",
        "bloom",
        "falcon",
        "falcon_h1",
        "falcon_mamba",
        "gemma3",
        "granitemoehybrid",
        "jamba",
        "lfm2",
        "mamba",
    ),
    *(
        "llama4_text",
        "mamba2",
        "mpt",
        "nemotron_h",
        "qwen3_5_text",
        "qwen3_next",
        "recurrent_gemma",
        "rwkv",
        "zamba2",
    ),
)
"""Architectures with convolutions or states, or with masks or positions of their own."""


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 60))
def test_packing_keeps_all_and_stays_within(lengths: list[int], most: int) -> None:
    rows = pack_rows(lengths, most)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    for row in rows:
        assert len(row) == 1 or sum(lengths[i] for i in row) <= most
    # No two rows could be one.
    sizes = sorted(sum(lengths[i] for i in row) for row in rows)
    assert len(sizes) < 2 or sizes[0] + sizes[1] > most
    assert rows == pack_by_search(lengths, most)


def pack_by_search(lengths: list[int], most: int) -> list[list[int]]:
    """Best fit decreasing, by looking at all rows."""
    rows: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        room = [most - sum(lengths[i] for i in row) for row in rows]
        fits = [row for row, left in enumerate(room) if left >= lengths[number]]
        if not fits:
            rows.append([])
        rows[min(fits, key=lambda row: room[row]) if fits else -1].append(number)
    return rows


def test_packing_of_many_rows_takes_no_longer_for_each() -> None:
    lengths = np.random.default_rng(0).integers(1100, 2000, 100_000).tolist()
    assert len(pack_rows(lengths, 2048)) == 100_000  # minutes, if all rows were looked at


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    fast = tokenizer()
    fast.chat_template = CHAT
    fast.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_packed_conversations_have_the_loss_of_each_alone(
    kind: str, training: bool, chat: Path
) -> None:
    """Training and evaluation differ in their implementation of attention."""
    save_causal(kind, chat, 272)
    sft.check_packing(sft.Config(packing=True, max_length=256), chat)
    ours = decoder.load(chat, dtype="float32", device="cpu", training=training)
    texts = [
        ("What is 2 + 2?", "four"),
        ("Capital of France?", "Paris, it is."),
        ("naïve", "x² = 4 and so on"),
    ]
    samples = [
        ours.conversations.tokenize_sample("", [question], [answer]) for question, answer in texts
    ]
    one = Tokens(
        [token for own in samples for token in own.ids],
        [label for own in samples for label in own.trained],
    )
    with torch.no_grad():
        alone = float(sum(compute_loss(ours, [[own]]) for own in samples))
        assert float(compute_loss(ours, [samples])) == pytest.approx(alone, rel=1e-5)
        assert float(compute_loss(ours, [[one]])) != pytest.approx(alone, rel=2e-4)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_architectures_are_not_packed(kind: str, tmp_path: Path) -> None:
    transformers.AutoConfig.for_model(kind)  # transformers has it
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(
        InputError, match=rf"sft.packing: true given, for the architecture {kind}; expected false"
    ):
        sft.check_packing(sft.Config(packing=True), tmp_path)


def test_a_plan_refuses_to_pack_them(chat: Path) -> None:
    config = transformers.Lfm2Config(
        vocab_size=272,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention"],
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(chat)
    inputs = sft.Inputs(chat, None, None)  # type: ignore[arg-type]
    assert sft.JOB.check is not None
    sft.JOB.check(sft.Config(), inputs, {})
    with pytest.raises(InputError, match="for the architecture lfm2"):
        sft.JOB.check(sft.Config(packing=True), inputs, {})
