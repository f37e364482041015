"""Exported decoders stop, in transformers, at the tokens with which answers end in training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import trained
from chat_tokenizers import CHAT, tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM

from ratchet.jobs.export.export_model import Inputs, write_model
from ratchet.models.decoder import decoder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base model whose generation ends at another token than the answers of its chat template."""
    folder = tmp_path / "base"
    fast = tokenizer()
    fast.chat_template = CHAT
    fast.save_pretrained(folder)
    size = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    torch.manual_seed(0)
    Qwen2ForCausalLM(
        Qwen2Config(vocab_size=264, num_key_value_heads=2, pad_token_id=0, **size)
    ).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("adapter", [True, False])
@pytest.mark.parametrize(
    "known", [None, {"eos_token_id": 1, "top_k": 7, "do_sample": True}, {"eos_token_id": [2, 1]}]
)
def test_transformers_stops_where_answers_end(
    base: Path, tmp_path: Path, known: Any, adapter: bool
) -> None:
    file = base / "generation_config.json"
    file.unlink(missing_ok=True)
    if known is not None:
        file.write_text(json.dumps(known))
    if adapter:
        trained(Qwen2ForCausalLM.from_pretrained(base), [], "CAUSAL_LM", tmp_path / "adapter")
    write_model(
        "decoder", Inputs(base, tmp_path / "adapter" if adapter else None), tmp_path / "out"
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    found, ends = model.generation_config, decoder.load_conversations(base).ends
    assert {1, 3} <= ends
    assert ends <= set(found.eos_token_id)
    assert found.top_k == (known or {}).get("top_k", transformers.GenerationConfig().top_k)
    assert known is not None or found.pad_token_id == 0
    # A model that always writes the token of the template stops behind it.
    with torch.no_grad():
        model.model.norm.weight.zero_()
        model.lm_head = torch.nn.Linear(32, 264)
        model.lm_head.bias.copy_(torch.nn.functional.one_hot(torch.tensor(3), 264))
    assert model.generate(torch.tensor([[9, 8]]), do_sample=False, max_new_tokens=5).tolist() == [
        [9, 8, 3]
    ]


def test_a_model_that_cannot_be_asked_is_copied_as_it_is(base: Path, tmp_path: Path) -> None:
    fast = tokenizer()
    fast.chat_template = "{{ messages[0].content }}"
    fast.save_pretrained(base)
    before = (base / "generation_config.json").read_text()
    write_model("decoder", Inputs(base), tmp_path / "out")
    assert (tmp_path / "out/generation_config.json").read_text() == before
